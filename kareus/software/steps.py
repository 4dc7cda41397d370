"""Steps of an instruction as software runs them that overlaps collectives of tensor and context parallelism.

Userbuffers of Transformer Engine cut a matrix product in parts and exchange them meanwhile: an all-gather runs beside
the products that read what it gathers, a reduce-scatter beside the product whose output it scatters. Ring attention
sends keys and values of one part of the sequence while it attends to those of another. Megatron without userbuffers
gathers the input of a product beside the product's input gradient.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from kareus.graph.records import (
    CONTEXT_PARALLEL,
    EXPERT_PARALLEL,
    INPUT_GRADIENT_SUFFIX,
    TENSOR_PARALLEL,
    Collective,
    CollectiveKind,
    Operator,
    OperatorKind,
    Step,
)
from kareus.software.record import Software, TensorOverlap

Operators = tuple[Operator, ...]
ATTENDING = (OperatorKind.ATTENTION, OperatorKind.ATTENTION_BACKWARD)


def overlapped(steps: Sequence[Step], software: Software) -> list[Step]:
    """Return the steps with collectives beside what the software runs beside them; what they compute is the same."""
    joined = list[Step]()
    for has_along, run in itertools.groupby(steps, key=lambda step: bool(step.along)):
        if has_along:
            joined += [replace(step, within=tuple(_overlapped(step.within, software))) for step in run]
        else:
            joined += _overlapped(list(run), software)
    return joined


def _overlapped(steps: Sequence[Step], software: Software) -> list[Step]:
    steps = _with_exchanges(steps, software)
    if software.tensor_overlap is TensorOverlap.NOTHING:
        return [step if step.collective is None else replace(step, launch=len(step.operators)) for step in steps]
    if software.gather_beside_dgrad and software.tensor_overlap is TensorOverlap.NONE:
        steps = _split_gathers(steps)
    joined: list[Step] = []
    waiting: Step | None = None  # a gather that runs beside what reads it
    for number, step in enumerate(steps):
        kind = _overlap(step.collective, software)
        if kind is None and waiting is None:
            joined.append(step)
            continue
        alone = Step(operators=step.operators)
        if waiting is not None:
            alone, done = _beside_reader(alone, waiting)
            joined += done
            waiting = None
        if kind is None:
            launch = _launch(step, alone)
            joined.append(
                Step(operators=alone.operators, collective=step.collective, launch=launch, sm_count=step.sm_count)
            )
        elif kind is CollectiveKind.ALL_GATHER and number + 1 < len(steps):
            joined += [alone] if alone.operators else []
            waiting = step
        else:
            joined += _beside_writer(alone, step)
    if waiting is not None:
        joined.append(Step(collective=waiting.collective, sm_count=waiting.sm_count))
    return [step for step in joined if step.operators or step.collective]


def _with_exchanges(steps: Sequence[Step], software: Software) -> list[Step]:
    """Return the steps with exchanges of tokens as the software runs them."""
    steps = [dispatched(step, software) for step in steps]
    if software.delayed_weight_gradients:
        steps = _with_delayed_gradients(steps)
    if software.hidden_exchange:
        steps = [part for step in steps for part in _with_hidden_exchange(step, software.hidden_exchange)]
    return steps


def dispatched(step: Step, software: Software) -> Step:
    """Return a step whose exchange of tokens, if it has one, is on the SMs that the software gives it."""
    if not _exchanges_tokens(step):
        return step
    sm_count = software.exchange_sms(step.sm_count)
    return step if sm_count == step.sm_count else replace(step, sm_count=sm_count)


def _exchanges_tokens(step: Step) -> bool:
    return step.collective is not None and step.collective.group == EXPERT_PARALLEL


def _with_delayed_gradients(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with gradients of weights beside the next exchange of tokens that follows them.

    Those that another collective hides stay beside that one. The step that has an exchange may then have two
    operators of a name, of two blocks.
    """
    delayed, waiting = list[Step](), list[Operator]()
    for step in steps:
        gradients = [operator for operator in step.operators if operator.is_weight_gradient]
        others = tuple(operator for operator in step.operators if not operator.is_weight_gradient)
        if _exchanges_tokens(step):
            delayed.append(replace(step, operators=(*others, *waiting, *gradients), launch=len(others)))
            waiting = []
        elif step.collective is None:
            delayed += [replace(step, operators=others)] if others else []
            waiting += gradients
        else:
            delayed.append(step)
    return [*delayed, Step(operators=tuple(waiting))] if waiting else delayed


