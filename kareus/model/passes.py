"""Forward and backward of layers operator by operator, in the caller's order.

A pass is a generator over the operators of one nanobatch (or microbatch). It yields what it is about to launch and
stops at every collective; the caller launches the collective at any time, and resumes the pass, which then waits.
Passes run without autograd (`torch.no_grad`): every operator is a function that brings its backward.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kareus.graph.records import CollectiveKind
from kareus.model.block import OUTPUT, STREAM, SUM, TABLE, UPDATE
from kareus.model.communication import Boundary, Communicator, Handle, Tensors, launch
from kareus.model.functions import Context, Later, weight_gradients_put_off
from kareus.model.layers import RotaryTable
from kareus.model.steps import LayerStep, Start, as_tuple


class CollectiveCall:
    """A collective that a pass has reached; a segment ends there."""

    def __init__(self, kind: CollectiveKind, communicator: Communicator, tensors: Sequence[Tensor]) -> None:
        self.kind = kind
        self.communicator = communicator
        self._tensors = tensors
        self._handle: Handle | None = None

    @property
    def launched(self) -> bool:
        """Whether it is in flight."""
        return self._handle is not None

    def launch(self, sm_count: int | None) -> None:
        """Start it concurrently with what is launched from now on."""
        self._handle = launch(self.kind, self.communicator, self._tensors, sm_count)

    def wait(self) -> Tensors:
        """Make later launches wait for the results; the pass calls it when it is resumed."""
        assert self._handle is not None, "a collective is launched before its pass is resumed"
        return self._handle.wait()


class Ready(NamedTuple):
    """Tensors of the next collective are computed, while weight gradients of its segment are not."""

    exchange: CollectiveCall


PassEvent = Start | Ready | CollectiveCall
Pass = Generator[PassEvent, None, Tensor]
"""Returns the hidden states that leave the layers, or the gradient of those that entered."""


class _OperatorRecord(NamedTuple):
    """State of one operator that its backward needs."""

    step: LayerStep
    context: Context
    """What its function keeps."""
    shards: Tensors
    """This rank's shards of gathered inputs, to be gathered again."""
    gathered: list[Tensor]
    """List in which the operator's backward finds them."""


_RESIDUAL = Start("residual", memory_bound=True)
"""The addition after the last layer."""

LayerDone = Callable[[int], None]

Tape = list[list[_OperatorRecord]]
"""Records by layer, in the order of forward."""


def forward_pass(
    layers: Sequence[Sequence[LayerStep]],
    hidden: Tensor,
    table: RotaryTable,
    tape: Tape | None = None,
    output: Tensor | None = None,
) -> Pass:
    """Run layers forward, [batch, tokens, hidden] to the same; record them if there is a tape.

    Args:
        layers: steps of each.
        hidden: enters them.
        table: angles of the tokens.
        tape: takes what backward needs.
        output: memory for the result; None takes new memory.
    """
    stream, update = hidden, None
    for steps in layers:
        values: dict[str, Any] = {STREAM: stream, UPDATE: update, TABLE: table}
        records: list[_OperatorRecord] = []
        for step in steps:
            yield from _forward(step, values, None if tape is None else records)
            for name in step.finished:
                del values[name]
        stream, update = values[SUM], values[OUTPUT]
        if tape is not None:
            tape.append(records)
    yield _RESIDUAL
    return stream if update is None else torch.add(stream, update, out=output)


def backward_pass(
    tape: Tape, gradient: Tensor, later: Later | None = None, layer_done: LayerDone | None = None
) -> Pass:
    """Run a tape backward, using it up; from the gradient of what left the layers to that of what entered.

    Residual stream and update of a layer have one gradient, since nothing but their sum is read.

    Args:
        tape: what `forward_pass` recorded.
        gradient: [batch, tokens, hidden].
        later: takes what adds the weight gradients of matrix products, if they are not of this pass.
        layer_done: called with the number of each layer, from 0, whose weight gradients this pass has added.
    """
    while tape:
        records = tape.pop()
        gradients = {SUM: gradient, OUTPUT: gradient}
        gathering: CollectiveCall | None = None
        while records:
            record = records.pop()
            following = _regathering(records[-1]) if records else None
            yield from _backward(record, gradients, gathering, following, later)
            gathering = following
        gradient = gradients[STREAM]
        if layer_done is not None:
            layer_done(len(tape))
    return gradient


