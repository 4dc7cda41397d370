"""The steps of a layer: its operators as they are scheduled, and what is known of each before it runs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from kareus.graph.recomputation import AGAIN_SUFFIX, Recomputation
from kareus.graph.records import BIAS_GRADIENT_SUFFIX, INPUT_GRADIENT_SUFFIX, WEIGHT_GRADIENT_SUFFIX
from kareus.model.block import OUTPUT, SUM, TABLE, WITHOUT_GRADIENT, Block, Layer, Wire
from kareus.model.communication import Exchange
from kareus.model.layers import CausalAttention, Linear, OperatorModule

LAYERS = 2
"""Layers of a block."""


class Start(NamedTuple):
    """An operator is about to be launched."""

    name: str
    """Name in the operator graph: `qkv`, and in backward `qkv.dgrad` and `qkv.wgrad`."""
    memory_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStep:
    """One operator, and what is known of it beforehand."""

    operator: OperatorModule
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    has_gradient: tuple[str, ...]
    """Names of the inputs that have a gradient, in order."""
    arrives: tuple[str, ...]
    """Names of the outputs that have one, in order."""
    forward: Start
    backward: Start
    weight_gradients: tuple[Start, ...]
    """Weight gradient of a matrix product, and that of its bias, which are operators of their own."""
    finished: tuple[str, ...]
    """Names of values that are read for the last time."""
    again: Start | None
    """Where it runs again in backward, right before what reads its output, which is not kept; else None."""
    cuts: bool
    """Whether a segment ends before it in forward, and after it in backward, without a collective; see `Wire`."""
    place: int
    """Its place among the steps before it in the order whose reverse backward runs in."""
    gathers: Exchange | None
    """Collective before it in forward."""
    reduces: Exchange | None
    """Collective after it in forward."""
    gathers_gradients: Exchange | None
    """Collective before it in backward."""
    reduces_gradients: Exchange | None
    """Collective after it in backward."""
    first: int
    """Place of the first of its inputs that pass the collectives before it; all after it pass too."""
    gathers_tokens: bool
    """Whether its input is gathered by token, and again with the gradients that its sublayer's backward begins with."""
    regathers: Exchange | None
    """Collective right before its own backward, which gathers anew what forward gathered and did not keep."""

    run_forward: Callable[..., Any] = field(init=False)
    """Of the operator's function, likewise the next, which a look-up for each launch would cost the host time."""
    run_backward: Callable[..., Any] = field(init=False)
    """See `run_forward`."""
    settings: tuple[Any, ...] = field(init=False)
    """Arguments of the function that follow the inputs; of the weights that the operator has now."""
    read: str | None = field(init=False)
    """What it reads, where that is one value."""
    taken: Callable[[dict[str, Any]], tuple[Any, ...]] = field(init=False)
    """Takes several values that it reads."""
    written: str | None = field(init=False)
    """What it writes, where that is one value."""

    def __post_init__(self) -> None:
        """Look up what every launch needs."""
        function = self.operator.function
        sizes = {
            "run_forward": function.forward,
            "run_backward": function.backward,
            "settings": self.operator.settings(),
            "read": self.reads[0] if len(self.reads) == 1 else None,
            "taken": itemgetter(*self.reads),
            "written": self.writes[0] if len(self.writes) == 1 else None,
        }
        for name, value in sizes.items():
            object.__setattr__(self, name, value)


def steps_of(
    blocks: Iterable[Block], recomputation: Recomputation = Recomputation.NONE
) -> tuple[tuple[LayerStep, ...], ...]:
    """Return the steps of every layer of `blocks`, `LAYERS` for each, attention's first.

    Once a block has other weights or buffers than now, as on another device, it has other steps.
    """
    return tuple(_steps(layer, recomputation) for block in blocks for layer in (block.attention, block.mlp))


def _steps(layer: Layer, recomputation: Recomputation) -> tuple[LayerStep, ...]:
    later = {SUM, OUTPUT, TABLE}
    steps = []
    for number, wire in reversed([*enumerate(layer.wires)]):
        finished = tuple(name for name in wire.reads if name not in later)
        has_gradient, arrives = (
            tuple(name for name in names if name not in WITHOUT_GRADIENT) for names in (wire.reads, wire.writes)
        )
        again = None
        if recomputation is Recomputation.SELECTIVE and isinstance(wire.operator, CausalAttention):
            again = Start(f"{wire.name}{AGAIN_SUFFIX}", memory_bound=False)
        before, after = wire.operator.before, wire.operator.after
        forward, backward, weight_gradients = _starts(wire)
        step = LayerStep(
            operator=wire.operator,
            reads=wire.reads,
            writes=wire.writes,
            has_gradient=has_gradient,
            arrives=arrives,
            forward=forward,
            backward=backward,
            weight_gradients=weight_gradients,
            finished=finished,
            again=again,
            cuts=wire.cuts and before is None,
            place=number if wire.place is None else wire.place,
            gathers=before.forwards if before else None,
            reduces=after.forwards if after else None,
            gathers_gradients=after.backwards if after else None,
            reduces_gradients=before.backwards if before else None,
            first=before.first if before else 0,
            gathers_tokens=before is not None and before.by_token,
            regathers=None if before is None or before.by_token else before.forwards,
        )
        steps.append(step)
        later.update(wire.reads)
    return tuple(reversed(steps))


def _starts(wire: Wire) -> tuple[Start, Start, tuple[Start, ...]]:
    plain = Start(wire.name, wire.operator.memory_bound)
    if not isinstance(wire.operator, Linear):
        return plain, plain, ()
    suffixes = [WEIGHT_GRADIENT_SUFFIX] + ([BIAS_GRADIENT_SUFFIX] if wire.operator.has_bias else [])
    # The sum that is a bias's gradient is bound by memory, but joins no memory-bound neighbour.
    sums = tuple(Start(f"{wire.name}{suffix}", memory_bound=False) for suffix in suffixes)
    return plain, Start(f"{wire.name}{INPUT_GRADIENT_SUFFIX}", memory_bound=False), sums
