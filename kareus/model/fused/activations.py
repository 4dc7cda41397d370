"""SwiGLU."""

import torch
from torch import Tensor
from torch.nn import functional

from kareus.model.fused.dispatch import fused


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