def recomputed_pass(
    layers: Sequence[Sequence[LayerStep]],
    hidden: Tensor,
    table: RotaryTable,
    gradient: Tensor,
    later: Later | None = None,
    layer_done: LayerDone | None = None,
) -> Pass:
    """Run layers forward again from what entered them, recording, then backward, as `backward_pass` does."""
    tape: Tape = []
    yield from forward_pass(layers, hidden, table, tape)
    return (yield from backward_pass(tape, gradient, later, layer_done))


def _forward(
    step: LayerStep, values: dict[str, Any], records: list[_OperatorRecord] | None
) -> Generator[PassEvent, None, None]:
    operator = step.operator
    inputs = [values[name] for name in step.reads]
    shards: Tensors = ()
    before, after = operator.before, operator.after
    if before is not None and before.forward is not None:
        shards = tuple(inputs[before.first :])
        inputs[before.first :] = yield from _exchanged(before, before.forward, shards)
    yield step.forward
    context, gathered = Context(), list[Tensor]()
    if shards:
        inputs.append(lambda: tuple(gathered))
    outputs = as_tuple(operator.function.forward(context, *operator.arguments(*inputs)))
    if records is not None:
        records.append(_OperatorRecord(step, context, shards, gathered))
    if after is not None and after.forward is not None:
        outputs = yield from _exchanged(after, after.forward, outputs)
    values.update(zip(step.writes, outputs, strict=True))


def _regathering(record: _OperatorRecord) -> CollectiveCall | None:
    """Return the collective that gathers again the inputs that `record` did not keep."""
    before = record.step.operator.before
    if before is None or not record.shards:
        return None
    return CollectiveCall(CollectiveKind.ALL_GATHER, before.communicator, record.shards)


def _backward(
    record: _OperatorRecord,
    gradients: dict[str, Tensor],
    gathering: CollectiveCall | None,
    following: CollectiveCall | None,
    later: Later | None,
) -> Generator[PassEvent, None, None]:
    """Run one operator backward.

    Args:
        record: of the operator.
        gradients: by name of the value; taken from and added to.
        gathering: gathers inputs that were not kept, if there are any.
        following: does so for the operator that is next in backward.
        later: see `backward_pass`.
    """
    step = record.step
    arriving = [gradients.pop(name) for name in step.writes]
    before = step.operator.before
    if gathering is not None:
        yield gathering
        record.gathered.extend(gathering.wait())
    yield step.backward
    leaving, own = _leaving(record, arriving)
    exchange = None
    if before is not None and before.backward is not None:
        passing = [g.contiguous() for g in leaving[before.first :]]
        exchange = CollectiveCall(before.backward, before.communicator, passing)
    if later is not None:
        later += own
    elif step.weight_gradient is not None:
        upcoming = exchange or following
        if upcoming is not None:
            yield Ready(upcoming)
        yield step.weight_gradient
        for add in own:
            add()
    if exchange is not None and before is not None:
        yield exchange
        leaving[before.first :] = exchange.wait()
    gradients.update(zip(step.has_gradient, leaving, strict=True))


def _leaving(record: _OperatorRecord, arriving: list[Tensor]) -> tuple[list[Tensor], Later]:
    """Gradients of an operator's inputs, and what adds those of the weights of a matrix product."""
    step = record.step
    if step.weight_gradient is None:
        leaving = _gradients(record, arriving)
        record.gathered.clear()
        return leaving, []
    with weight_gradients_put_off() as own:
        return _gradients(record, arriving), own


def _gradients(record: _OperatorRecord, arriving: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of an operator's inputs; what its function kept is used up."""
    leaving = as_tuple(record.step.operator.function.backward(record.context, *arriving))
    record.context.saved_tensors = ()
    return list(leaving[: len(record.step.has_gradient)])


def _exchanged(boundary: Boundary, kind: CollectiveKind, tensors: Tensors) -> Generator[PassEvent, None, Tensors]:
    exchange = CollectiveCall(kind, boundary.communicator, tensors)
    yield exchange
    return exchange.wait()
