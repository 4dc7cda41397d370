"""Slices of whole weights, in which ranks of any layout name what they hold of a model's state.

A rank holds a run of elements of its shard of a weight: all of them, or with a sharded optimizer the part that a cut
of the stage's flat buffer leaves it. Our weights are stacks of whole weights (queries, keys and values; gate and up),
of which tensor parallelism gives each GPU some rows or columns. So a run is, in whole weights with their Hugging Face
names, a few boxes: part of a row, rows, part of a row. Each of them is contiguous in the rank's memory.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kareus.model.communication import Mesh
from kareus.model.config import Model
from kareus.model.weights import held_pieces, own_part


class Box(NamedTuple):
    """A rectangular part of a tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    def slices_in(self, outer: "Box") -> tuple[slice, ...]:
        """Return the slices of this box in a tensor that holds the box `outer` around it."""
        firsts = [inner - start for inner, start in zip(self.offsets, outer.offsets, strict=True)]
        return tuple(slice(first, first + size) for first, size in zip(firsts, self.sizes, strict=True))


class HeldBox(NamedTuple):
    """A box of a whole weight, and where a rank has it."""

    name: str
    """Name of the whole weight in a Hugging Face checkpoint."""
    box: Box
    start: int
    """Place of its first element in the run of elements that the rank holds; the others follow in row-major order."""


def held_boxes(model: Model, name: str, start: int, count: int, mesh: Mesh) -> Iterator[HeldBox]:
    """Yield the boxes of whole weights that make up a run of one of a rank's weights, in order.

    Args:
        model: the architecture.
        name: of the weight, its block by its number in the model, such as `blocks.7.mlp.down.weight`.
        start: first element of the run in the flattened weight of the rank.
        count: number of elements of the run.
        mesh: of the rank.
    """
    begin = 0
    for piece in held_pieces(model, name, 0, mesh):
        part = own_part(piece, mesh)
        offsets, sizes = [each.start for each in part], [each.stop - each.start for each in part]
        end = begin + math.prod(sizes)
        first, last = max(start, begin), min(start + count, end)
        place = first - start
        for box in _boxes_of_run(sizes, first - begin, last - begin) if first < last else ():
            moved = tuple(offset + other for offset, other in zip(box.offsets, offsets, strict=True))
            yield HeldBox(piece.name, Box(moved, box.sizes), place)
            place += box.elements
        begin = end


def intersection(first: Box, second: Box) -> Box | None:
    """Return the box that two boxes share, or None."""
    starts = tuple(map(max, first.offsets, second.offsets))
    ends = [min(a + n, b + m) for a, n, b, m in zip(*first, *second, strict=True)]
    sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
    return Box(starts, sizes) if min(sizes) > 0 else None


def difference(whole: Box, part: Box) -> Iterator[Box]:
    """Yield boxes that make up `whole` without `part`, which is inside it."""
    offsets, sizes = list(whole.offsets), list(whole.sizes)
    for axis, (start, size) in enumerate(zip(*part, strict=True)):
        before, after = start - offsets[axis], offsets[axis] + sizes[axis] - start - size
        if before:
            yield Box(tuple(offsets), (*sizes[:axis], before, *sizes[axis + 1 :]))
        if after:
            yield Box((*offsets[:axis], start + size, *offsets[axis + 1 :]), (*sizes[:axis], after, *sizes[axis + 1 :]))
        offsets[axis], sizes[axis] = start, size


def _boxes_of_run(sizes: Sequence[int], first: int, last: int) -> Iterator[Box]:
    """Cut the elements from `first` up to `last` of a tensor in row-major order into boxes, in order."""
    if len(sizes) == 1:
        yield Box((first,), (last - first,))
        return
    inner = sizes[1:]
    row_elements = math.prod(inner)
    (row, begin), (last_row, end) = divmod(first, row_elements), divmod(last, row_elements)
    if row == last_row:
        yield from _in_row(row, inner, begin, end)
        return
    if begin:
        yield from _in_row(row, inner, begin, row_elements)
        row += 1
    if row < last_row:
        yield Box((row, *(0 for _ in inner)), (last_row - row, *inner))
    if end:
        yield from _in_row(last_row, inner, 0, end)


def _in_row(row: int, inner: Sequence[int], first: int, last: int) -> Iterator[Box]:
    for box in _boxes_of_run(inner, first, last):
        yield Box((row, *box.offsets), (1, *box.sizes))
