"""Numbers in mixed precision, as in Megatron-LM, and their bytes."""

from enum import StrEnum


class Precision(StrEnum):
    """What the products of a model's blocks take."""

    BF16 = "bf16"
    """Operands of 16 bits."""
    FP8 = "fp8"
    """Operands of 8 bits, cast where they are made (Transformer Engine); predicted alone, the engine has none."""


BF16_BYTES = 2
"""Of weights and activations, and of what GPUs send each other of them."""
FP32_BYTES = 4
"""Of gradients, and of all that the optimizer keeps."""
ADAMW_BYTES = 3 * FP32_BYTES
"""Of the states of AdamW for each parameter: master weight and both moments."""
