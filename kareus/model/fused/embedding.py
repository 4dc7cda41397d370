"""Lookup in the rows of an embedding that one GPU holds."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from kareus.model.fused.dispatch import fused


@fused
def embed(ids: Tensor, weight: Tensor, first: int, added: Tensor | None = None) -> Tensor:
    """Look up ids in rows of an embedding; zero where they are elsewhere.

    Args:
        ids: [..., tokens].
        weight: rows `first` and after of the embedding, [rows, size].
        first: see `weight`.
        added: to what is looked up, [tokens, size]; None adds nothing.
    """
    rows, mine = own_rows(ids, weight.shape[0], first)
    looked_up = functional.embedding(rows, weight) * mine.unsqueeze(-1)
    return looked_up if added is None else looked_up + added


@fused
def embed_backward(gradient: Tensor, ids: Tensor, first: int, total: Tensor) -> None:
    """Add the gradient of `embed`, [..., size], to that of the rows, `total`, [rows, size], fp32."""
    rows, mine = own_rows(ids, total.shape[0], first)
    update = (gradient * mine.unsqueeze(-1)).flatten(0, -2).float()
    total.index_add_(0, rows.flatten(), update)


@fused
def add_over_sequences(gradient: Tensor, total: Tensor, places: Sequence[tuple[slice, slice]]) -> None:
    """Add the sum over sequences of a gradient to rows of `total`.

    Args:
        gradient: [batch, tokens, size].
        total: [rows, size], fp32.
        places: rows, and as many tokens that are added to them.
    """
    summed = gradient.sum(0, dtype=total.dtype)
    for rows, tokens in places:
        total[rows].add_(summed[tokens])


def own_rows(ids: Tensor, rows: int, first: int) -> tuple[Tensor, Tensor]:
    """Row of each id in this GPU's shard, which begins with id `first` (0 for ids of others), and a mask of its ids."""
    shifted = ids - first
    mine = (shifted >= 0) & (shifted < rows)
    return shifted * mine, mine
