"""The steps of a layer: its operators as they are scheduled, and what is known of each before it runs."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kareus.model.block import OUTPUT, TABLE, Block, Layer, Wire
from kareus.model.communication import Tensors
from kareus.model.layers import HeadSplit, Linear, OperatorModule, Residual


class Start(NamedTuple):
    """An operator is about to be launched."""

    name: str
    """Name in the operator graph: `qkv`, and in backward `qkv.dgrad` and `qkv.wgrad`."""
    memory_bound: bool


class LayerStep(NamedTuple):
    """One operator, or memory-bound neighbours that the operator graph counts as one, and what is known beforehand."""

    operator: "OperatorModule | Group"
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    forward: Start
    backward: Start
    weight_gradient: Start | None
    """Weight gradient of a matrix product, which is an operator of its own."""
    finished: tuple[str, ...]
    """Names of values that are read for the last time."""


def steps_of(blocks: Iterable[Block]) -> tuple[tuple[LayerStep, ...], ...]:
    """Return the steps of every layer of `blocks`."""
    return tuple(_steps(layer) for block in blocks for layer in (block.attention, block.mlp))


def as_tuple(outputs: Any) -> Tensors:
    """Return the outputs of an operator, one or several, as a tuple."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


class Group:
    """Memory-bound neighbours, which share one graph."""

    before = after = None
    is_function = False

    def __init__(self, wires: Sequence[Wire], reads: Sequence[str], writes: Sequence[str]) -> None:
        self.wires = wires
        self.reads = reads
        self.writes = writes

    def compute(self, *inputs: Any) -> Tensors:
        """Run them in order."""
        values = dict(zip(self.reads, inputs, strict=True))
        for wire in self.wires:
            written = wire.operator.compute(*[values[name] for name in wire.reads])
            values.update(zip(wire.writes, as_tuple(written), strict=True))
        return tuple([values[name] for name in self.writes])


def _steps(layer: Layer) -> tuple[LayerStep, ...]:
    later: set[str] = {OUTPUT, TABLE}
    steps = []
    for wires in reversed(_grouped(layer.wires)):
        own = [name for wire in wires for name in wire.writes]
        reads = tuple(dict.fromkeys(name for wire in wires for name in wire.reads if name not in own))
        writes = tuple(name for name in own if name in later)
        operator = wires[0].operator if len(wires) == 1 else Group(wires, reads, writes)
        assert not isinstance(operator, HeadSplit), "views have a neighbour"
        steps.append(LayerStep(operator, reads, writes, *_starts(wires[-1]), tuple(n for n in reads if n not in later)))
        later.update(reads)
    return tuple(reversed(steps))


def _grouped(wires: Iterable[Wire]) -> list[list[Wire]]:
    groups: list[list[Wire]] = []
    for wire in wires:
        joins = groups and all(_is_elementwise(w) for w in (groups[-1][-1], wire))
        groups[-1:] = [[*groups[-1], wire]] if joins else [*groups[-1:], [wire]]
    return groups


def _is_elementwise(wire: Wire) -> bool:
    """Whether a wire may share a graph; the residual addition has none."""
    return wire.operator.memory_bound and not isinstance(wire.operator, Residual)


def _starts(wire: Wire) -> tuple[Start, Start, Start | None]:
    plain = Start(wire.name, wire.operator.memory_bound)
    if isinstance(wire.operator, Linear):
        return plain, Start(f"{wire.name}.dgrad", memory_bound=False), Start(f"{wire.name}.wgrad", memory_bound=False)
    return plain, plain, None
