"""The optimizer step of a model in bf16 on a GPU is that of a CPU; on CPUs a rehearsal."""

import pytest
import torch
from helpers.builders import small_model
from helpers.trainings import tiny_workload
from helpers.worlds import departure

from kareus.graph.recomputation import Recomputation
from kareus.launch.process_groups import ProcessGroups
from kareus.model.communication import Mesh
from kareus.model.shards import shard_of
from kareus.model.weights import draw_weights
from kareus.profile.programs import stage_shapes
from kareus.runtime.stage_chunks import StageChunks
from kareus.runtime.stage_model import StageModel
from kareus.training.optimizer import Optimizer, whole_norm
from kareus.training.optimizer_sharding import OptimizerSharding, weight_gradients
from kareus.training.settings import OptimizerSettings

ALONE = ProcessGroups(
    mesh=Mesh(),
    data=None,
    pipeline=None,
    pipeline_backward=None,
    tensor=None,
    tied_embeddings=None,
    optimizer_shards=None,
)
MODEL = small_model(name="tiny-gpu", hidden_size=256, intermediate_size=512, head_dim=64, vocab_size=512)
STEPS, RATE, TOLERANCE = 3, 0.01, 1e-5
PLACES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
    ),
]


def stepped(place: str) -> dict[str, torch.Tensor]:
    """All states in fp32 and the weights in bf16, after steps by the same gradients, which are clipped."""
    workload = tiny_workload(model=MODEL)
    (shape,) = stage_shapes(workload.parallelism.split)
    shard = shard_of(MODEL, workload.parallelism, workload.sequence_length)
    chunk = StageModel(MODEL, shard, Mesh(), shape, torch.bfloat16, recomputation=Recomputation.STAGE).to(place)
    stage = StageChunks([chunk], (0,))
    draw_weights(stage, MODEL, 0, 0)
    sharding = OptimizerSharding(stage, None)
    optimizer = Optimizer(sharding, OptimizerSettings(largest_norm=0.1))
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        for _, gradient in weight_gradients(stage):
            gradient.copy_(torch.randn(gradient.shape, generator=generator))
        optimizer.step(whole_norm(sharding, MODEL, ALONE, counts_head=True), RATE)
    assert not any(gradient.any() for _, gradient in weight_gradients(stage))
    states = {f"{state}.{name}": t for state, own in optimizer.states().items() for name, t in own.items()}
    rounded = {name: weight.detach().flatten() for name, weight in stage.named_parameters()}
    assert all(torch.equal(states[f"weight.{name}"].bfloat16(), weight) for name, weight in rounded.items())
    return {name: t.cpu() for name, t in states.items()}


@pytest.mark.parametrize("place", PLACES)
def test_steps_are_those_of_a_cpu(place: str) -> None:
    assert departure(stepped(place), stepped("cpu")) <= TOLERANCE
