"""SwiGLU, and activations without a gate."""

import torch
from torch import Tensor
from torch.nn import functional

from kareus.model.config import ActivationKind
from kareus.model.fused.dispatch import fused

_APPROXIMATIONS = {ActivationKind.GELU: "none", ActivationKind.GELU_TANH: "tanh"}
"""What PyTorch calls them."""


@fused
def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up of [..., 2 n], gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


@fused
def swiglu_backward(gradient: Tensor, gate_up: Tensor) -> Tensor:
    """Return the gradient of the input of `swiglu`, from that of its output."""
    gate, up = gate_up.chunk(2, dim=-1)
    sigmoid = torch.sigmoid(gate)
    gate_gradient = gradient * up * sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat((gate_gradient, gradient * gate * sigmoid), dim=-1)


@fused
def activate(x: Tensor, kind: ActivationKind) -> Tensor:
    """Return an activation without a gate of each value of x."""
    if kind is ActivationKind.SQUARED_RELU:
        return functional.relu(x).square()
    return functional.gelu(x, approximate=_APPROXIMATIONS[kind])


@fused
def activate_backward(gradient: Tensor, x: Tensor, kind: ActivationKind) -> Tensor:
    """Return the gradient of the input of `activate`."""
    if kind is ActivationKind.SQUARED_RELU:
        return gradient * 2 * functional.relu(x)
    x_gradient: Tensor = torch.ops.aten.gelu_backward(gradient, x, approximate=_APPROXIMATIONS[kind])
    return x_gradient
