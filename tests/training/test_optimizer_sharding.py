"""Optimizer states that replicas share out: the same weights as with whole ones, for a part of the bytes."""

import copy
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.builders import small_model
from helpers.trainings import losses, tiny_workload, train_in_ranks
from helpers.worlds import GPT, QWEN, departure, spawn
from safetensors.torch import load_file
from torch import Tensor

from kareus.artifacts.configuration import to_yaml
from kareus.graph.number_formats import ADAMW_BYTES, BF16_BYTES, FP32_BYTES
from kareus.graph.recomputation import Recomputation
from kareus.launch.mesh import coordinate_of
from kareus.launch.process_groups import ProcessGroups, make_process_groups
from kareus.model.communication import Mesh
from kareus.model.communicators.choice import Library
from kareus.model.config import Model
from kareus.model.experts import Experts, RouterScore
from kareus.model.features import NormPlacement
from kareus.model.parallelism import Sharding
from kareus.model.shards import shard_of
from kareus.model.weights import draw_weights, pieces
from kareus.profile.programs import chunk_shapes
from kareus.runtime.stage_chunks import StageChunks, first_layers
from kareus.runtime.stage_model import StageModel
from kareus.training.bucket_reduction import TIED as TIED_NAMES
from kareus.training.bucket_reduction import BucketReduction
from kareus.training.optimizer import Optimizer, whole_norm
from kareus.training.optimizer_sharding import ALIGNMENT, OptimizerSharding, weight_gradients
from kareus.training.settings import OptimizerSettings
from kareus.workload.config import Workload
from kareus.workload.memory import GIB, estimate_memory

TOLERANCE = 1e-5
RATE = 0.01
STEPS = 3
TIED = dataclasses.replace(QWEN, vocab_size=264, tie_embeddings=True, qkv_bias=False)
TIED_POSITIONS = dataclasses.replace(GPT, vocab_size=264, tie_embeddings=True, max_positions=16)
FREELY, CLIPPED = 1e9, 0.1
"""Largest norms: one that no gradient here has, and one that all have more than."""
PLAIN = (Sharding.NONE, Sharding.OPTIMIZER)
"""What plain stages do; sharded gradients and weights are FSDP's."""


def sharing(workload: Workload, *, sharding: Sharding = Sharding.OPTIMIZER) -> Workload:
    parallelism = dataclasses.replace(workload.parallelism, sharding=sharding)
    return dataclasses.replace(workload, parallelism=parallelism)


def make_stage(workload: Workload, dtype: torch.dtype, number: int = 0, mesh: Mesh | None = None) -> StageChunks:
    model, parallelism = workload.model, workload.parallelism
    mesh = mesh or Mesh()
    shard, shapes = shard_of(model, parallelism, workload.sequence_length), chunk_shapes(parallelism.split, 1)
    chunk = StageModel(model, shard, mesh, shapes[number, 0], dtype, recomputation=Recomputation.STAGE)
    stage = StageChunks([chunk], first_layers(shapes, number))
    draw_weights(stage, model, 0, 0, mesh)
    return stage


class Replica:
    """One rank's stage and its optimizer."""

    def __init__(self, rank: int, workload: Workload, largest_norm: float, dtype: torch.dtype = torch.float32) -> None:
        self.workload, parallelism = workload, workload.parallelism
        self.coordinate = coordinate_of(rank, parallelism, dist.get_world_size())
        ties = workload.model.tie_embeddings
        self.groups = make_process_groups(
            self.coordinate, parallelism, Library.GLOO, scratch_bytes=0, tie_embeddings=ties
        )
        self.stage = make_stage(workload, dtype, self.coordinate.stage, self.groups.mesh)
        self.sharding = OptimizerSharding(self.stage, self.groups.optimizer_shards)
        self.reduction = BucketReduction(self.stage, self.sharding, self.groups)
        self.optimizer = Optimizer(self.sharding, OptimizerSettings(largest_norm=largest_norm))

    def step(self, iteration: int) -> None:
        """Sum gradients that every rank draws for itself, those of undivided weights alike over `tp`, and update."""
        model = self.workload.model
        for number, (name, gradient) in enumerate(weight_gradients(self.stage)):
            alike = all(piece.divided is None for piece in pieces(model, name, 0))
            own = dataclasses.replace(self.coordinate, tp=0) if alike else self.coordinate
            generator = torch.Generator().manual_seed(hash((iteration, number, *dataclasses.astuple(own))))
            gradient.add_(torch.rand(gradient.shape, generator=generator))  # positive, so that sums do not cancel
        self.reduction.finish()
        if self.groups.tied_embeddings is not None:
            self.reduction.exchange()
        counts_head = not (model.tie_embeddings and self.workload.parallelism.pp > 1)
        self.optimizer.step(whole_norm(self.sharding, model, self.groups, counts_head=counts_head), RATE)

    def weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().float() for name, weight in self.stage.named_parameters()}


