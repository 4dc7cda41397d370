"""Weights before training, drawn so that they depend on the seed alone and not on how the model is divided."""

import torch
from torch import Tensor, nn

from kareus.artifacts.records import content_hash
from kareus.model.communication import Mesh
from kareus.model.config import Model
from kareus.model.layers import INITIAL_STD
from kareus.model.weights import ALONE, Piece, fill_rows, held_pieces, own_part

_MATRIX = 2
"""Dimensions of the weights that are drawn; norms start at one and biases at zero."""
_BIAS = "bias"
"""Ends the name of every bias."""


def draw_weights(stage: nn.Module, model: Model, seed: int, first_layer: int, mesh: Mesh = ALONE) -> None:
    """Initialise a stage's weights: each matrix is drawn whole by its own generator, and this GPU keeps its shard.

    Args:
        stage: as `kareus.model.weights.load_weights` takes it, or a part of one; likewise the others.
        model: the architecture.
        seed: of the training.
        first_layer: number of the stage's first block in the model.
        mesh: of this GPU.
    """
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            if parameter.dim() == _MATRIX:
                held = held_pieces(model, name, first_layer, mesh)
                fill_rows(parameter, (_drawn(piece, seed, mesh) for piece in held))
            else:
                parameter.fill_(0 if name.endswith(_BIAS) else 1)


def _drawn(piece: Piece, seed: int, mesh: Mesh) -> Tensor:
    generator = torch.Generator().manual_seed(int(content_hash((seed, piece.name)), 16) >> 1)
    return torch.empty(piece.shape).normal_(std=INITIAL_STD, generator=generator)[own_part(piece, mesh)]
