"""Steps of an instruction as software runs them that overlaps collectives of tensor and context parallelism.

Userbuffers of Transformer Engine cut a matrix product in parts and exchange them meanwhile: an all-gather runs beside
the products that read what it gathers, a reduce-scatter beside the product whose output it scatters. Ring attention
sends keys and values of one part of the sequence while it attends to those of another.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kareus.graph.program import Step
from kareus.graph.records import (
    CONTEXT_PARALLEL,
    TENSOR_PARALLEL,
    Collective,
    CollectiveKind,
    Operator,
    OperatorKind,
    PlacedCollective,
)
from kareus.workload.software import Software, TensorOverlap

ATTENDING = (OperatorKind.ATTENTION, OperatorKind.ATTENTION_BACKWARD)


def overlapped(steps: Sequence[Step], software: Software) -> list[Step]:
    """Return the steps with collectives beside what the software runs beside them; what they compute is the same."""
    found: list[Step] = []
    waiting: Step | None = None  # a gather that runs beside what reads it
    for number, step in enumerate(steps):
        own = replace(step, collective=None, launch=0, sm_count=0)
        kind = _overlap(step.collective, software)
        if waiting is not None:
            own, done = _beside_reader(own, waiting)
            found += done
            waiting = None
        if kind is None:
            found.append(replace(own, collective=step.collective, launch=_launch(step, own), sm_count=step.sm_count))
        elif kind is CollectiveKind.ALL_GATHER and number + 1 < len(steps):
            found += [own] if own.operators else []
            waiting = step
        else:
            found += _beside_writer(own, step)
    if waiting is not None:
        found.append(Step(collective=waiting.collective, sm_count=waiting.sm_count))
    return [step for step in found if step.operators or step.collective]


def placed(steps: Iterable[Step], nodes: int) -> list[Step]:
    """Return the steps with ranks of context parallelism on as many nodes, one on each; on one node as they are."""
    if nodes == 1:
        return list(steps)
    return [
        replace(step, collective=_on_nodes(step.collective, nodes))
        if step.collective is not None and step.collective.group == CONTEXT_PARALLEL
        else step
        for step in steps
    ]


def _on_nodes(collective: Collective, nodes: int) -> PlacedCollective:
    return PlacedCollective(
        kind=collective.kind,
        group=collective.group,
        group_size=collective.group_size,
        message_bytes=collective.message_bytes,
        fused=collective.fused,
        nodes=nodes,
        per_node=collective.group_size // nodes,
    )


def _overlap(collective: Collective | None, software: Software) -> CollectiveKind | None:
    """Kind of a collective that the software overlaps; None of others."""
    if collective is None or collective.kind is CollectiveKind.ALL_REDUCE:
        return None
    overlaps = {
        TENSOR_PARALLEL: software.tensor_overlap is TensorOverlap.USERBUFFERS,
        CONTEXT_PARALLEL: software.context_overlap,
    }
    return collective.kind if overlaps.get(collective.group, False) else None


def _launch(step: Step, own: Step) -> int:
    """Launch of a step's collective after operators at its beginning became a step of their own."""
    return max(step.launch - (len(step.operators) - len(own.operators)), 0)


def _beside_reader(own: Step, gathering: Step) -> tuple[Step, list[Step]]:
    """Put a gather beside the products, or the attention, that come first; return what is left, and the new steps."""
    assert gathering.collective is not None
    operators = own.operators
    first = next((n for n, o in enumerate(operators) if _reads(o, gathering.collective)), None)
    if first is None:
        return own, [Step(collective=gathering.collective, sm_count=gathering.sm_count)]
    last = first + 1
    while last < len(operators) and gathering.collective.fused > 1 and _reads(operators[last], gathering.collective):
        last += 1
    before = [Step(operators=operators[:first])] if first else []
    beside = Step(operators=operators[first:last], collective=gathering.collective, sm_count=gathering.sm_count)
    return Step(operators=operators[last:]), [*before, beside]


def _beside_writer(own: Step, scattering: Step) -> list[Step]:
    """Put a reduce-scatter beside the last product that it needs, and what follows that."""
    collective, operators = scattering.collective, own.operators
    assert collective is not None
    needed = _launch(scattering, own)
    products = [n for n, o in enumerate(operators[:needed]) if _reads(o, collective)]
    if not products:
        return [replace(own, collective=collective, launch=needed, sm_count=scattering.sm_count)]
    place = products[-1]
    before = [Step(operators=operators[:place])] if place else []
    beside = Step(operators=operators[place:], collective=collective, sm_count=scattering.sm_count)
    return [*before, beside, *_last_part(collective, scattering.sm_count)]


def _last_part(collective: Collective, sm_count: int) -> list[Step]:
    """What a reduce-scatter sends after the product has computed its last part: one of as many as there are GPUs."""
    if collective.group != TENSOR_PARALLEL:
        return []
    part = replace(collective, message_bytes=collective.message_bytes // collective.group_size)
    return [Step(collective=part, sm_count=sm_count)]


def _reads(operator: Operator, collective: Collective) -> bool:
    if collective.group == CONTEXT_PARALLEL:
        return operator.kind in ATTENDING
    return operator.kind is OperatorKind.GEMM
