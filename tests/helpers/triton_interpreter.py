"""Triton's interpreter, counting what kernels load and store, and rounding to bf16 as GPUs do.

For processes that were started with TRITON_INTERPRET=1.
"""

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime import interpreter

BF16_BITS = 16


class MovedBytes:
    """Bytes that interpreted kernels load and store while this is entered; masked elements count for nothing."""

    def __init__(self) -> None:
        self.loaded = 0
        self.stored = 0

    def __enter__(self) -> "MovedBytes":
        builder = interpreter.InterpreterBuilder
        self._originals = builder.create_masked_load, builder.create_masked_store
        load, store = self._originals

        def counted_load(own: Any, pointers: Any, mask: Any, *rest: Any, **options: Any) -> Any:
            self.loaded += _bytes(pointers, mask)
            return load(own, pointers, mask, *rest, **options)

        def counted_store(own: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
            self.stored += _bytes(pointers, mask)
            return store(own, pointers, value, mask, *rest, **options)

        builder.create_masked_load, builder.create_masked_store = counted_load, counted_store
        return self

    def __exit__(self, *_: object) -> None:
        builder = interpreter.InterpreterBuilder
        builder.create_masked_load, builder.create_masked_store = self._originals


def round_to_nearest() -> None:
    """Make the interpreter round fp32 to the nearest bf16; it cuts bits off (Triton 3.7), which no GPU does."""
    convert = interpreter._convert_float

    def rounded(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source.primitive_bitwidth, target.name) != (2 * BF16_BITS, "bf16"):
            return convert(data, source, target, mode)
        wide = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32))
        return wide.to(torch.bfloat16).view(torch.uint16).numpy().reshape(data.shape)

    interpreter._convert_float = rounded


def _bytes(pointers: Any, mask: Any) -> int:
    """Bytes of the elements that a load or store of `pointers` does not mask."""
    return int(np.count_nonzero(mask.data)) * int(pointers.get_element_ty().primitive_bitwidth) // 8


def aside() -> None:
    """Hide PyTorch operations with which the interpreter handles its arguments from modes that count operations."""
    call = interpreter.GridExecutor.__call__

    def hidden(executor: Any, *arguments: Any, **options: Any) -> Any:
        with _disable_current_modes():
            return call(executor, *arguments, **options)

    interpreter.GridExecutor.__call__ = hidden
