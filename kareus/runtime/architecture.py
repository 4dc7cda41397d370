"""Architectures that are planned and that the engine cannot train."""

import torch

from kareus.errors import EngineError
from kareus.model.config import Model, PositionKind


def check_trains(model: Model, device: torch.device) -> None:
    """Check that the engine trains `model` on devices of this type.

    Raises:
        EngineError: it does not; with what it would need.
    """
    shares = model.num_key_value_heads < model.num_attention_heads
    if model.positions is PositionKind.ALIBI and shares and device.type != "cpu":
        raise EngineError(
            f"model.positions=alibi: PyTorch's attention with a bias needs a head of keys and values for each of "
            f"{model.num_attention_heads} heads of queries, and model.num_key_value_heads is "
            f"{model.num_key_value_heads}; it is planned, and trained on CPUs alone (--communicator gloo)."
        )
