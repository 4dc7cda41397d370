"""Memory-bound operators, fused and as eager operations: their departures, times, and bytes a second, on one device."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from inspect import unwrap
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from kareus.graph.records import Operator, OperatorKind
from kareus.model import fused
from kareus.testbed.cuda.memory_bound import call_of
from kareus.testbed.cuda.scratch import Scratch
from onegpu.table import Table

ALLOWED = 2.0**-6
"""Largest difference over the largest value: bf16, rounded at different places."""
REPETITIONS = 20
_ONCE = ("maxima", "bias_gradient", "split_heads", "split_heads_backward")
"""Functions with one implementation."""


def fusion(place: torch.device, operators: Sequence[Operator]) -> Table:
    """Every kind of memory-bound operator once, of the largest of its records.

    Bytes a second are those of the record, so that the time of eager operations counts for all that they move besides.
    """
    largest: dict[str, Operator] = {}
    for operator in sorted(operators, key=lambda o: o.bytes_read + o.bytes_written):
        if operator.kind is OperatorKind.MEMORY and (name := call_of(operator).name) not in _ONCE:
            largest[name] = operator
    rows = [_compared(name, operator, place) for name, operator in largest.items()]
    columns = ("operator", "MB", "fused us", "eager us", "fused GB/s", "eager GB/s", "departure", "allowed", "holds")
    says = "Times are the least of several; a departure is the largest difference over the largest value."
    return Table("Fused operators", says, columns, rows)


def _compared(name: str, operator: Operator, place: torch.device) -> tuple[object, ...]:
    moved = operator.bytes_read + operator.bytes_written
    results, times_s = [], []
    for path in (nullcontext(), eager()):
        torch.manual_seed(0)  # of ids that are drawn
        launch = call_of(operator).prepare(Scratch(place))
        with path as defined:
            call = partial(defined(launch.func), *launch.args, **launch.keywords) if defined else launch
            results.append(_tensors(_once(call, launch)))
            times_s.append(least_s(call, place))
    departure = max(_departure(ours, other) for ours, other in zip(*results, strict=True))
    us, rates = [1e6 * t for t in times_s], [moved / t / 1e9 for t in times_s]
    return (name, moved / 1e6, *us, *rates, departure, ALLOWED, "yes" if departure <= ALLOWED else "NO")


@contextmanager
def eager() -> Iterator[Callable[..., Any]]:
    """Within, functions of `kareus.model.fused` run as PyTorch's operations, those that operators call by name, too.

    Yields:
        What gives of a function its definition.
    """
    definitions = {name: unwrap(function) for name, function in vars(fused).items() if hasattr(function, "__wrapped__")}
    with patch.multiple(fused, **definitions):
        yield unwrap


def _once(call: Callable[[], Any], launch: Any) -> list[Any]:
    """The result of one call on equal inputs, and what it changes in place."""
    generator = torch.Generator().manual_seed(0)
    given = [t for t in _tensors([*launch.args, *launch.keywords.values()]) if t.is_floating_point()]
    for tensor in given:
        tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return [call(), [t.clone() for t in given]]


def least_s(call: Callable[[], Any], place: torch.device) -> float:
    """Return the least time that `call` takes on `place`, in seconds."""

    def elapsed() -> Iterator[float]:
        for _ in range(REPETITIONS):
            _wait(place)
            began = time.perf_counter()
            call()
            _wait(place)
            yield time.perf_counter() - began

    return min(elapsed())


def _wait(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)


def _departure(ours: Tensor, other: Tensor) -> float:
    """NaN departs without end."""
    difference = (ours.double() - other.double()).abs().max() / other.double().abs().max().clamp(min=1e-12)
    return float(difference.nan_to_num(nan=torch.inf))


def _tensors(tree: Any) -> list[Tensor]:
    if dataclasses.is_dataclass(tree):
        return []
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