def _with_hidden_exchange(step: Step, share: float) -> list[Step]:
    """Cut an exchange of tokens in what runs beside computation and what does not.

    What runs beside it belongs to another microbatch; the operators of the same step stand for it, which are as many.
    """
    collective = step.collective
    if collective is None or not _exchanges_tokens(step) or not step.operators:
        return [step]
    hidden = replace(collective, message_bytes=round(share * collective.message_bytes))
    left = replace(collective, message_bytes=collective.message_bytes - hidden.message_bytes)
    beside = replace(step, collective=hidden, launch=0)
    return [beside, Step(collective=left, sm_count=step.sm_count)] if left.message_bytes else [beside]


def _overlap(collective: Collective | None, software: Software) -> CollectiveKind | None:
    """Kind of a collective that the software overlaps; None of others."""
    if collective is None or collective.kind is CollectiveKind.ALL_REDUCE:
        return None
    overlaps = {
        TENSOR_PARALLEL: software.tensor_overlap is TensorOverlap.USERBUFFERS,
        CONTEXT_PARALLEL: software.context_overlap,
    }
    return collective.kind if overlaps.get(collective.group, False) else None


def _split_gathers(steps: Sequence[Step]) -> list[Step]:
    """Return the steps of a backward that gathers gradients by themselves, and inputs beside the next input gradients.

    The weight gradient that reads the input runs beside the reduce-scatter of the input gradient.
    """
    split: list[Step] = []
    waiting: Step | None = None  # the gather of an input
    for step in steps:
        collective = step.collective
        if _gathers_both(collective):
            assert collective is not None
            half = replace(collective, message_bytes=collective.message_bytes // collective.fused, fused=1)
            waiting = Step(collective=half, sm_count=step.sm_count)
            split.append(replace(step, collective=half))
        elif waiting is not None and (place := _input_gradient(step)) is not None:
            before, beside, after = _cut(step.operators, place)
            split += [Step(operators=before)] if before else []
            split.append(replace(waiting, operators=beside))
            split.append(replace(step, operators=after, launch=max(step.launch - place - 1, 0)))
            waiting = None
        else:
            split.append(step)
    return [*split, waiting] if waiting is not None else split


def _cut(operators: Operators, place: int) -> tuple[Operators, Operators, Operators]:
    return operators[:place], operators[place : place + 1], operators[place + 1 :]


def _gathers_both(collective: Collective | None) -> bool:
    """Whether a gather of tensor parallelism has both an input and the gradient of an output."""
    if collective is None or collective.group != TENSOR_PARALLEL:
        return False
    return collective.kind is CollectiveKind.ALL_GATHER and collective.fused > 1


def _input_gradient(step: Step) -> int | None:
    """Place of the input gradient that a step's reduce-scatter of tensor parallelism waits for; None without one."""
    collective = step.collective
    if (
        collective is None
        or collective.group != TENSOR_PARALLEL
        or collective.kind is not CollectiveKind.REDUCE_SCATTER
    ):
        return None
    gradients = [n for n, o in enumerate(step.operators[: step.launch]) if o.name.endswith(INPUT_GRADIENT_SUFFIX)]
    return gradients[-1] if gradients else None


def _launch(step: Step, left: Step) -> int:
    """Launch of a step's collective after operators at its beginning became a step of their own."""
    return max(step.launch - (len(step.operators) - len(left.operators)), 0)


def _beside_reader(reader: Step, gathering: Step) -> tuple[Step, list[Step]]:
    """Put a gather beside the products, or the attention, that come first; return what is left, and the new steps."""
    assert gathering.collective is not None
    operators = reader.operators
    first = next((n for n, o in enumerate(operators) if _reads(o, gathering.collective)), None)
    if first is None:
        return reader, [Step(collective=gathering.collective, sm_count=gathering.sm_count)]
    last = first + 1
    while last < len(operators) and gathering.collective.fused > 1 and _reads(operators[last], gathering.collective):
        last += 1
    before = [Step(operators=operators[:first])] if first else []
    beside = Step(operators=operators[first:last], collective=gathering.collective, sm_count=gathering.sm_count)
    return Step(operators=operators[last:]), [*before, beside]


def _beside_writer(writer: Step, scattering: Step) -> list[Step]:
    """Put a reduce-scatter beside the last product that it needs, and what follows that."""
    collective, operators = scattering.collective, writer.operators
    assert collective is not None
    needed = _launch(scattering, writer)
    products = [n for n, o in enumerate(operators[:needed]) if _reads(o, collective)]
    if not products:
        return [replace(writer, collective=collective, launch=needed, sm_count=scattering.sm_count)]
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
