"""A trace without sizes: every extent a product of named dimensions, so that it can be evaluated for any sizes.

A template is made of two traces at sizes that are distinct primes. In each, a number has one factorisation, which names
the dimensions that it is a product of; both have to agree on every number, event, buffer and start of a region.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from kareus.errors import KareusError
from kareus.graph.records import Direction
from kareus.partition.events import Region, Trace, TracedEvent
from kareus.partition.structure import Dimensions

Product = tuple[int, tuple[str, ...]]
"""A constant and the names of the dimensions that it is multiplied with, in alphabetical order."""
_LARGEST_CONSTANT = 3
"""Of a dimension: 1, or 3 fused heads of one query head and one key-value head; what is larger is a prime."""
Outline = tuple[int, int, Product, tuple[Product, ...], int]
"""A region: buffer, number of its start in the buffer, elements, shape, bytes of an element."""


@dataclass(frozen=True, slots=True)
class EventOutline:
    """An event whose regions are numbers in the template's list."""

    path: str
    direction: Direction
    kernel: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    axis: str


@dataclass(frozen=True, slots=True)
class TraceTemplate:
    """The trace of every model of one structure."""

    events: tuple[EventOutline, ...]
    regions: tuple[Outline, ...]
    lasting: frozenset[int]

    def trace(self, dimensions: Dimensions, group_sizes: Mapping[str, int]) -> Trace:
        """Evaluate the trace.

        Args:
            dimensions: sizes on one GPU.
            group_sizes: GPUs of each process group, by axis.
        """
        size_of = _evaluator(dimensions)
        regions = [
            Region(buffer, start, size_of(elements) * itemsize, tuple([size_of(n) for n in shape]), itemsize)
            for buffer, start, elements, shape, itemsize in self.regions
        ]
        events = tuple(
            TracedEvent(
                e.path,
                e.direction,
                e.kernel,
                tuple([regions[n] for n in e.reads]),
                tuple([regions[n] for n in e.writes]),
                e.axis,
                group_sizes[e.axis] if e.axis else 1,
            )
            for e in self.events
        )
        return Trace(events, self.lasting)


def template_of(traced: Sequence[tuple[Trace, Dimensions]]) -> TraceTemplate:
    """Make the template of traces of one structure.

    Raises:
        KareusError: the traces differ in more than sizes, or a size is no product of dimensions.
    """
    outlines = [_outline(trace, dimensions) for trace, dimensions in traced]
    for other in outlines[1:]:
        for event, another in itertools.zip_longest(outlines[0].events, other.events):
            if event is None or event != another:
                kernel = f"{event.path} {event.kernel}" if event else "more kernels"
                raise KareusError(f"tracing: {kernel} depends on the sizes of dimensions; {_TELL_APART}")
        for place, (mine, its) in enumerate(zip(outlines[0].regions, other.regions, strict=True)):
            if mine != its:
                user = next(e for e in outlines[0].events if place in (*e.reads, *e.writes))
                raise KareusError(f"tracing: {user.path} {user.kernel}: a size is no product of dimensions; {_NAME_IT}")
        if other.lasting != outlines[0].lasting:
            raise KareusError(f"tracing: the buffers that stay depend on the sizes of dimensions; {_TELL_APART}")
    return outlines[0]


_TELL_APART = "make what tells the cases apart part of kareus.partition.structure.Structure."
_NAME_IT = "name what it is made of in kareus.partition.structure.Dimensions."


def to_plain(template: TraceTemplate) -> dict[str, Any]:
    """Return a template as plain data; shapes repeat often, so every product is written once."""
    products: dict[Product, int] = {}

    def number(product: Product) -> int:
        return products.setdefault(product, len(products))

    regions = [[b, start, number(n), [number(p) for p in shape], i] for b, start, n, shape, i in template.regions]
    return {
        "events": [
            [e.path, str(e.direction), e.kernel, list(e.reads), list(e.writes), e.axis] for e in template.events
        ],
        "regions": regions,
        "products": [[constant, *names] for constant, names in products],
        "lasting": sorted(template.lasting),
    }


def from_plain(plain: Mapping[str, Any]) -> TraceTemplate:
    """Read what `to_plain` returned.

    Raises:
        KeyError, TypeError, ValueError or IndexError: something else.
    """
    products: list[Product] = [(_whole(constant), tuple(names)) for constant, *names in plain["products"]]
    regions = tuple(
        (
            _whole(buffer),
            _whole(start),
            products[_whole(elements)],
            tuple([products[_whole(n)] for n in shape]),
            _whole(itemsize),
        )
        for buffer, start, elements, shape, itemsize in plain["regions"]
    )
    events = tuple(
        EventOutline(path, Direction(direction), kernel, tuple(map(_whole, reads)), tuple(map(_whole, writes)), axis)
        for path, direction, kernel, reads, writes, axis in plain["events"]
    )
    return TraceTemplate(events, regions, frozenset(map(_whole, plain["lasting"])))


def _whole(number: Any) -> int:
    """Return an index or a count; a negative index would be another's.

    Raises:
        TypeError: it is none.
    """
    if type(number) is not int or number < 0:
        raise TypeError(f"{number!r}: expected a whole number")
    return number


def _evaluator(dimensions: Dimensions) -> Callable[[Product], int]:
    """Return what evaluates a product, each once."""
    sizes, sizes_of = dimensions.named(), dict[Product, int]()

    def size_of(product: Product) -> int:
        if product not in sizes_of:
            size, names = product
            for name in names:
                size *= sizes[name]
            sizes_of[product] = size
        return sizes_of[product]

    return size_of


def _outline(trace: Trace, dimensions: Dimensions) -> TraceTemplate:
    """Number buffers, their starts and regions in order of appearance, and factorise every size."""
    primes = {name: size for name, size in dimensions.named().items() if size > _LARGEST_CONSTANT}
    factorised = cache(partial(_factorised, primes=primes))  # few sizes are those of most regions
    buffers: dict[int, int] = {}
    starts: dict[tuple[int, int], int] = {}
    regions: dict[Outline, int] = {}

    def number(region: Region) -> int:
        buffer = buffers.setdefault(region.buffer, len(buffers))
        start = starts.setdefault((buffer, region.offset), len(starts))
        shape = tuple([factorised(n) for n in region.shape])
        elements = factorised(region.size_bytes // region.itemsize)
        return regions.setdefault((buffer, start, elements, shape, region.itemsize), len(regions))

    events = tuple(
        EventOutline(
            e.path,
            e.direction,
            e.kernel,
            tuple([number(r) for r in e.reads]),
            tuple([number(r) for r in e.writes]),
            e.axis,
        )
        for e in trace.events
    )
    lasting = frozenset(buffers[buffer] for buffer in trace.lasting if buffer in buffers)
    return TraceTemplate(events, tuple(regions), lasting)


def _factorised(size: int, primes: Mapping[str, int]) -> Product:
    """Write a size as a constant times dimensions; the constant has to be below every prime.

    Raises:
        KareusError: it is not.
    """
    names = []
    for name, prime in primes.items():
        while size % prime == 0:
            size //= prime
            names.append(name)
    if size >= min(primes.values(), default=size + 1):
        raise KareusError(f"tracing: a size has the factor {size}, which is no dimension; {_NAME_IT}")
    return size, tuple(sorted(names))
