"""The fp32 buffers in which backwards add up weight gradients."""

from collections.abc import Iterator

from torch import Tensor, nn

from kareus.model.layers import WEIGHT_GRADIENT_SUFFIX


def weight_gradients(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of each weight and the fp32 buffer of its gradient; shared weights once."""
    for name, buffer in module.named_buffers():
        if name.endswith(WEIGHT_GRADIENT_SUFFIX):
            yield name.removesuffix(WEIGHT_GRADIENT_SUFFIX), buffer
