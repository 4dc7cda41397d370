"""Counts the bytes of tensors that are alive."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):  # type: ignore[misc]
    """Most bytes alive at once of what operations have made since it was entered."""

    def __init__(self, before: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self._before = {t.untyped_storage().data_ptr() for t in before}
        self._made: set[StorageWeakRef] = set()
        self.most_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        plain = (t for t in tree_leaves(output) if type(t) is torch.Tensor and not t.is_meta)
        for made in (t.untyped_storage() for t in plain):
            if made.data_ptr() not in self._before:
                self._made.add(StorageWeakRef(made))
        held = {made: torch.UntypedStorage._new_with_weak_ptr(made.cdata) for made in self._made}
        self._made = {made for made, storage in held.items() if storage is not None}
        self.most_bytes = max(self.most_bytes, sum(storage.nbytes() for storage in held.values() if storage))  # as now
        return output
