"""A stand-in for CUDA's graphs on CPUs: it records operations as they are dispatched, and replays them."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from kareus.model.communicators.process_group import Works

Operation = tuple[Any, tuple[Any, ...], dict[str, Any], Any]
"""Function, arguments, options and result."""


class RecordingCapture:
    """As `kareus.runtime.graphs.CudaCapture`, of operations instead of kernels.

    A replay runs the operations again, on the same tensors, and puts what they return where they returned it when they
    were recorded: addresses are fixed, as those of a graph. A capture leaves no trace in what was there before.
    """

    def __init__(self) -> None:
        self.graphs: list[list[Operation]] = []
        """Of each capture, in order."""
        self.replays: list[int] = []
        """Numbers of the graphs that were replayed, in order."""

    def __call__(self, launch: Callable[[], Any]) -> Callable[[], None]:
        with _Recording() as recording, patch.object(Works, "wait", _unrecorded(Works.wait)):
            launch()
        recording.undo()
        operations, number = recording.operations, len(self.graphs)
        self.graphs.append(operations)

        def replay() -> None:
            self.replays.append(number)
            with torch.no_grad():
                for operation in operations:
                    _repeat(*operation)

        return replay

    def names(self, number: int) -> list[str]:
        """Operations of a graph that compute, in order."""
        return [operation[0].name() for operation in self.graphs[number] if not _is_view(*operation)]


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._made: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        for tensor in _written(func, args, options):
            key = tensor.untyped_storage().data_ptr()
            if key not in self._made and key not in self._before:
                whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self._before[key] = whole, whole.clone()
        result = func(*args, **options)
        self.operations.append((func, args, options, result))
        if not func._schema.is_mutable:
            self._made.update(_storages(result) - _storages((args, options)))
        return result

    def undo(self) -> None:
        """Give what was there before the recording its values back."""
        for whole, before in self._before.values():
            whole.copy_(before)


def _unrecorded(wait: Callable[[Works], Any]) -> Callable[[Works], Any]:
    """Wait without recording the operations by which gloo ends a collective; a replay repeats them by itself."""

    def waits(works: Works) -> Any:
        with _disable_current_modes():
            return wait(works)

    return waits


def _written(func: Any, args: Any, options: Any) -> list[Tensor]:
    declared = func._schema.arguments
    given = {**dict(zip([a.name for a in declared], args, strict=False)), **options}
    changed = [given[a.name] for a in declared if a.is_write and a.name in given]
    if func.namespace == "c10d":  # in place, which their schemas do not say
        changed = [list(args)]
    return [leaf for leaf in tree_leaves(changed) if isinstance(leaf, Tensor)]


def _storages(tree: Any) -> set[int]:
    return {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}


def _repeat(func: Any, args: Any, options: Any, result: Any) -> None:
    if func.namespace == "c10d":
        tree_leaves(func(*args, **options))[-1].wait()
        return
    if _is_view(func, args, options, result):
        return
    again = func(*args, **options)
    if func._schema.is_mutable:
        return
    for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
        if isinstance(old, Tensor) and old.numel():
            old.copy_(new)


def _is_view(func: Any, args: Any, options: Any, result: Any) -> bool:
    """Whether nothing was computed. `flatten`, `contiguous` and others return a view where they can, else a copy."""
    if func._schema.is_mutable or all(r.alias_info is None for r in func._schema.returns):
        return False
    return _storages(result) <= _storages((args, options))
