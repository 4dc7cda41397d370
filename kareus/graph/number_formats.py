"""Number formats of matrix products: which tensor cores they use, what casting to them costs, what their values take.

A recipe says in which format the products of blocks are, and how operands get there. Attention, head, embedding, norms
and sums of weight gradients stay in more bits in all of them, as Transformer Engine runs them (its user guide, "Using
FP8 and FP4", and `transformer_engine/common/recipe`); all three products of a projection are in the format.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

SIXTEEN_BITS = 2
"""Bytes of a value of 16 bits."""


class Precision(StrEnum):
    """What the products of a model's blocks take."""

    BF16 = "bf16"
    """Operands of 16 bits."""
    FP8 = "fp8"
    """Operands of 8 bits, cast where they are made by a scale of earlier iterations (delayed scaling); as all that
    follow predicted alone, the engine has none."""
    FP8_CURRENT = "fp8-current"
    """The same by a scale of what is cast, whose largest value is read first (current scaling)."""
    FP8_BLOCKWISE = "fp8-blockwise"
    """The same with a scale for every 128 values of an activation, and every 128 x 128 of a weight."""
    MXFP8 = "mxfp8"
    """Operands of 8 bits with a scale of 8 bits for every 32 values (OCP Microscaling Formats, MX)."""
    NVFP4 = "nvfp4"
    """Operands of 4 bits with a scale of 8 bits for every 16 values, rotated at random for weight gradients."""


class TensorCores(StrEnum):
    """Units that multiply in a format; which a GPU has, and how fast, `Gpu.speedup` says."""

    BF16 = "bf16"
    FP8 = "fp8"
    """One scale for a whole operand: since Hopper, and on Ada."""
    MXFP8 = "mxfp8"
    """Scales of blocks, applied by the tensor cores: since Blackwell."""
    FP4 = "fp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """What a format costs beside the arithmetic."""

    units: TensorCores
    value_bytes: float
    """Bytes of a value of an operand, with its part of a scale."""
    casts: int = 0
    """Kernels that cast an operand, its largest value and the order of its scales included."""
    passes: int = 0
    """How often they read what they cast, in 16 bits: once, and once more where its largest value comes first."""

    is_measured: bool = False
    """Whether the law of its products was fitted to measured ones, on whatever GPU (`kernel_gemm`, `kernel_moe`)."""

    @property
    def cast_bytes(self) -> float:
        """Bytes that are read and written to cast a value: it is written twice, once of them transposed."""
        return SIXTEEN_BITS * self.passes + 2 * self.value_bytes

    @property
    def is_cast(self) -> bool:
        """Whether operands are cast at all."""
        return self.casts > 0


FORMATS: Mapping[Precision, NumberFormat] = {
    Precision.BF16: NumberFormat(units=TensorCores.BF16, value_bytes=SIXTEEN_BITS, is_measured=True),
    Precision.FP8: NumberFormat(units=TensorCores.FP8, value_bytes=1, casts=1, passes=1, is_measured=True),
    Precision.FP8_CURRENT: NumberFormat(units=TensorCores.FP8, value_bytes=1, casts=2, passes=2),
    Precision.FP8_BLOCKWISE: NumberFormat(units=TensorCores.FP8, value_bytes=1 + 4 / 128, casts=1, passes=1),
    Precision.MXFP8: NumberFormat(units=TensorCores.MXFP8, value_bytes=1 + 1 / 32, casts=2, passes=1),
    Precision.NVFP4: NumberFormat(units=TensorCores.FP4, value_bytes=1 / 2 + 1 / 16, casts=3, passes=2),
}
"""Formats by recipe; kernels of casts as of Transformer Engine 2."""


BF16_BYTES = 2
"""Of weights and activations, and of what GPUs send each other of them."""
FP32_BYTES = 4
"""Of gradients, and of all that the optimizer keeps."""
ADAMW_BYTES = 3 * FP32_BYTES
"""Of the states of AdamW for each parameter: master weight and both moments."""
