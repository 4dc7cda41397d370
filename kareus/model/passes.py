"""Forward and backward of layers operator by operator, in the caller's order.

A pass is a generator over the operators of one nanobatch (or microbatch). It yields what it is about to launch and
stops at every collective; the caller launches the collective at any time, and resumes the pass, which then waits.
Passes run below autograd (`kareus.runtime.overlap`): every operator is a function that brings its backward.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kareus.model.block import BALANCE, OUTPUT, STREAM, SUM, TABLE, UPDATE
from kareus.model.communication import Exchange, Handle, Tensors
from kareus.model.functions import Context, Later, weight_gradients_put_off
from kareus.model.layers import RotaryTable
from kareus.model.routing import Balance
from kareus.model.steps import LAYERS, LayerStep, Start


class CollectiveCall:
    """A collective that a pass has reached; a segment ends there."""

    __slots__ = ("_handle", "_tensors", "exchange", "launched")

    def __init__(self, exchange: Exchange, tensors: Sequence[Any]) -> None:
        self.exchange = exchange
        self.launched = False
        """Whether it is in flight."""
        self._tensors = tensors
        self._handle: Handle | None = None

    def launch(self, sm_count: int | None) -> None:
        """Start it concurrently with what is launched from now on."""
        self._handle = self.exchange.launch(self._tensors, sm_count)
        self.launched = True

    def wait(self) -> Tensors:
        """Make later launches wait for the results; the pass calls it once, when it is resumed.

        The memory of what was sent is free for them.
        """
        handle = self._handle
        assert handle is not None, "a collective is launched before its pass is resumed"
        self._handle, self._tensors = None, ()
        return handle.wait()


class Ready(NamedTuple):
    """Tensors of the next collective are computed, while weight gradients of its segment are not."""

    exchange: CollectiveCall


class Cut(NamedTuple):
    """A segment ends, without a collective."""


PassEvent = Start | Ready | Cut | CollectiveCall
Pass = Generator[PassEvent, None, Tensor]
"""Returns the hidden states that leave the layers, or the gradient of those that entered."""


_NONE: Tensors = ()
_NOWHERE: list[Tensor] = []
"""List of records whose operators gather nothing; stays empty, and is shared, since a list for each costs the host."""


class _OperatorRecord(Context):
    """State of one operator that its backward needs, with what its function keeps."""

    shards: Tensors = _NONE
    """This rank's shards of gathered inputs, to be gathered again."""
    gathered: list[Tensor] = _NOWHERE
    """List in which the operator's backward finds them."""
    inputs: Tensors = _NONE
    """Local inputs of an operator that runs again in backward; else nothing, since the function keeps what it needs."""
    splits: tuple[Any, ...] = ()
    """Of what goes to other GPUs row by row, the rows for each and the rows from each."""
    forgotten: Tensor | None = None
    """Stand-in among saved tensors of an input that the operator before gives again in backward (`_again`)."""

    def __init__(self, step: LayerStep) -> None:
        self.step = step


_CUT = Cut()
_NO_LATER: Later = []
"""Of an operator without weight gradients; stays empty."""
_RESIDUAL = Start("residual", memory_bound=True)
"""The addition after the last layer."""

Layers = Sequence[Sequence[LayerStep]]
"""Steps of each layer, in order."""
Tape = list[list[_OperatorRecord]]
"""Records by layer, in the order of forward."""
BlockDone = Callable[[int], None]
"""Called with the number of each block, from 0, whose weight gradients a backward pass has added."""


def forward_pass(
    layers: Layers,
    hidden: Tensor,
    table: RotaryTable,
    tape: Tape | None = None,
    output: Tensor | None = None,
    entered: list[Tensors] | None = None,
    balance: Balance | None = None,
) -> Pass:
    """Run layers forward, [batch, tokens, hidden] to the same.

    Args:
        layers: steps of each.
        hidden: enters them.
        table: angles of the tokens.
        tape: takes what backward needs, if it is kept.
        output: memory for the result; None takes new memory.
        entered: takes the residual stream that every block begins with, if blocks are recomputed by `blockwise_pass`.
        balance: counts what routers of experts choose, if that is balanced.
    """
    stream, update = yield from _through(layers, hidden, table, tape, entered, balance)
    yield _RESIDUAL
    return torch.add(stream, update, out=output)


def backward_pass(
    tape: Tape, gradient: Tensor, later: Later | None = None, block_done: BlockDone | None = None
) -> Pass:
    """Run a tape backward, using it up; from the gradient of what left the layers to that of what entered.

    Args:
        tape: what `forward_pass` recorded.
        gradient: [batch, tokens, hidden].
        later: takes what adds the weight gradients of matrix products, if they are not of this pass.
        block_done: told of every block; the tape then has whole ones.
    """
    gradients = yield from _through_backward(tape, _gradients_of_layer(gradient), later, block_done)
    return gradients.get(STREAM, gradient)


