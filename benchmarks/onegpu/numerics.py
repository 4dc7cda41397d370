"""Whether the kernels of a GPU compute what the CPU does in fp32, and a plan what running in sequence does."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch, BlockGraph
from kareus.model.attention import _attend, _attend_backward, alibi_slopes
from kareus.model.communication import Mesh
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.config import Model
from kareus.model.parallelism import Parallelism
from kareus.model.shards import shard_of
from kareus.partition.detect import detect_partitions
from kareus.partition.extract import extract
from kareus.profile.programs import Execution, StageShape
from kareus.runtime.schedules import MicrobatchSchedule, Schedule
from kareus.runtime.stage_model import SEQUENTIAL, StageModel
from kareus.schedule.records import Choice
from kareus.training.optimizer_sharding import weight_gradients
from onegpu.table import Table

SEED = 0
FROM_FP32, FROM_SEQUENTIAL = 0.05, 0.03
"""Largest departures that are allowed: bf16 keeps 8 bits of each number, of which sums and layers lose some."""
_SAYS = "Departures are largest differences over largest values, of the worst tensor."
_JUDGED = ("allowed", "holds")
LAYERS = 2
BATCH = 3
"""Sequences of a microbatch: nanobatches of two and of one."""


class Attending(NamedTuple):
    """Sizes of one call of attention."""

    name: str
    queries: int
    keys: int
    heads: int
    shared_heads: int
    dimension: int
    alibi: bool = False
    """Whether scores fall with the distance, for which a GPU runs another kernel."""


ATTENTION = (
    Attending("as many heads", 256, 256, 8, 8, 128),
    Attending("shared heads (GQA)", 256, 256, 8, 2, 128),
    Attending("shared heads, head of 64", 256, 256, 8, 2, 64),
    Attending("last chunk of a sequence", 128, 512, 8, 2, 128),
    Attending("first chunk of a sequence", 128, 128, 8, 2, 128),
    Attending("ALiBi", 250, 250, 6, 6, 128, alibi=True),
    Attending("ALiBi, last chunk of a sequence", 128, 500, 8, 8, 64, alibi=True),
)


def attention(place: torch.device, cases: Sequence[Attending] = ATTENTION) -> Table:
    """Attention of a GPU in bf16 beside the CPU's in fp32, forward and backward."""
    rows = []
    for case in cases:
        generator = torch.Generator().manual_seed(SEED)
        sizes = [(case.queries, case.heads), *[(case.keys, case.shared_heads)] * 2, (case.queries, case.heads)]
        tensors = [torch.randn(2, *size, case.dimension, generator=generator).bfloat16() for size in sizes]
        attended = _attended(case, [t.to(place) for t in tensors])
        rows.append((case.name, *_departures(attended, _attended(case, [t.float() for t in tensors])), FROM_FP32))
    columns = ("case", "output", "query", "key", "value", *_JUDGED)
    return Table("Attention", f"Beside fp32 on the CPU. {_SAYS}", columns, [_judged(row) for row in rows])


def execution(model: Model, degrees: Parallelism, tokens: int, place: torch.device) -> Table:
    """Loss and gradients of a stage: fp32 in sequence on the CPU, bf16 here in sequence and by a plan."""
    graph = extract(model, degrees, BATCH - BATCH % 2, tokens * degrees.cp)[Batch.NANOBATCH]
    choices = tuple(
        Choice(partition=p.name, sm_count=4 + n, launch=p.operators[n % len(p.operators)].name)
        for n, p in enumerate(detect_partitions(graph, recomputation=Recomputation.STAGE))
    )
    overlap = Schedule(Execution.OVERLAP, choices)
    torch.manual_seed(SEED)
    here, reference = (_stage(model, degrees, tokens, graph, dtype) for dtype in (torch.bfloat16, torch.float32))
    with torch.no_grad():
        for ours, wide in zip(here.parameters(), reference.parameters(), strict=True):
            wide.copy_(ours)
    ids = torch.randint(0, model.vocab_size, (BATCH, tokens))
    expected = _trained(reference, ids, SEQUENTIAL)
    here = here.to(place)
    sequential = _trained(here, ids.to(place), SEQUENTIAL)
    planned = _trained(here, ids.to(place), MicrobatchSchedule(overlap, overlap))
    rows = [
        ("in sequence, from fp32 on the CPU", *_departures(sequential, expected), FROM_FP32),
        ("by a plan, from fp32 on the CPU", *_departures(planned, expected), FROM_FP32),
        ("by a plan, from in sequence", *_departures(planned, sequential), FROM_SEQUENTIAL),
    ]
    says = f"{model.name}, {LAYERS} layers, {BATCH} x {tokens} tokens, TP{degrees.tp} and CP{degrees.cp} of a loopback."
    return Table(
        "Execution", f"{says} {_SAYS}", ("case", "loss", "gradients", *_JUDGED), [_judged(row) for row in rows]
    )


def _stage(model: Model, degrees: Parallelism, tokens: int, graph: BlockGraph, dtype: torch.dtype) -> StageModel:
    axes = {"tp": degrees.tp, "cp": degrees.cp}
    mesh = {axis: LoopbackCommunicator(axis, size) for axis, size in axes.items() if size > 1}
    return StageModel(
        model,
        shard_of(model, degrees, tokens * degrees.cp),
        Mesh(**mesh),
        StageShape(layers=LAYERS, first=True, last=True),
        dtype,
        recomputation=Recomputation.STAGE,
        graph=graph,
        default_sm_count=20,
    )


def _trained(stage: StageModel, ids: Tensor, schedule: MicrobatchSchedule) -> list[list[Tensor]]:
    """The loss, and the gradients of all weights, which are taken out."""
    loss = stage(ids, ids, schedule)
    loss.backward()
    gradients = [gradient.double().cpu() for _, gradient in weight_gradients(stage)]
    for _, gradient in weight_gradients(stage):
        gradient.zero_()
    return [[loss.detach().double().cpu()], gradients]


def _attended(case: Attending, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    query, key, value, gradient = tensors
    slopes = alibi_slopes(case.heads).to(query.device) if case.alibi else None
    part = _attend(query, key, value, slopes)
    tensors = [part.output, *_attend_backward(gradient, (query, key, value), part, slopes)]
    return [[t.double().cpu()] for t in tensors]


def _departures(computed: list[list[Tensor]], expected: list[list[Tensor]]) -> list[float]:
    """Largest difference over largest value of the worst tensor of each list; no number if that of any is none."""
    return [
        float(torch.stack([(f - e).abs().max() / e.abs().max() for f, e in zip(*lists, strict=True)]).max())
        for lists in zip(computed, expected, strict=True)
    ]


def _judged(row: tuple[object, ...]) -> tuple[object, ...]:
    """The row, and whether all of its departures are allowed; one that is not a number is not."""
    *_, allowed = row
    departures = [cell for cell in row[:-1] if isinstance(cell, float)]
    return *row, "yes" if all(d <= allowed for d in departures) else "NO"