def check_weights(rank: int, workload: Workload, largest_norm: float, tolerance: float) -> None:
    one, other = (Replica(rank, sharing(workload, sharding=s), largest_norm) for s in PLAIN)
    for iteration in range(STEPS):
        one.step(iteration)
        other.step(iteration)
    assert departure(other.weights(), one.weights()) <= tolerance
    check_replicas_agree(other)
    assert all(not gradient.any() for _, gradient in weight_gradients(other.stage))


def check_tied_weights_stay_alike(rank: int, workload: Workload) -> None:
    """The same bits on both ends, though sums of three numbers depend on their order, and parts begin elsewhere."""
    replica = Replica(rank, workload, CLIPPED)
    for iteration in range(STEPS):
        replica.step(iteration)
    found: list[Tensor] = [torch.empty(0)] * dist.get_world_size()
    weights = replica.weights()
    dist.all_gather_object(found, weights.get("embedding.weight", weights.get("head.lm_head.weight")))
    assert all(torch.equal(each, found[0]) for each in found)


def check_replicas_agree(replica: Replica) -> None:
    found: list[tuple[object, dict[str, Tensor]]] = [(None, {})] * dist.get_world_size()
    dist.all_gather_object(found, (dataclasses.replace(replica.coordinate, replica=0), replica.weights()))
    for place, weights in found:
        if place == dataclasses.replace(replica.coordinate, replica=0):
            assert all(torch.equal(weights[name], own) for name, own in replica.weights().items())


def check_bytes(rank: int, workload: Workload) -> None:
    """What a rank holds in mixed precision is what planning counts, but for the alignment of its part."""
    replica = Replica(rank, workload, FREELY, torch.bfloat16)
    replica.step(0)
    states = [tensor for state in replica.optimizer.states().values() for tensor in state.values()]
    buckets = len(replica.sharding.buckets)  # each is aligned
    planned, alignment = estimate_memory(workload), buckets * workload.parallelism.dp * ALIGNMENT
    for held, planned_gib, value_bytes in (
        (states, planned.optimizer_gib, ADAMW_BYTES),
        (list(replica.stage.parameters()), planned.weights_gib, BF16_BYTES),
        ([gradient for _, gradient in weight_gradients(replica.stage)], planned.gradients_gib, FP32_BYTES),
    ):
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held if t.numel()}
        assert abs(sum(storages.values()) - planned_gib * GIB) < value_bytes * alignment
    sizes = [p.numel() for p in replica.stage.parameters()]
    assert (
        max(sizes) > sum(sizes) / workload.parallelism.dp > 10 * alignment
    )  # a division of whole weights would not do
    check_replicas_agree(replica)


def check_four_ranks(rank: int) -> None:
    check_weights(rank, tiny_workload(dp=2, tp=2), FREELY, 0.0)
    check_weights(rank, tiny_workload(dp=2, pp=2), FREELY, 0.0)
    check_weights(rank, tiny_workload(dp=2, tp=2), CLIPPED, TOLERANCE)
    check_weights(rank, tiny_workload(dp=2, pp=2, model=TIED), CLIPPED, TOLERANCE)
    check_weights(rank, tiny_workload(dp=4, model=TIED), CLIPPED, TOLERANCE)
    check_bytes(rank, sharing(tiny_workload(dp=4, model=dataclasses.replace(TIED, vocab_size=8000))))


def test_a_sharded_optimizer_updates_like_a_whole_one(tmp_path: Path) -> None:
    spawn(4, check_four_ranks, tmp_path)


def test_tied_weights_stay_equal_on_first_and_last_stage(tmp_path: Path) -> None:
    spawn(6, check_tied_weights_stay_alike, tmp_path, sharing(tiny_workload(dp=3, pp=2, model=TIED)))


@pytest.mark.parametrize("model", [TIED, TIED_POSITIONS], ids=["rope", "learned"])
@pytest.mark.parametrize("replica", [0, 1])
def test_first_and_last_stage_cut_a_tied_table_alike(model: Model, replica: int) -> None:
    workload = sharing(tiny_workload(dp=2, pp=2, model=model))
    group: Any = SimpleNamespace(size=lambda: 2, rank=lambda: replica)
    ends = [OptimizerSharding(make_stage(workload, torch.float32, number), group) for number in (0, 1)]
    first, last = ([shard for shard in end.shards if shard.name in TIED_NAMES] for end in ends)
    assert [(shard.start, shard.gradient.numel()) for shard in first] == [
        (shard.start, shard.gradient.numel()) for shard in last
    ]


