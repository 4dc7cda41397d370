"""Handing gradients of keys and values out to the ranks that hold them."""

import pytest
import torch

from kareus.model.attention import MASK_ALIGNMENT, _in_order, _summed_by_rank, alibi_slopes, causal_mask, shared_masks

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


def test_a_mask_is_made_once_for_all_blocks_and_passes() -> None:
    masks, slopes = shared_masks(4, 0, 4), alibi_slopes(4)
    query, key = torch.randn(2, 5, 4, 8), torch.randn(2, 21, 4, 8)
    mask = masks.of_batch(query, key, slopes)
    assert torch.equal(mask, causal_mask(query, 5, 21, slopes).expand(2, -1, -1, -1))
    assert mask.stride(2) % MASK_ALIGNMENT == 0
    again = shared_masks(4, 0, 4).of_batch(query[:1], key[:1], slopes)
    assert again.data_ptr() == mask.data_ptr()
    assert shared_masks(4, 2, 2) is not masks
