"""Partitioned overlap computes what sequential execution does, whatever the plan."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from helpers.examples import drawn
from helpers.worlds import (
    LAYERS,
    LLAMA,
    QWEN,
    TOKENS,
    degrees,
    departure,
    gloo_groups,
    gradients_of,
    graph_of,
    randomise,
    schedules,
    spawn,
)
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import EngineError
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import BlockGraph
from kareus.launch.process_groups import ProcessGroups, sum_over_ranks
from kareus.model.communication import Mesh
from kareus.model.config import Model
from kareus.model.shards import shard_of
from kareus.profile.programs import Execution, StageShape
from kareus.runtime.schedules import MicrobatchSchedule, Schedule
from kareus.runtime.stage_model import SEQUENTIAL, StageModel
from kareus.training.bucket_reduction import BucketReduction
from kareus.training.optimizer_sharding import OptimizerSharding

TOLERANCE = 1e-5
WHOLE = StageShape(layers=LAYERS, first=True, last=True)
MIDDLE = StageShape(layers=LAYERS, first=False, last=False)


class Case(NamedTuple):
    """One model under one division."""

    model: Model
    tp: int
    cp: int
    graph: BlockGraph


def cases(*divisions: tuple[int, int]) -> list[Case]:
    return [Case(model, tp, cp, graph_of(model, degrees(tp, cp))) for model in (LLAMA, QWEN) for tp, cp in divisions]


def make(case: Case, mesh: Mesh, shape: StageShape, *, recomputation: Recomputation) -> StageModel:
    shard = shard_of(case.model, degrees(case.tp, case.cp), TOKENS)
    stage = StageModel(
        case.model,
        shard,
        mesh,
        shape,
        torch.float32,
        recomputation=recomputation,
        graph=case.graph,
        default_sm_count=20,
    )
    randomise(stage, seed=mesh.tp.rank if mesh.tp else 0)
    return stage


def ran(stage: StageModel, batch: int, schedule: MicrobatchSchedule, seed: int = 0) -> dict[str, torch.Tensor]:
    """Output, gradient of the input and of every weight of one microbatch."""
    generator = torch.Generator().manual_seed(seed)
    tokens = stage.cosine.shape[0]
    if stage.embedding is not None:
        ids = torch.randint(40, (batch, tokens), generator=generator)
        loss = stage(ids, ids, schedule)
        loss.backward()
        return {"loss": loss.detach(), **gradients_of(stage)}
    hidden = torch.randn(batch, tokens, 32, generator=generator, requires_grad=True)
    out = stage(hidden, None, schedule)
    out.backward(torch.randn(out.shape, generator=generator))
    return {"out": out.detach(), "hidden": hidden.grad, **gradients_of(stage)}


def check_any_plan(rank: int, divided: list[Case], examples: int) -> None:
    for case in divided:
        mesh = gloo_groups(rank, degrees(case.tp, case.cp)).mesh
        for shape, own in ((WHOLE, examples), (MIDDLE, 2)):
            kept = make(case, mesh, shape, recomputation=Recomputation.NONE)
            expected = {batch: ran(kept, batch, SEQUENTIAL) for batch in (1, 2, 3)}
            for recomputation in Recomputation:
                check_stage(make(case, mesh, shape, recomputation=recomputation), case, own, expected)


def check_stage(stage: StageModel, case: Case, examples: int, expected: dict[int, dict[str, torch.Tensor]]) -> None:

    @drawn(examples)
    @given(schedule=schedules(case.graph, recomputation=stage.recomputation), batch=st.sampled_from([2, 3, 3, 1]))
    def check(schedule: MicrobatchSchedule, batch: int) -> None:
        found = ran(stage, batch, schedule)
        assert departure(found, expected[batch]) <= TOLERANCE
        bits_alike = all(torch.equal(found[name], expected[batch][name]) for name in found)
        assert bits_alike or batch > 1

    check()


def check_replicas(rank: int, case: Case, examples: int) -> None:
    """Two replicas with batches of different sizes together compute what one does with both, whatever their plans."""
    replicas = gloo_groups(rank, degrees(dp=2))
    for recomputation in Recomputation:
        check_replica(rank, replicas, make(case, Mesh(), WHOLE, recomputation=recomputation), case.graph, examples)


def check_replica(rank: int, replicas: ProcessGroups, stage: StageModel, graph: BlockGraph, examples: int) -> None:
    ids = torch.randint(40, (5, TOKENS), generator=torch.Generator().manual_seed(1))
    whole = stage(ids, ids)
    whole.backward()
    expected = {"loss": whole.detach(), **gradients_of(stage)}
    own = ids[:3] if rank == 0 else ids[3:]
    one = schedules(graph, recomputation=stage.recomputation)
    reduction = BucketReduction(stage, OptimizerSharding(stage, None), replicas)

    @drawn(examples)
    @given(planned=st.tuples(one, one))
    def check(planned: tuple[MicrobatchSchedule, ...]) -> None:
        loss = own.numel() / ids.numel() * stage(own, own, planned[rank])
        stage.gradients_ready = reduction.ready
        loss.backward()
        stage.gradients_ready = None
        reduction.finish()
        found = {"loss": torch.tensor(sum_over_ranks(float(loss))[0]), **gradients_of(stage)}
        assert departure(found, expected) <= TOLERANCE

    check()


def check_divided_sums(rank: int, case: Case) -> None:
    """After the sums over ranks, weights that ranks share have one gradient."""
    groups = gloo_groups(rank, degrees(case.tp, case.cp))
    stage = make(case, groups.mesh, WHOLE, recomputation=Recomputation.NONE)
    for name, parameter in stage.named_parameters():
        if "norm" in name:
            dist.broadcast(parameter.data, 0)
    ran(stage, 2, SEQUENTIAL)
    ids = torch.zeros(2, stage.cosine.shape[0], dtype=torch.long)
    reduction = BucketReduction(stage, OptimizerSharding(stage, None), groups)
    stage(ids, ids).backward()
    reduction.finish()
    summed = gradients_of(stage)
    shared = {n: t for n, t in summed.items() if case.cp > 1 or "norm" in n}
    first = {name: t.clone() for name, t in shared.items()}
    for t in first.values():
        dist.broadcast(t, 0)
    assert departure(shared, first) <= TOLERANCE


def check_two_ranks(rank: int, divided: list[Case], alone: Case) -> None:
    check_any_plan(rank, divided, examples=8)
    check_replicas(rank, alone, examples=5)
    for case in divided:
        check_divided_sums(rank, case)


@pytest.mark.slow
def test_two_ranks_compute_the_same_under_any_plan(tmp_path: Path) -> None:
    alone = Case(LLAMA, 1, 1, graph_of(LLAMA, degrees()))
    spawn(2, check_two_ranks, tmp_path, cases((2, 1), (1, 2)), alone)


def test_stages_of_a_pipeline_together_are_the_whole() -> None:
    graph = graph_of(QWEN, degrees())
    case = Case(QWEN, 1, 1, graph)
    whole = make(case, Mesh(), WHOLE, recomputation=Recomputation.STAGE)
    ends = [StageShape(layers=1, first=True, last=False), StageShape(layers=1, first=False, last=True)]
    first, last = (
        make(case, Mesh(), shape, recomputation=Recomputation.STAGE if shape.first else Recomputation.NONE)
        for shape in ends
    )
    weights = whole.state_dict()
    first.load_state_dict({n: t for n, t in weights.items() if n.startswith(("embedding.", "blocks.0."))})
    moved = {n.replace("blocks.1.", "blocks.0."): t for n, t in weights.items()}
    last.load_state_dict({n: moved[n] for n in last.state_dict()})
    ids = torch.randint(40, (3, TOKENS), generator=torch.Generator().manual_seed(2))
    whole(ids, ids).backward()
    nanobatching = Schedule(Execution.NANOBATCHING)
    sent = first(ids, None, MicrobatchSchedule(nanobatching, nanobatching))
    received = sent.detach().requires_grad_()
    last(received, ids, MicrobatchSchedule(Schedule(), nanobatching)).backward()
    sent.backward(received.grad)
    expected = gradients_of(whole)
    found = gradients_of(first) | {n.replace("blocks.0.", "blocks.1."): t for n, t in gradients_of(last).items()}
    assert departure(found, expected) <= TOLERANCE


@pytest.mark.parametrize("recomputation", list(Recomputation))
def test_gradients_of_weight_matrices_can_be_deferred(recomputation: Recomputation) -> None:
    """Those of norms come out of the kernels that compute input gradients, and stay there."""
    stage = make(Case(QWEN, 1, 1, graph_of(QWEN, degrees())), Mesh(), WHOLE, recomputation=recomputation)
    expected = ran(stage, 3, SEQUENTIAL)
    ids = torch.randint(40, (3, stage.cosine.shape[0]), generator=torch.Generator().manual_seed(0))
    nanobatching = Schedule(Execution.NANOBATCHING)
    loss = stage(ids, ids, MicrobatchSchedule(nanobatching, nanobatching))
    with stage.input_gradients_only() as later:
        loss.backward()
    waiting = {name for name, b in stage.named_buffers() if name.endswith("_gradient") and not b.any()}
    assert waiting == {name for name in expected if name.endswith("_gradient") and "norm" not in name}
    with torch.no_grad():
        for add in later:
            add()
    assert departure({"loss": loss.detach(), **gradients_of(stage)}, expected) <= TOLERANCE
    assert departure(ran(stage, 3, SEQUENTIAL), expected) == 0.0


def test_tied_embeddings_share_a_gradient_after_a_move() -> None:
    tied = dataclasses.replace(LLAMA, tie_embeddings=True)
    case = Case(tied, 1, 1, graph_of(LLAMA, degrees()))
    stage = make(case, Mesh(), WHOLE, recomputation=Recomputation.NONE).to(torch.float64).to(torch.float32)
    assert stage.head.lm_head.weight is stage.embedding.weight
    separate = make(Case(LLAMA, 1, 1, case.graph), Mesh(), WHOLE, recomputation=Recomputation.NONE)
    separate.load_state_dict(stage.state_dict())
    ids = torch.randint(40, (2, TOKENS), generator=torch.Generator().manual_seed(3))
    for each in (stage, separate):
        each(ids, ids).backward()
    expected = gradients_of(separate)
    expected["embedding.weight_gradient"] += expected.pop("head.lm_head.weight_gradient")
    assert departure(gradients_of(stage), expected) <= TOLERANCE


def test_evaluation_keeps_nothing_and_gives_logits() -> None:
    stage = make(Case(LLAMA, 1, 1, graph_of(LLAMA, degrees())), Mesh(), WHOLE, recomputation=Recomputation.NONE)
    ids = torch.zeros(2, TOKENS, dtype=torch.long)
    with torch.no_grad():
        assert stage(ids).shape == (2, TOKENS, 40)
        assert not stage(ids, ids).requires_grad


def test_overlap_without_an_operator_graph_is_refused() -> None:
    shard = shard_of(LLAMA, degrees(), TOKENS)
    stage = StageModel(LLAMA, shard, Mesh(), WHOLE, torch.float32, recomputation=Recomputation.STAGE)
    nanobatching = Schedule(Execution.NANOBATCHING)
    with pytest.raises(EngineError, match="execution 'nanobatching': needs the operator graph"):
        stage(torch.zeros(2, TOKENS, dtype=torch.long), None, MicrobatchSchedule(nanobatching, nanobatching))


@pytest.mark.acceptance  # pipelines of both degrees draw plans in test_pipeline_numerics.py
def test_four_ranks_compute_the_same_under_any_plan(tmp_path: Path) -> None:
    spawn(4, check_any_plan, tmp_path, cases((2, 2)), 20)


def test_one_gpu_runs_nanobatches_one_after_the_other() -> None:
    stage = make(Case(QWEN, 1, 1, graph_of(QWEN, degrees())), Mesh(), WHOLE, recomputation=Recomputation.STAGE)
    nanobatching = Schedule(Execution.NANOBATCHING)
    found = ran(stage, 3, MicrobatchSchedule(nanobatching, nanobatching))
    assert departure(found, ran(stage, 3, SEQUENTIAL)) <= TOLERANCE
