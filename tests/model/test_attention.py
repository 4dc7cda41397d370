"""Handing gradients of keys and values out to the ranks that hold them."""

import pytest
import torch

from kareus.model.attention import _in_order, _summed_by_rank

CHUNK = 3


@pytest.mark.parametrize("size", [2, 3, 4])
def test_gradients_of_two_chunks_are_summed_by_rank(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    for rank in range(size):
        front, back = (torch.rand(2, CHUNK * n, 5, 4, generator=generator) for n in (rank + 1, 2 * size - rank))
        whole = torch.zeros(2, 2 * size * CHUNK, 5, 4)
        whole[:, : front.shape[1]] += front
        whole[:, : back.shape[1]] += back
        summed = _summed_by_rank(front, back.clone(), size)
        assert summed.shape == (size, 2, 2 * CHUNK, 5, 4)
        torch.testing.assert_close(_in_order(summed), whole)
