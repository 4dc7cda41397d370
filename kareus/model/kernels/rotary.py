# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Rotation of queries and keys, with their norm or without, and its backward in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kareus.model.fused.rotary import HeadNorm, Rotated, split_heads
from kareus.model.kernels.sums import FMA, add_sums, warps

POSITIONS = 4
"""Token positions of one program, each in all sequences of the batch, which share its angles."""


def rotate(
    qkv: Tensor, angles: tuple[Tensor, Tensor], heads: tuple[int, int], norm: HeadNorm | None, *, apart: bool
) -> tuple[Rotated, tuple[Tensor, ...]]:
    """See `kareus.model.fused`."""
    cosine, sine = angles
    dim = 2 * cosine.shape[-1]
    heads_of = split_heads(qkv, heads, head_dim=dim)
    batch, tokens, width = qkv.shape
    fresh = apart or norm is not None
    query = qkv.new_empty(heads_of.query.shape) if fresh else heads_of.query
    key = qkv.new_empty(heads_of.key.shape) if fresh else heads_of.key
    value = qkv.new_empty(heads_of.value.shape) if apart else heads_of.value
    scales: tuple[Tensor, ...] = ()
    if norm is not None:
        scales = tuple(torch.empty((*t.shape[:-1], 1), dtype=torch.float32, device=t.device) for t in heads_of[:2])
    query_scale, key_scale = scales or (cosine, cosine)
    query_weight, key_weight = (norm.query_weight, norm.key_weight) if norm else (cosine, cosine)
    _rotate[(triton.cdiv(tokens, POSITIONS),)](
        qkv, query, key, value, query_scale, key_scale, query_weight, key_weight, cosine, sine,
        batch, tokens, width, query.stride(1), key.stride(1), norm.epsilon if norm else 0.0,
        NORMS=norm is not None, APART=apart, **_head_sizes(heads, dim), **FMA,
    )  # fmt: skip
    return Rotated(query, key, value), scales


def rotate_backward(gradients: Rotated, angles: tuple[Tensor, Tensor]) -> Tensor:
    """See `kareus.model.fused`."""
    cosine, _ = angles
    result, _ = _rotated_back(gradients, angles, (cosine, (cosine, cosine), (cosine, cosine)), norms=False)
    return result


def norm_rotate_backward(
    gradients: Rotated,
    angles: tuple[Tensor, Tensor],
    qkv: Tensor,
    scales: tuple[Tensor, ...],
    norm: HeadNorm,
    totals: tuple[Tensor, Tensor],
) -> Tensor:
    """See `kareus.model.fused`."""
    kept = (qkv, scales, (norm.query_weight, norm.key_weight))
    result, sums = _rotated_back(gradients, angles, kept, norms=True)
    add_sums(sums, *totals)
    return result


def _rotated_back(
    gradients: Rotated,
    angles: tuple[Tensor, Tensor],
    kept: tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, Tensor]],
    *,
    norms: bool,
) -> tuple[Tensor, Tensor]:
    """Gradient of `qkv`, and of each program's rows those of the norms' weights, [2, programs, head_dim]."""
    query, key, value = (t.contiguous() for t in gradients)
    qkv, scales, weights = kept
    batch, tokens, query_heads, dim = query.shape
    heads = query_heads, key.shape[2]
    programs = triton.cdiv(tokens, POSITIONS)
    result = query.new_empty(batch, tokens, (heads[0] + 2 * heads[1]) * dim)
    sums = torch.empty((2, programs if norms else 0, dim), dtype=torch.float32, device=query.device)
    _rotate_backward[(programs,)](
        query, key, value, qkv, *scales, *weights, *angles, result, sums, batch, tokens, result.shape[-1], programs,
        NORMS=norms, **_head_sizes(heads, dim), **FMA,
    )  # fmt: skip
    return result, sums


