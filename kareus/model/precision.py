"""Bytes of what mixed precision keeps, as in Megatron-LM; formats of products are in `kareus.graph.number_formats`."""

BF16_BYTES = 2
"""Of weights and activations, and of what GPUs send each other of them."""
FP32_BYTES = 4
"""Of gradients, and of all that the optimizer keeps."""
ADAMW_BYTES = 3 * FP32_BYTES
"""Of the states of AdamW for each parameter: master weight and both moments."""
