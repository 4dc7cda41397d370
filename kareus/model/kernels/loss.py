# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Cross-entropy and its backward in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kareus.model.kernels.sums import FMA, warps

SPAN = 4096
"""Columns that one program reads at once."""


def exponentials(logits: Tensor, maximum: Tensor, rows: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """See `kareus.model.fused`."""
    size = logits.shape[-1]
    total, labelled = torch.empty_like(maximum), torch.empty_like(maximum)
    _exponentials[(maximum.numel(),)](
        logits, maximum, rows, mine, total, labelled, size, SPAN=SPAN, num_warps=warps(SPAN), **FMA
    )
    return total, labelled


def mean_loss(total: Tensor, labelled: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
    """See `kareus.model.fused`."""
    log_sum_exp = torch.empty_like(maximum)
    loss = maximum.new_empty(())
    _mean_loss[(1,)](
        total, labelled, maximum, log_sum_exp, loss, maximum.numel(), SPAN=SPAN, num_warps=warps(SPAN), **FMA
    )
    return loss, log_sum_exp


def cross_entropy(logits: Tensor, rows: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """See `kareus.model.fused`."""
    log_sum_exp = torch.empty(rows.shape, dtype=torch.float32, device=logits.device)
    labelled = torch.empty_like(log_sum_exp)
    _log_sum_exp[(rows.numel(),)](
        logits, rows, mine, log_sum_exp, labelled, logits.shape[-1], SPAN=SPAN, num_warps=warps(SPAN), **FMA
    )
    return (log_sum_exp - labelled).mean(), log_sum_exp


def cross_entropy_backward_(logits: Tensor, log_sum_exp: Tensor, rows: Tensor, mine: Tensor, factor: Tensor) -> None:
    """See `kareus.model.fused`."""
    size = logits.shape[-1]
    grid = (log_sum_exp.numel(), triton.cdiv(size, SPAN))
    _cross_entropy_backward[grid](
        logits, log_sum_exp, rows, mine, factor, size, SPAN=SPAN, num_warps=warps(SPAN), **FMA
    )


@triton.jit
def _exponentials(logits, maximum, rows, mine, total, labelled, size, SPAN: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    largest = tl.load(maximum + token)
    label = tl.load(rows + token)
    is_mine = tl.load(mine + token) != 0
    summed = tl.zeros([SPAN], tl.float32)
    logits_of = tl.zeros([SPAN], tl.float32)
    for start in range(0, size, SPAN):
        column = start + tl.arange(0, SPAN)
        inside = column < size
        logit = tl.load(logits + token * size + column, mask=inside, other=-float("inf")).to(tl.float32)
        summed += tl.exp(logit - largest)
        logits_of += tl.where(inside & is_mine & (column == label), logit, 0.0)
    tl.store(total + token, tl.sum(summed, 0))
    tl.store(labelled + token, tl.sum(logits_of, 0))


@triton.jit
def _mean_loss(total, labelled, maximum, log_sum_exp, loss, tokens, SPAN: tl.constexpr):
    """One program adds up all tokens, in order: there is one number of each."""
    summed = tl.zeros([SPAN], tl.float32)
    for start in range(0, tokens, SPAN):
        token = start + tl.arange(0, SPAN)
        inside = token < tokens
        whole = tl.log(tl.load(total + token, mask=inside, other=1)) + tl.load(maximum + token, mask=inside, other=0)
        tl.store(log_sum_exp + token, whole, mask=inside)
        summed += tl.where(inside, whole - tl.load(labelled + token, mask=inside, other=0), 0.0)
    tl.store(loss, tl.sum(summed, 0) / tokens)


@triton.jit
def _log_sum_exp(logits, rows, mine, result, labelled, size, SPAN: tl.constexpr):
    """As `_exponentials`, with the largest logit so far of every lane, by which its sum is scaled (online softmax)."""
    token = tl.program_id(0).to(tl.int64)
    label = tl.load(rows + token)
    is_mine = tl.load(mine + token) != 0
    largest = tl.full([SPAN], -3.0e38, tl.float32)
    summed = tl.zeros([SPAN], tl.float32)
    logits_of = tl.zeros([SPAN], tl.float32)
    for start in range(0, size, SPAN):
        column = start + tl.arange(0, SPAN)
        inside = column < size
        logit = tl.load(logits + token * size + column, mask=inside, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(largest, logit)
        summed = summed * tl.exp(largest - larger) + tl.exp(logit - larger)
        largest = larger
        logits_of += tl.where(inside & is_mine & (column == label), logit, 0.0)
    maximum = tl.max(largest, 0)
    tl.store(result + token, tl.log(tl.sum(summed * tl.exp(largest - maximum), 0)) + maximum)
    tl.store(labelled + token, tl.sum(logits_of, 0))


@triton.jit
def _cross_entropy_backward(logits, log_sum_exp, rows, mine, factor, size, SPAN: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = column < size
    logit = tl.load(logits + token * size + column, mask=inside, other=0).to(tl.float32)
    probability = tl.exp(logit - tl.load(log_sum_exp + token))
    is_label = (column == tl.load(rows + token)) & (tl.load(mine + token) != 0)
    result = (probability - tl.where(is_label, 1.0, 0.0)) * tl.load(factor)
    tl.store(logits + token * size + column, result.to(logits.dtype.element_ty), mask=inside)
