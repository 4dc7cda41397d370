"""What a stage keeps for its backwards is what planning counts, for every recomputation."""

import dataclasses
import gc

import pytest
import torch
from helpers.builders import small_model
from helpers.memory import Alive
from helpers.trainings import tiny_workload

from kareus.graph.recomputation import Recomputation
from kareus.model.communication import Mesh
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.config import ActivationKind, Model, NormKind, PositionKind
from kareus.model.ends import Head
from kareus.model.experts import LatentAttention
from kareus.model.features import Branches, NormPlacement, QkNormScope
from kareus.model.passes import CollectiveCall, Pass
from kareus.model.shards import shard_of
from kareus.profile.programs import Execution, StageShape
from kareus.runtime.boundary import boundary_shapes
from kareus.runtime.overlap import run_alone
from kareus.runtime.schedules import MicrobatchSchedule, Schedule
from kareus.runtime.stage_model import Held, StageModel
from kareus.workload.activation_memory import block_backward_bytes, head_bytes, kept_bytes
from kareus.workload.compose import ENGINE
from kareus.workload.config import Workload

LAYERS, BATCH, TOKENS = 3, 2, 64
WIDE = small_model(
    name="wide", hidden_size=256, intermediate_size=512, num_layers=LAYERS, head_dim=64, num_key_value_heads=2
)
NORMED = dataclasses.replace(WIDE, name="normed", qk_norm=True)
UNGATED = dataclasses.replace(
    WIDE,
    name="ungated",
    norm=NormKind.LAYERNORM,
    activation=ActivationKind.GELU,
    positions=PositionKind.ALIBI,
    biases=True,
    intermediate_size=1024,
)
AROUND = dataclasses.replace(WIDE, name="around", norm_placement=NormPlacement.AROUND, rotary_share=0.5)
AFTER = dataclasses.replace(NORMED, name="after", norm_placement=NormPlacement.AFTER, qk_norm_scope=QkNormScope.TOKEN)
BESIDE = dataclasses.replace(WIDE, name="beside", branches=Branches.PARALLEL, activation=ActivationKind.GEGLU_TANH)
ONE_NORM = dataclasses.replace(UNGATED, name="one-norm", branches=Branches.PARALLEL_ONE_NORM)
LATENT = dataclasses.replace(
    WIDE,
    name="latent",
    num_key_value_heads=4,
    latent_attention=LatentAttention(query_rank=96, key_value_rank=48, rotary_dim=16, value_dim=32),
)
MIDDLE = StageShape(layers=LAYERS, first=False, last=False)


def workload_of(
    model: Model, recomputation: Recomputation, degrees: tuple[int, bool] = (1, False), cp: int = 1
) -> Workload:
    tp, shared = degrees
    return tiny_workload(
        tp=tp,
        cp=cp,
        sequence_parallel=shared,
        model=model,
        recomputation=recomputation,
        microbatch_size=BATCH,
        sequence_length=TOKENS,
    )


def stage_of(workload: Workload) -> StageModel:
    parallelism = workload.parallelism
    shard = shard_of(workload.model, parallelism, TOKENS)
    tensor = LoopbackCommunicator("tp", parallelism.tp) if parallelism.tp > 1 else None
    context = LoopbackCommunicator("cp", parallelism.cp) if parallelism.cp > 1 else None
    mesh = Mesh(tensor, context, parallelism.token_shards > 1)
    return StageModel(workload.model, shard, mesh, MIDDLE, torch.bfloat16, recomputation=workload.recomputation)


def alive_bytes() -> int:
    """Bytes of all tensors, those that share memory counted once; frozen ones (`few_objects`) are not."""
    tensors = [t for t in gc.get_objects() if type(t) is torch.Tensor]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.fixture(scope="module")
def few_objects() -> None:
    """Hide the objects that are there already from `gc.get_objects`, which is called for every operator.

    Once for all tests: to collect among the objects of a whole run of tests takes a second.
    """
    gc.collect()
    gc.freeze()


def forward(stage: StageModel, schedule: MicrobatchSchedule, shape: tuple[int, ...]) -> Held:
    """What the forward of a microbatch leaves for its backward; what it returns is not kept here."""
    hidden = torch.randn(shape, dtype=torch.bfloat16)
    return stage.run_forward(hidden, schedule, record=True)[1]


