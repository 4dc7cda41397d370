"""SwiGLU and GeGLU, and activations without a gate."""

import torch
from torch import Tensor
from torch.nn import functional

from kareus.model.config import ActivationKind
from kareus.model.fused.dispatch import fused

_APPROXIMATIONS = {
    ActivationKind.GELU: "none",
    ActivationKind.GELU_TANH: "tanh",
    ActivationKind.GEGLU: "none",
    ActivationKind.GEGLU_TANH: "tanh",
}
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
def geglu(gate_up: Tensor, kind: ActivationKind) -> Tensor:
    """Return gelu(gate) * up of [..., 2 n], gate first; the kind says which GELU."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate=_APPROXIMATIONS[kind]) * up


@fused
def geglu_backward(gradient: Tensor, gate_up: Tensor, kind: ActivationKind) -> Tensor:
    """Return the gradient of the input of `geglu`, from that of its output."""
    gate, up = gate_up.chunk(2, dim=-1)
    approximation = _APPROXIMATIONS[kind]
    gate_gradient = torch.ops.aten.gelu_backward(gradient * up, gate, approximate=approximation)
    return torch.cat((gate_gradient, gradient * functional.gelu(gate, approximate=approximation)), dim=-1)


@fused
def activate(x: Tensor, kind: ActivationKind) -> Tensor:
    """Return an activation without a gate of each value of x."""
    if kind is ActivationKind.SQUARED_RELU:
        return functional.relu(x).square()
    if kind is ActivationKind.RELU:
        return functional.relu(x)
    return functional.gelu(x, approximate=_APPROXIMATIONS[kind])


@fused
def activate_backward(gradient: Tensor, x: Tensor, kind: ActivationKind) -> Tensor:
    """Return the gradient of the input of `activate`."""
    if kind is ActivationKind.SQUARED_RELU:
        return gradient * 2 * functional.relu(x)
    if kind is ActivationKind.RELU:
        return gradient * (x > 0)
    x_gradient: Tensor = torch.ops.aten.gelu_backward(gradient, x, approximate=_APPROXIMATIONS[kind])
    return x_gradient