def recomputed_pass(
    layers: Layers,
    hidden: Tensor,
    table: RotaryTable,
    gradient: Tensor,
    later: Later | None = None,
    block_done: BlockDone | None = None,
    balance: Balance | None = None,
) -> Pass:
    """Run layers forward again from what entered them, recording, then backward, as `backward_pass` does."""
    tape: Tape = []
    yield from forward_pass(layers, hidden, table, tape, balance=balance)
    return (yield from backward_pass(tape, gradient, later, block_done))


def blockwise_pass(
    layers: Layers,
    entered: list[Tensors],
    table: RotaryTable,
    gradient: Tensor,
    later: Later | None = None,
    block_done: BlockDone | None = None,
    balance: Balance | None = None,
) -> Pass:
    """Run each block forward again and then backward, the last block first.

    The norm that a block begins with is the last of its operators to run backward, after a collective; it waits until
    the block before has run forward, as in the operator graph, where it begins the segment after the collective.

    Args:
        layers: steps of each layer.
        entered: what `forward_pass` took, each one tensor, or several that are joined along the batch; used up.
        table: angles of the tokens.
        gradient: [batch, tokens, hidden], of what left the layers.
        later: as in `backward_pass`, likewise the next.
        block_done: see `later`.
        balance: as in `forward_pass`.
    """
    norm: list[_OperatorRecord] = []
    gradients = {STREAM: gradient}
    while entered:
        tape: Tape = []
        parts = entered.pop()
        hidden = parts[0] if len(parts) == 1 else torch.cat(parts)
        first = LAYERS * len(entered)
        yield from _through(layers[first : first + LAYERS], hidden, table, tape, None, balance)
        if norm:
            yield from _unwound(norm, gradients, later)
            if block_done is not None:
                block_done(len(entered) + 1)
        attention, *above = tape
        arriving = _gradients_of_layer(gradients[STREAM])
        gradients = _of_layer_before((yield from _through_backward(above, arriving, later)))
        norm, others = attention[:1], attention[1:]
        yield from _unwound(others, gradients, later)
    yield from _unwound(norm, gradients, later)
    if block_done is not None:
        block_done(0)
    return gradients[STREAM]


def _through(  # noqa: C901, PLR0912 - see its docstring
    layers: Layers,
    hidden: Tensor,
    table: RotaryTable,
    tape: Tape | None = None,
    entered: list[Tensors] | None = None,
    balance: Balance | None = None,
) -> Generator[PassEvent, None, tuple[Tensor, Tensor]]:
    """Run layers forward; returns the residual stream and the update that has yet to be added to it.

    All of an operator is here, without functions of its own: calls cost the host as much as what they would do.
    """
    stream, update = hidden, None
    for number, steps in enumerate(layers):
        values: dict[str, Any] = {STREAM: stream, UPDATE: update, TABLE: table, BALANCE: balance}
        records: list[_OperatorRecord] = []
        for step in steps:
            inputs: tuple[Any, ...] = (values[step.read],) if step.read is not None else step.taken(values)
            local, record = inputs, _OperatorRecord(step)
            if step.cuts:
                yield _CUT
            if step.gathers is not None:
                local, record.shards, record.gathered = inputs[: step.first], inputs[step.first :], []
                call = CollectiveCall(step.gathers, record.shards)
                yield call
                inputs = (*local, *call.wait(), record.gathered.copy)
            yield step.forward
            outputs = step.run_forward(record, *inputs, *step.settings)
            if tape is not None:
                if step.again is not None:
                    record.saved_tensors, record.inputs = (), local
                elif records and records[-1].step.again is not None:
                    record.forgotten = _forget(record, local[0])
                records.insert(step.place, record)
            if step.reduces is not None:
                call = CollectiveCall(step.reduces, (outputs, *record.splits))
                yield call
                (outputs,) = call.wait()
            if step.written is not None:
                values[step.written] = outputs
            else:
                values.update(zip(step.writes, outputs, strict=True))
            for name in step.finished:
                del values[name]
        stream, update = values[SUM], values[OUTPUT]
        if tape is not None:
            tape.append(records)
        if entered is not None and number % LAYERS == 0:
            entered.append((stream,))
    assert update is not None, "there is a layer"
    return stream, update


