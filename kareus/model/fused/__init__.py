"""Memory-bound operators of a model, each function one pass over its inputs and outputs; without autograd.

A function is declared once, with its definition in PyTorch's own operations, which move several times the bytes: they
run on CPUs, where there is no Triton, and in tracing. On GPUs the kernels of the same names in `kareus.model.kernels`
take their place (`dispatch.py`). The operator graph counts the bytes of the latter: inputs and outputs, once each.

Sums are fp32; what leaves in bf16 is rounded where the model's own definition rounds it (transformers' Llama and
Qwen 3).
"""

from kareus.model.fused.activations import activate, activate_backward, geglu, geglu_backward, swiglu, swiglu_backward
from kareus.model.fused.embedding import add_over_sequences, embed, embed_backward, own_rows
from kareus.model.fused.layer_norms import Affine, LayerNormed, residual_layer_norm, residual_layer_norm_backward
from kareus.model.fused.loss import cross_entropy, cross_entropy_backward_, exponentials, maxima, mean_loss
from kareus.model.fused.norms import Normed, residual_norm, residual_norm_backward
from kareus.model.fused.rotary import (
    HeadNorm,
    Rotated,
    norm_rotate_backward,
    rotate,
    rotate_backward,
    rotate_part,
    rotate_part_backward,
    split_heads,
)

__all__ = [
    "Affine",
    "HeadNorm",
    "LayerNormed",
    "Normed",
    "Rotated",
    "activate",
    "activate_backward",
    "add_over_sequences",
    "cross_entropy",
    "cross_entropy_backward_",
    "embed",
    "embed_backward",
    "exponentials",
    "geglu",
    "geglu_backward",
    "maxima",
    "mean_loss",
    "norm_rotate_backward",
    "own_rows",
    "residual_layer_norm",
    "residual_layer_norm_backward",
    "residual_norm",
    "residual_norm_backward",
    "rotate",
    "rotate_backward",
    "rotate_part",
    "rotate_part_backward",
    "split_heads",
    "swiglu",
    "swiglu_backward",
]
