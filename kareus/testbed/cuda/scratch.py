"""Memory of programs: constant operands, and results that are not read.

A pipeline instruction has hundreds of operators of a few gigabytes each; what they cost does not depend on where
their operands come from, so all of them share three buffers as large as the largest needs. Operands are normal random
numbers: power depends on the bits that flip, and zeros would make every GPU look frugal.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

OPERAND_SEED = 0
DTYPE = torch.bfloat16
"""Data type of weights and activations, as in the operator graph."""

_ALIGNMENT = 128
"""Elements; 256 bytes, as PyTorch's own allocations are aligned, which the fast kernels ask for."""


class Scratch:
    """Three buffers on one device, which grow as views of them are asked for."""

    def __init__(self, device: torch.device) -> None:
        """Start empty."""
        self.device = device
        self._operands = torch.empty(0, dtype=DTYPE, device=device)
        self._results = torch.empty(0, dtype=DTYPE, device=device)
        self._sums = torch.empty(0, dtype=torch.float32, device=device)

    def operands(self, *shapes: Sequence[int]) -> list[Tensor]:
        """Tensors of random numbers that do not overlap each other; nothing may write to them."""
        needed = sum(map(_room, shapes))
        if needed > self._operands.numel():
            generator = torch.Generator(self.device).manual_seed(OPERAND_SEED)
            self._operands = torch.empty(needed, dtype=DTYPE, device=self.device).normal_(generator=generator)
        return _parts(self._operands, shapes)

    def results(self, *shapes: Sequence[int]) -> list[Tensor]:
        """Tensors to write to, which do not overlap each other."""
        needed = sum(map(_room, shapes))
        if needed > self._results.numel():
            self._results = torch.zeros(needed, dtype=DTYPE, device=self.device)
        return _parts(self._results, shapes)

    def sums(self, shape: Sequence[int]) -> Tensor:
        """An fp32 tensor to add to."""
        if math.prod(shape) > self._sums.numel():
            self._sums = torch.zeros(math.prod(shape), dtype=torch.float32, device=self.device)
        return _parts(self._sums, [shape])[0]


def _room(shape: Sequence[int]) -> int:
    """Elements that a tensor takes with what keeps the next one aligned."""
    return math.ceil(math.prod(shape) / _ALIGNMENT) * _ALIGNMENT


def _parts(buffer: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    starts = itertools.accumulate(map(_room, shapes), initial=0)
    return [buffer[start : start + math.prod(shape)].view(*shape) for start, shape in zip(starts, shapes, strict=False)]
