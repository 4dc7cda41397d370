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
        self._made: dict[StorageWeakRef, int] = {}
        self.most_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        plain = (t for t in tree_leaves(output) if type(t) is torch.Tensor and not t.is_meta)
        for made in (t.untyped_storage() for t in plain):
            if made.data_ptr() not in self._before:
                self._made[StorageWeakRef(made)] = made.nbytes()
        self._made = {made: size for made, size in self._made.items() if not made.expired()}
        self.most_bytes = max(self.most_bytes, sum(self._made.values()))
        return output