@pytest.mark.parametrize("largest_norm", [FREELY, CLIPPED])
def test_alone_it_updates_as_torch_does(largest_norm: float) -> None:
    workload = tiny_workload(model=TIED)
    stage = make_stage(workload, torch.float32)
    theirs = copy.deepcopy(stage)
    sharding, settings = OptimizerSharding(stage, None), OptimizerSettings(largest_norm=largest_norm)
    optimizer = Optimizer(sharding, settings)
    matrices = [p for p in theirs.parameters() if p.dim() > 1]
    others = [p for p in theirs.parameters() if p.dim() == 1]
    adamw = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=RATE,
        betas=(settings.beta1, settings.beta2),
    )
    alone = ProcessGroups(
        mesh=Mesh(),
        data=None,
        pipeline=None,
        pipeline_backward=None,
        tensor=None,
        tied_embeddings=None,
        optimizer_shards=None,
    )
    for _ in range(STEPS):
        for (_, gradient), parameter in zip(weight_gradients(stage), theirs.parameters(), strict=True):
            parameter.grad = torch.randn(parameter.shape)
            gradient.add_(parameter.grad)
        norm = whole_norm(sharding, workload.model, alone, counts_head=True)
        assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), largest_norm)))
        optimizer.step(norm, RATE)
        adamw.step()
    found, expected = ({n: p.detach() for n, p in each.named_parameters()} for each in (stage, theirs))
    assert departure(found, expected) <= TOLERANCE


@pytest.mark.parametrize("placement", NormPlacement)
def test_weights_around_experts_are_one_bucket(placement: NormPlacement) -> None:
    model = small_model(experts=Experts(count=4, per_token=2, width=8), norm_placement=placement)
    stage = make_stage(tiny_workload(model=model), torch.float32)
    before = {name: weight.detach().clone() for name, weight in stage.named_parameters()}
    sharding = OptimizerSharding(stage, None)
    assert {shard.name for shard in sharding.shards} == set(before)
    assert all(torch.equal(weight, before[name]) for name, weight in stage.named_parameters())


def test_what_experts_are_chosen_by_is_not_rounded() -> None:
    experts = Experts(count=4, per_token=2, width=8, score=RouterScore.SIGMOID)
    stage = make_stage(tiny_workload(model=small_model(experts=experts)), torch.bfloat16)
    biases = [weight for name, weight in stage.named_parameters() if name.endswith("choose.bias")]
    assert biases
    values = 7 + torch.rand(4, generator=torch.Generator().manual_seed(0))
    for bias in biases:
        bias.data.copy_(values)
    optimizer = Optimizer(OptimizerSharding(stage, None), OptimizerSettings())
    for _, gradient in weight_gradients(stage):
        gradient.fill_(0)
    optimizer.step(torch.ones(()), RATE)
    assert all(torch.equal(bias.detach(), values) for bias in biases)
    assert {weight.dtype for name, weight in stage.named_parameters() if "choose" not in name} == {torch.bfloat16}


def exported(folder: Path) -> dict[str, Tensor]:
    return {n: t for path in folder.glob("*.safetensors") for n, t in load_file(path).items()}


def test_a_sharded_training_resumes_exactly_and_exports(tmp_path: Path) -> None:
    whole, shared = tmp_path / "whole.yaml", tmp_path / "shared.yaml"
    whole.write_text(to_yaml(tiny_workload(dp=2)))
    shared.write_text(to_yaml(sharing(tiny_workload(dp=2))))
    options = ("--learning-rate", RATE, "--final-rate", RATE, "--clip", FREELY)
    train_in_ranks(2, "--workload", shared, "--iterations", 2, "--output", tmp_path / "run", *options)
    runs = {}
    for path, output in ((whole, tmp_path / "unbroken"), (shared, tmp_path / "run")):
        export = tmp_path / f"exported-{path.stem}"
        said = train_in_ranks(
            2, "--workload", path, "--iterations", 4, "--output", output, "--export", export, *options
        )
        assert ("resumed after iteration 2 of" in said) == (path is shared)
        runs[path] = exported(export), losses(output)
    assert runs[shared][1] == runs[whole][1]
    assert runs[shared][0].keys() == runs[whole][0].keys()
    assert all(torch.equal(tensor, runs[whole][0][name]) for name, tensor in runs[shared][0].items())

    sizes = [path.stat().st_size for path in (tmp_path / "run/checkpoints/iteration-00000004").glob("*.safetensors")]
    (whole_size, _) = (p.stat().st_size for p in (tmp_path / "unbroken/checkpoints/iteration-00000004").glob("*.s*"))
    assert sum(sizes) == pytest.approx(whole_size, rel=0.1)
    assert max(sizes) < 0.6 * whole_size