def _head_sizes(heads: tuple[int, int], dim: int) -> dict[str, int]:
    sizes = {"QUERIES": triton.next_power_of_2(heads[0]), "KEYS": triton.next_power_of_2(heads[1])}
    sizes |= {"HALF": triton.next_power_of_2(dim // 2), "POSITIONS": POSITIONS}
    sizes |= {"num_warps": warps(2 * max(sizes["QUERIES"], sizes["KEYS"]) * sizes["HALF"])}
    return {**sizes, "query_heads": heads[0], "key_heads": heads[1], "half": dim // 2}


@triton.jit
def _gains(weight, half, NORMS: tl.constexpr, HALF: tl.constexpr):
    """Both halves of the weight of a head's norm, each [1, half]."""
    place = tl.arange(0, HALF)[None, :]
    first = tl.zeros([1, HALF], tl.float32)
    second = first
    if NORMS:
        first = tl.load(weight + place, mask=place < half, other=0).to(tl.float32)
        second = tl.load(weight + half + place, mask=place < half, other=0).to(tl.float32)
    return first, second


@triton.jit
def _turned(
    source,
    target,
    scale,
    first_gain,
    second_gain,
    cosine,
    sine,
    heads,
    half,
    epsilon,
    inside,
    NORMS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Rotate the heads of one token, [heads, 2 half], after their norm if there is one."""
    head = tl.arange(0, HEADS)
    place = tl.arange(0, HALF)[None, :]
    mask = inside & (head < heads)[:, None] & (place < half)
    at = head[:, None] * (2 * half) + place
    first = tl.load(source + at, mask=mask, other=0).to(tl.float32)
    second = tl.load(source + at + half, mask=mask, other=0).to(tl.float32)
    dtype: tl.constexpr = target.dtype.element_ty
    if NORMS:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        factor = tl.rsqrt(squares / (2 * half) + epsilon)
        tl.store(scale + head, factor, mask=inside & (head < heads))
        first = ((first * factor[:, None]).to(dtype).to(tl.float32) * first_gain).to(dtype).to(tl.float32)
        second = ((second * factor[:, None]).to(dtype).to(tl.float32) * second_gain).to(dtype).to(tl.float32)
    tl.store(target + at, (first * cosine - second * sine).to(dtype), mask=mask)
    tl.store(target + at + half, (second * cosine + first * sine).to(dtype), mask=mask)


@triton.jit
def _copied(source, target, heads, half, inside, HEADS: tl.constexpr, HALF: tl.constexpr):
    head = tl.arange(0, HEADS)[:, None]
    place = tl.arange(0, 2 * HALF)[None, :]
    mask = inside & (head < heads) & (place < 2 * half)
    at = head * (2 * half) + place
    tl.store(target + at, tl.load(source + at, mask=mask, other=0), mask=mask)


@triton.jit
def _rotate(
    qkv,
    query,
    key,
    value,
    query_scale,
    key_scale,
    query_weight,
    key_weight,
    cosine,
    sine,
    batch,
    tokens,
    width,
    query_stride,
    key_stride,
    epsilon,
    query_heads,
    key_heads,
    half,
    NORMS: tl.constexpr,
    APART: tl.constexpr,
    POSITIONS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HALF: tl.constexpr,
):
    place = tl.arange(0, HALF)[None, :]
    query_first, query_second = _gains(query_weight, half, NORMS, HALF)
    key_first, key_second = _gains(key_weight, half, NORMS, HALF)
    dim = 2 * half
    for n in range(POSITIONS):
        token = tl.program_id(0) * POSITIONS + n
        inside = token < tokens
        shown = inside & (place < half)
        turn = tl.load(cosine + token * half + place, mask=shown, other=0)
        lift = tl.load(sine + token * half + place, mask=shown, other=0)
        for sequence in range(batch):
            row = token.to(tl.int64) + sequence * tokens
            source = qkv + row * width
            _turned(
                source, query + row * query_stride, query_scale + row * query_heads, query_first, query_second,
                turn, lift, query_heads, half, epsilon, inside, NORMS, QUERIES, HALF,
            )  # fmt: skip
            _turned(
                source + query_heads * dim, key + row * key_stride, key_scale + row * key_heads, key_first, key_second,
                turn, lift, key_heads, half, epsilon, inside, NORMS, KEYS, HALF,
            )  # fmt: skip
            if APART:
                behind = (query_heads + key_heads) * dim
                _copied(source + behind, value + row * key_heads * dim, key_heads, half, inside, KEYS, HALF)


@triton.jit
def _turned_back(
    gradient,
    source,
    scale,
    first_gain,
    second_gain,
    cosine,
    sine,
    result,
    heads,
    half,
    inside,
    NORMS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Gradient of the heads of one token before `_turned`, and that of the norm's weight in two halves, [half]."""
    head = tl.arange(0, HEADS)
    place = tl.arange(0, HALF)[None, :]
    mask = inside & (head < heads)[:, None] & (place < half)
    at = head[:, None] * (2 * half) + place
    arriving_first = tl.load(gradient + at, mask=mask, other=0).to(tl.float32)
    arriving_second = tl.load(gradient + at + half, mask=mask, other=0).to(tl.float32)
    dtype: tl.constexpr = result.dtype.element_ty
    first = arriving_first * cosine + arriving_second * sine
    second = arriving_second * cosine - arriving_first * sine
    first_sum = tl.zeros([HALF], tl.float32)
    second_sum = first_sum
    if NORMS:
        first, second = first.to(dtype).to(tl.float32), second.to(dtype).to(tl.float32)
        factor = tl.load(scale + head, mask=inside & (head < heads), other=0)[:, None]
        normed_first = tl.load(source + at, mask=mask, other=0).to(tl.float32) * factor
        normed_second = tl.load(source + at + half, mask=mask, other=0).to(tl.float32) * factor
        first_sum = tl.sum(first * normed_first, 0)
        second_sum = tl.sum(second * normed_second, 0)
        first, second = first * first_gain, second * second_gain
        product = tl.sum(first * normed_first, 1) + tl.sum(second * normed_second, 1)
        mean = (product / (2 * half))[:, None]
        first = (first - normed_first * mean) * factor
        second = (second - normed_second * mean) * factor
    tl.store(result + at, first.to(dtype), mask=mask)
    tl.store(result + at + half, second.to(dtype), mask=mask)
    return first_sum, second_sum


@triton.jit
def _rotate_backward(
    query,
    key,
    value,
    qkv,
    query_scale,
    key_scale,
    query_weight,
    key_weight,
    cosine,
    sine,
    result,
    sums,
    batch,
    tokens,
    width,
    programs,
    query_heads,
    key_heads,
    half,
    NORMS: tl.constexpr,
    POSITIONS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HALF: tl.constexpr,
):
    place = tl.arange(0, HALF)[None, :]
    query_first, query_second = _gains(query_weight, half, NORMS, HALF)
    key_first, key_second = _gains(key_weight, half, NORMS, HALF)
    dim = 2 * half
    query_sum_first = tl.zeros([HALF], tl.float32)
    query_sum_second = query_sum_first
    key_sum_first = query_sum_first
    key_sum_second = query_sum_first
    for n in range(POSITIONS):
        token = tl.program_id(0) * POSITIONS + n
        inside = token < tokens
        shown = inside & (place < half)
        turn = tl.load(cosine + token * half + place, mask=shown, other=0)
        lift = tl.load(sine + token * half + place, mask=shown, other=0)
        for sequence in range(batch):
            row = token.to(tl.int64) + sequence * tokens
            source = qkv + row * width
            target = result + row * width
            first, second = _turned_back(
                query + row * query_heads * dim, source, query_scale + row * query_heads, query_first, query_second,
                turn, lift, target, query_heads, half, inside, NORMS, QUERIES, HALF,
            )  # fmt: skip
            query_sum_first += first
            query_sum_second += second
            before = query_heads * dim
            first, second = _turned_back(
                key + row * key_heads * dim, source + before, key_scale + row * key_heads, key_first, key_second,
                turn, lift, target + before, key_heads, half, inside, NORMS, KEYS, HALF,
            )  # fmt: skip
            key_sum_first += first
            key_sum_second += second
            behind = (query_heads + key_heads) * dim
            _copied(value + row * key_heads * dim, target + behind, key_heads, half, inside, KEYS, HALF)
    if NORMS:
        flat = tl.arange(0, HALF)
        sums_here = sums + tl.program_id(0) * dim + flat
        others = sums_here + programs * dim
        tl.store(sums_here, query_sum_first, mask=flat < half)
        tl.store(sums_here + half, query_sum_second, mask=flat < half)
        tl.store(others, key_sum_first, mask=flat < half)
        tl.store(others + half, key_sum_second, mask=flat < half)
