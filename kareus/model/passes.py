"""Forward and backward of layers operator by operator, each with its own autograd graph, in the caller's order.

A pass is a generator over the operators of one nanobatch (or microbatch). It yields what it is about to launch and
stops at every collective; the caller launches the collective at any time, and resumes the pass, which then waits.
Backward has no formulas: autograd is asked for the gradients of one operator at a time.
"""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import GradientEdge, _engine_run_backward

from kareus.graph.records import CollectiveKind
from kareus.model.block import INPUT, OUTPUT, TABLE
from kareus.model.communication import Boundary, Communicator, Handle, Tensors, launch
from kareus.model.functions import Later, apply, weight_gradients_put_off
from kareus.model.layers import Residual, RotaryTable
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
    function: Any
    """The node of autograd, where the operator is one function; else None."""
    outputs: Tensors
    """Outputs, without memory: they keep the graph, which nodes of functions do not (PyTorch 2.11)."""
    reads: tuple[str, ...]
    """Names of the inputs that have a gradient, in order."""
    inputs: tuple[Tensor | GradientEdge, ...]
    shards: Tensors
    """This rank's shards of gathered inputs, to be gathered again."""
    gathered: list[Tensor]
    """List in which the operator's backward finds them."""


Tape = list[list[_OperatorRecord]]
"""Records by layer, in the order of forward."""


def forward_pass(
    layers: Sequence[Sequence[LayerStep]], hidden: Tensor, table: RotaryTable, tape: Tape | None = None
) -> Pass:
    """Run layers forward, [batch, tokens, hidden] to the same; record them if there is a tape."""
    for steps in layers:
        values: dict[str, Any] = {INPUT: hidden, TABLE: table}
        records: list[_OperatorRecord] = []
        for step in steps:
            yield from _forward(step, values, None if tape is None else records)
            for name in step.finished:
                del values[name]
        hidden = values[OUTPUT]
        if tape is not None:
            tape.append(records)
    return hidden


def backward_pass(tape: Tape, gradient: Tensor, later: Later | None = None) -> Pass:
    """Run a tape backward, using it up; from the gradient of what left the layers to that of what entered.

    Args:
        tape: what `forward_pass` recorded.
        gradient: [batch, tokens, hidden].
        later: takes what adds the weight gradients of matrix products, if they are not of this pass.
    """
    while tape:
        records = tape.pop()
        gradients = {OUTPUT: gradient}
        gathering: CollectiveCall | None = None
        while records:
            record = records.pop()
            following = _regathering(records[-1]) if records else None
            yield from _backward(record, gradients, gathering, following, later)
            gathering = following
        gradient = gradients[INPUT]
    return gradient


def recomputed_pass(
    layers: Sequence[Sequence[LayerStep]],
    hidden: Tensor,
    table: RotaryTable,
    gradient: Tensor,
    later: Later | None = None,
) -> Pass:
    """Run layers forward again from what entered them, recording, then backward, as `backward_pass` does."""
    tape: Tape = []
    yield from forward_pass(layers, hidden, table, tape)
    return (yield from backward_pass(tape, gradient, later))


def _forward(
    step: LayerStep, values: dict[str, Any], records: list[_OperatorRecord] | None
) -> Generator[PassEvent, None, None]:
    operator = step.operator
    inputs = [values[name] for name in step.reads]
    shards: Tensors = ()
    before, after = operator.before, operator.after
    if before is not None and before.forward is not None:
        shards = tuple(t.contiguous() for t in inputs[before.first :])
        inputs[before.first :] = yield from _exchanged(before, before.forward, shards)
    yield step.forward
    if records is not None:
        outputs, record = _recorded(step, inputs, shards)
        records.append(record)
    else:
        outputs = as_tuple(operator.compute(*inputs, *([_nothing] if shards else ())))
    if after is not None and after.forward is not None:
        outputs = yield from _exchanged(after, after.forward, outputs)
    values.update(zip(step.writes, outputs, strict=True))


def _recorded(step: LayerStep, inputs: list[Any], shards: Tensors) -> tuple[Tensors, _OperatorRecord]:
    """Compute with a graph that begins at `inputs` and ends at the outputs, which it does not keep alive."""
    operator, reads = step.operator, step.reads
    if isinstance(operator, Residual):  # its gradient is that of both inputs: nothing to record, or to keep
        return (operator.compute(*inputs),), _OperatorRecord(step, None, (), reads, (), (), [])
    local = len(inputs) - len(shards)
    gathered: list[Tensor] = []
    with torch.enable_grad():
        given = [t.detach().requires_grad_() if isinstance(t, Tensor) else t for t in inputs[:local]]
        given += [apply(_Unkept, t, torch.empty(0, requires_grad=True)) for t in inputs[local:]]
        outputs = as_tuple(operator.compute(*given, *([lambda: tuple(gathered)] if shards else ())))
    tensors = [(name, t) for name, t in zip(reads, given, strict=True) if isinstance(t, Tensor)]
    record = _OperatorRecord(
        step,
        function=outputs[0].grad_fn if operator.is_function else None,
        outputs=outputs,
        reads=tuple(name for name, _ in tensors),
        inputs=tuple(t if t.is_leaf else _edge(t) for _, t in tensors),
        shards=shards,
        gathered=gathered,
    )
    results = tuple(t.detach() for t in outputs)
    for output in outputs:
        output.data = output.new_empty(0)
    return results, record


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
    for name, gradient in zip(record.reads, leaving, strict=True):
        gradients[name] = gradients[name] + gradient if name in gradients else gradient


def _leaving(record: _OperatorRecord, arriving: list[Tensor]) -> tuple[list[Tensor], Later]:
    """Gradients of an operator's inputs, and what adds those of the weights of a matrix product."""
    step = record.step
    if isinstance(step.operator, Residual):
        return arriving * len(record.reads), []
    if step.weight_gradient is None:
        leaving = _gradients(record, arriving)
        record.gathered.clear()
        return leaving, []
    with weight_gradients_put_off() as own:
        return _gradients(record, arriving), own


def _gradients(record: _OperatorRecord, arriving: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of an operator's inputs, whose graph is used up.

    One function is called by itself, since starting autograd's engine for it takes longer than many a function. The
    engine is started without the checks of `torch.autograd.grad`, which take a third of its time.
    """
    if record.function is not None:
        with torch.no_grad():  # as the engine has it
            leaving = as_tuple(record.function.apply(*arriving))[: len(record.inputs)]
        record.function.maybe_clear_saved_tensors()
        return list(leaving)
    return list(
        _engine_run_backward(
            record.outputs,
            tuple(arriving),
            False,  # noqa: FBT003 - the graph is used up
            False,  # noqa: FBT003 - and no graph is made
            record.inputs,
            allow_unreachable=False,
            accumulate_grad=False,
        )
    )


def _exchanged(boundary: Boundary, kind: CollectiveKind, tensors: Tensors) -> Generator[PassEvent, None, Tensors]:
    exchange = CollectiveCall(kind, boundary.communicator, tensors)
    yield exchange
    return exchange.wait()


class _Unkept(Function):
    """The same tensor, for a graph that does not keep it alive as it would keep a leaf."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, anchor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        return None, None


def _edge(tensor: Tensor) -> GradientEdge:
    assert tensor.grad_fn is not None
    return GradientEdge(tensor.grad_fn, tensor.output_nr)


def _nothing() -> Tensors:
    """Stub for gathered inputs of a pass without backward."""
    return ()
