"""Operators with a backward of their own."""

import pytest
import torch

from kareus.model.functions import LinearFunction, apply

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
BF16_ROUNDING = 2.0**-9
"""Half a unit in the last place of a number with 8 significant bits, relative."""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_weight_gradients_in_bf16_are_not_rounded_to_bf16(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, upstream, bias = (
        torch.randn(shape, generator=generator).to(device, torch.bfloat16)
        for shape in ((512, 48), (32, 48), (512, 32), (32,))
    )
    weight_gradient, bias_gradient = torch.zeros(32, 48, device=device), torch.zeros(32, device=device)
    x.requires_grad_()
    for _ in range(2):  # added to what is there
        apply(LinearFunction, x, weight, weight_gradient, bias, bias_gradient).backward(upstream)
    exact = 2 * upstream.double().t() @ x.detach().double()
    error = ((weight_gradient - exact).norm() / exact.norm()).item()
    assert error < BF16_ROUNDING / 1000
    sums = 2 * upstream.double().sum(0)
    assert ((bias_gradient - sums).norm() / sums.norm()).item() < BF16_ROUNDING / 1000