def most_in_backward(stage: StageModel, held: Held, before: int, shape: tuple[int, ...]) -> int:
    """Most bytes above `before` whenever an operator of the backward is about to be launched."""
    most = 0

    def run(passes: list[Pass], *_: object) -> list[torch.Tensor]:
        nonlocal most
        done: dict[int, torch.Tensor] = {}
        while len(done) < len(passes):  # in turns, so that both nanobatches are in flight
            for number, running in enumerate(passes):
                try:
                    event = next(running)
                    if isinstance(event, CollectiveCall):
                        event.launch(None)
                except StopIteration as stopped:
                    done.setdefault(number, stopped.value)
                most = max(most, alive_bytes() - before)
        return [done[number] for number in range(len(passes))]

    stage._run = run  # type: ignore[method-assign, assignment]
    stage.run_backward(held, torch.randn(shape, dtype=torch.bfloat16))
    return most


SEQUENTIAL = MicrobatchSchedule()
HALVED = MicrobatchSchedule(Schedule(Execution.NANOBATCHING), Schedule(Execution.NANOBATCHING))


@pytest.mark.parametrize("schedule", [SEQUENTIAL, HALVED], ids=["whole", "halved"])
@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        *((model, (1, False)) for model in (WIDE, NORMED, UNGATED, AROUND, AFTER, BESIDE, ONE_NORM, LATENT)),
        # Norms after a scatter would keep the whole of what `LoopbackCommunicator` gives a view of; others give none.
        *((model, (4, True)) for model in (WIDE, BESIDE, LATENT)),
    ],
    ids=lambda value: value.name if isinstance(value, Model) else "shared-tokens" if value[1] else "alone",
)
@pytest.mark.parametrize("recomputation", list(Recomputation))
def test_a_forward_keeps_what_planning_counts(
    few_objects: None,
    degrees: tuple[int, bool],
    model: Model,
    recomputation: Recomputation,
    schedule: MicrobatchSchedule,
) -> None:
    workload = workload_of(dataclasses.replace(model, num_key_value_heads=4), recomputation, degrees)
    workload = dataclasses.replace(workload, software=dataclasses.replace(workload.software, name=ENGINE))
    shape = boundary_shapes(workload, torch.bfloat16).hidden
    kept, recomputed = kept_bytes(workload, LAYERS, BATCH * TOKENS)
    gradients = block_backward_bytes(workload.model, workload.parallelism, BATCH * TOKENS)
    with torch.no_grad():
        stage = stage_of(workload)
        stage._run = lambda passes, *_: [run_alone(each, None) for each in passes]  # type: ignore[method-assign]
        forward(stage, schedule, shape)  # communicators take their buffers
        gc.collect()
        before, in_flight, found = alive_bytes(), list[Held](), list[int]()
        for _ in range(3):
            in_flight.append(forward(stage, schedule, shape))
            found.append(alive_bytes() - before)
        most = most_in_backward(stage, in_flight.pop(), before, shape) - found[1]
    assert found == pytest.approx([kept, 2 * kept, 3 * kept], rel=0.05)
    peak = most / (kept + recomputed + gradients)
    assert 0.7 < peak <= 1, "between operators; what one of them needs while it runs is not counted"


@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("positions", [PositionKind.LEARNED, PositionKind.ALIBI])
def test_shared_sequences_keep_what_planning_counts(few_objects: None, positions: PositionKind, cp: int) -> None:
    limit = TOKENS if positions is PositionKind.LEARNED else None
    model = dataclasses.replace(UNGATED, positions=positions, max_positions=limit, num_key_value_heads=4)
    workload = workload_of(model, Recomputation.NONE, cp=cp)
    shape = boundary_shapes(workload, torch.bfloat16).hidden
    kept, _ = kept_bytes(workload, LAYERS, BATCH * TOKENS // cp)
    with torch.no_grad():
        stage = stage_of(workload)
        stage._run = lambda passes, *_: [run_alone(each, None) for each in passes]  # type: ignore[method-assign]
        forward(stage, SEQUENTIAL, shape)  # communicators take their buffers
        gc.collect()
        before = alive_bytes()
        held = forward(stage, SEQUENTIAL, shape)
        found = alive_bytes() - before
    assert held
    assert found == pytest.approx(kept, rel=0.05)


def test_loss_and_head_hold_six_bytes_a_logit() -> None:
    model = dataclasses.replace(WIDE, hidden_size=8, vocab_size=4096)
    workload = workload_of(model, Recomputation.STAGE)
    head = Head(model, shard_of(model, workload.parallelism, TOKENS), Mesh(), torch.bfloat16)
    hidden = torch.randn(BATCH, TOKENS, 8, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(4096, (BATCH, TOKENS))
    with Alive([hidden, labels, *head.parameters(), *head.buffers()]) as alive:
        head(hidden, labels).backward()
    assert alive.most_bytes == pytest.approx(head_bytes(workload, BATCH * TOKENS), rel=0.05)