def _through_backward(
    tape: Tape, gradients: dict[str, Tensor], later: Later | None, block_done: BlockDone | None = None
) -> Generator[PassEvent, None, dict[str, Tensor]]:
    """Run a tape backward, using it up; returns the gradients of what entered its first layer."""
    while tape:
        yield from _unwound(tape.pop(), gradients, later)
        if block_done is not None and len(tape) % LAYERS == 0:
            block_done(len(tape) // LAYERS)
        if tape:
            gradients = _of_layer_before(gradients)
    return gradients


def _of_layer_before(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients that a layer's backward begins with, from those of what enters the next; side by side they differ."""
    return {SUM: gradients[STREAM], OUTPUT: gradients[UPDATE]}


def _gradients_of_layer(gradient: Tensor) -> dict[str, Tensor]:
    """Gradients that a layer's backward begins with: nothing but the sum of residual stream and update is read."""
    return {SUM: gradient, OUTPUT: gradient}


def _unwound(  # noqa: C901 - as `_through`
    records: list[_OperatorRecord], gradients: dict[str, Tensor], later: Later | None
) -> Generator[PassEvent, None, None]:
    """Run records of one layer backward, using them up; gradients by name are taken from `gradients` and added to."""
    gathering: CollectiveCall | None = None
    while records:
        record = records.pop()
        step = record.step
        following = again = None
        if records:
            below = records[-1]
            if below.step.regathers is not None:
                following = CollectiveCall(below.step.regathers, below.shards)
            if below.step.again is not None:  # it runs forward again first, since this one reads its output
                again = below
        if step.gathers_gradients is not None:
            yield from _arriving(record, step.gathers_gradients, records, gradients)
        if gathering is not None:
            yield gathering
            record.gathered.extend(gathering.wait())
        yield step.backward
        leaving, put_off = _leaving(record, gradients)
        exchange = None
        if step.reduces_gradients is not None:
            exchange = CollectiveCall(
                step.reduces_gradients, [g.contiguous() for g in leaving[step.first : len(step.has_gradient)]]
            )
        if again is not None:
            yield from _again(again, record, following)
        if later is not None:
            later += put_off
        elif put_off:
            yield from _adding(step, put_off, exchange or (None if again else following))
        if exchange is not None:
            yield exchange
            leaving = (*leaving[: step.first], *exchange.wait())
        gradients.update(zip(step.has_gradient, leaving, strict=False))  # what is not an input has None
        del record, leaving, put_off, exchange  # so that their memory is free for what follows
        if step.cuts:
            yield _CUT
        gathering = None if again else following


def _forget(record: _OperatorRecord, tensor: Tensor) -> Tensor:
    """Replace `tensor` in what a function keeps by one of its shape without memory, and return that."""
    stand_in = tensor.new_empty(1).expand(tensor.shape)
    record.saved_tensors = tuple(stand_in if saved is tensor else saved for saved in record.saved_tensors)
    return stand_in


def _again(
    record: _OperatorRecord, reading: _OperatorRecord, gathering: CollectiveCall | None
) -> Generator[PassEvent, None, None]:
    """Run the operator of `record` forward again, for its own backward and for that of `reading`.

    Args:
        record: of the operator.
        reading: of the one that reads its output, and has forgotten it.
        gathering: gathers inputs that were not kept, if there are any.
    """
    step, forgotten = record.step, reading.forgotten
    assert step.again is not None
    assert forgotten is not None
    inputs: list[Any] = list(record.inputs)
    if gathering is not None:
        yield gathering
        record.gathered.extend(gathering.wait())
        inputs += [*record.gathered, record.gathered.copy]
    yield step.again
    forgotten.data = step.run_forward(record, *inputs, *step.settings)


def _arriving(
    record: _OperatorRecord, exchange: Exchange, before: Sequence[_OperatorRecord], gradients: dict[str, Tensor]
) -> Generator[PassEvent, None, None]:
    """Gather the gradient of an operator's output, where its forward scattered that, or send it back.

    With them goes what an operator `before` it in its layer did not keep of its gathered input.
    """
    (name,) = record.step.writes
    passing = [gradients[name].contiguous(), *record.splits[::-1]]
    gathers = [r for r in before if r.step.gathers_tokens]
    for gathering in gathers:
        passing += gathering.shards
    call = CollectiveCall(exchange, passing)
    yield call
    gradients[name], *wholes = call.wait()
    for gathering, whole in zip(gathers, wholes, strict=True):
        gathering.gathered.append(whole)


def _adding(step: LayerStep, put_off: Later, upcoming: CollectiveCall | None) -> Generator[PassEvent, None, None]:
    """Add the weight gradients of a matrix product; the `upcoming` collective does not wait for them."""
    if upcoming is not None:
        yield Ready(upcoming)
    for start, add in zip(step.weight_gradients, put_off, strict=True):
        yield start
        add()


def _leaving(record: _OperatorRecord, gradients: dict[str, Tensor]) -> tuple[Tensors, Later]:
    """Run a function backward: gradients of its inputs, and what adds those of the weights of a matrix product.

    Gradients of its outputs are taken from `gradients`; what the function kept is used up.
    """
    step = record.step
    arriving = map(gradients.pop, step.arrives)
    put_off = _NO_LATER
    if not step.weight_gradients:
        leaving = step.run_backward(record, *arriving)
    else:
        with weight_gradients_put_off() as put_off:
            leaving = step.run_backward(record, *arriving)
    record.saved_tensors = ()
    if record.shards:
        record.gathered.clear()
    return leaving if isinstance(leaving, tuple) else (leaving,), put_off
