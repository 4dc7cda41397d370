# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The functions of `kareus.model.fused` in Triton; imported on GPUs and in Triton's interpreter only.

Every kernel reads its inputs and writes its outputs once. What all rows share (weights of norms, angles) is read once
for several rows. Gradients of norm weights are summed in fp32 over the rows of a program, and the sums of all programs
in a fixed order by a second kernel, so that they are the same in every run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kareus.model.eager import HeadNorm, Normed, Rotated, split_heads

ROWS = 16
"""Rows of one program of a norm: what all rows share adds a sixteenth of a row to each."""
POSITIONS = 4
"""Token positions of one program of a rotation, each in all sequences of the batch, which share its angles."""
SPAN = 1024
"""Columns of one program of an elementwise kernel."""
SUMMED_ROWS, SUMMED_COLUMNS = 32, 64
"""Tile of the kernel that adds up the sums of programs."""
_ELEMENTS_PER_WARP = 512
"""Sixteen for each of a warp's threads: two loads of 16 bytes of bf16."""
_MOST_WARPS = 16


def residual_norm(stream: Tensor, update: Tensor | None, weight: Tensor, epsilon: float) -> Normed:
    """See `kareus.model.fused`."""
    size, adds = stream.shape[-1], update is not None
    stream = stream.contiguous()
    rows = stream.numel() // size
    total = torch.empty_like(stream) if adds else stream
    normed = torch.empty_like(stream)
    scale = torch.empty((*stream.shape[:-1], 1), dtype=torch.float32, device=stream.device)
    block = triton.next_power_of_2(size)
    update = stream if update is None else update.contiguous()
    _residual_norm[(triton.cdiv(rows, ROWS),)](
        stream, update, weight, total, normed, scale, rows, size, epsilon,
        ADDS=adds, ROWS=ROWS, BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    return Normed(total, normed, scale)


def residual_norm_backward(
    gradient: Tensor, stream_gradient: Tensor | None, stream: Tensor, scale: Tensor, weight: Tensor, total: Tensor
) -> Tensor:
    """See `kareus.model.fused`."""
    size, carries = stream.shape[-1], stream_gradient is not None
    gradient = gradient.contiguous()
    rows = stream.numel() // size
    programs, block = triton.cdiv(rows, ROWS), triton.next_power_of_2(size)
    result = torch.empty_like(stream)
    sums = torch.empty((1, programs, size), dtype=torch.float32, device=stream.device)
    carried = gradient if stream_gradient is None else stream_gradient.contiguous()
    _residual_norm_backward[(programs,)](
        gradient, carried, stream, scale, weight, result, sums, rows, size,
        CARRIES=carries, ROWS=ROWS, BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    _add_sums(sums, total, total)
    return result


def rotate(
    qkv: Tensor, angles: tuple[Tensor, Tensor], heads: tuple[int, int], norm: HeadNorm | None, *, apart: bool
) -> tuple[Rotated, tuple[Tensor, ...]]:
    """See `kareus.model.fused`."""
    cosine, sine = angles
    dim = 2 * cosine.shape[-1]
    own = split_heads(qkv, heads, head_dim=dim)
    batch, tokens, width = qkv.shape
    fresh = apart or norm is not None
    query = qkv.new_empty(own.query.shape) if fresh else own.query
    key = qkv.new_empty(own.key.shape) if fresh else own.key
    value = qkv.new_empty(own.value.shape) if apart else own.value
    scales: tuple[Tensor, ...] = ()
    if norm is not None:
        scales = tuple(torch.empty((*t.shape[:-1], 1), dtype=torch.float32, device=t.device) for t in own[:2])
    query_scale, key_scale = scales or (cosine, cosine)
    query_weight, key_weight = (norm.query_weight, norm.key_weight) if norm else (cosine, cosine)
    _rotate[(triton.cdiv(tokens, POSITIONS),)](
        qkv, query, key, value, query_scale, key_scale, query_weight, key_weight, cosine, sine,
        batch, tokens, width, query.stride(1), key.stride(1), norm.epsilon if norm else 0.0,
        NORMS=norm is not None, APART=apart, **_head_sizes(heads, dim),
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
    _add_sums(sums, *totals)
    return result


def swiglu(gate_up: Tensor) -> Tensor:
    """See `kareus.model.fused`."""
    gate_up = gate_up.contiguous()
    size = gate_up.shape[-1] // 2
    result = gate_up.new_empty((*gate_up.shape[:-1], size))
    _swiglu[(result.numel() // size, triton.cdiv(size, SPAN))](gate_up, result, size, SPAN=SPAN)
    return result


def swiglu_backward(gradient: Tensor, gate_up: Tensor) -> Tensor:
    """See `kareus.model.fused`."""
    gradient, gate_up = gradient.contiguous(), gate_up.contiguous()
    size = gradient.shape[-1]
    result = torch.empty_like(gate_up)
    grid = (gradient.numel() // size, triton.cdiv(size, SPAN))
    _swiglu_backward[grid](gradient, gate_up, result, size, SPAN=SPAN)
    return result


def exponentials(logits: Tensor, maximum: Tensor, rows: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """See `kareus.model.fused`."""
    size = logits.shape[-1]
    total, labelled = torch.empty_like(maximum), torch.empty_like(maximum)
    _exponentials[(maximum.numel(),)](
        logits, maximum, rows, mine, total, labelled, size, SPAN=4 * SPAN, num_warps=_warps(4 * SPAN)
    )
    return total, labelled


def log_sum_exp(logits: Tensor, rows: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """See `kareus.model.eager`."""
    result = torch.empty(rows.shape, dtype=torch.float32, device=logits.device)
    labelled = torch.empty_like(result)
    _log_sum_exp[(rows.numel(),)](
        logits, rows, mine, result, labelled, logits.shape[-1], SPAN=4 * SPAN, num_warps=_warps(4 * SPAN)
    )
    return result, labelled


def cross_entropy_backward_(logits: Tensor, log_sum_exp: Tensor, rows: Tensor, mine: Tensor, factor: Tensor) -> None:
    """See `kareus.model.fused`."""
    size = logits.shape[-1]
    grid = (log_sum_exp.numel(), triton.cdiv(size, SPAN))
    _cross_entropy_backward[grid](logits, log_sum_exp, rows, mine, factor, size, SPAN=SPAN)


def embed(ids: Tensor, weight: Tensor, first: int) -> Tensor:
    """See `kareus.model.fused`."""
    rows, size = weight.shape
    result = weight.new_empty((*ids.shape, size))
    _embed[(ids.numel(), triton.cdiv(size, SPAN))](ids.contiguous(), weight, result, first, rows, size, SPAN=SPAN)
    return result


def embed_backward(gradient: Tensor, ids: Tensor, first: int, total: Tensor) -> None:
    """See `kareus.model.fused`."""
    rows, size = total.shape
    by_id, places = ids.flatten().sort(stable=True)
    _embed_backward[(ids.numel(), triton.cdiv(size, SUMMED_COLUMNS))](
        gradient.contiguous(), by_id, places, total, first, rows, ids.numel(), size,
        ROWS=8, COLUMNS=SUMMED_COLUMNS, num_warps=2,
    )  # fmt: skip


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
        NORMS=norms, **_head_sizes(heads, dim),
    )  # fmt: skip
    return result, sums


def _head_sizes(heads: tuple[int, int], dim: int) -> dict[str, int]:
    sizes = {"QUERIES": triton.next_power_of_2(heads[0]), "KEYS": triton.next_power_of_2(heads[1])}
    sizes |= {"HALF": triton.next_power_of_2(dim // 2), "POSITIONS": POSITIONS}
    warps = _warps(2 * max(sizes["QUERIES"], sizes["KEYS"]) * sizes["HALF"])
    return {**sizes, "query_heads": heads[0], "key_heads": heads[1], "half": dim // 2, "num_warps": warps}


def _warps(elements: int) -> int:
    return min(max(elements // _ELEMENTS_PER_WARP, 1), _MOST_WARPS)


def _add_sums(sums: Tensor, first: Tensor, second: Tensor) -> None:
    """Add sums[0] over its rows to `first`, sums[1], if there is one, to `second`."""
    totals, rows, size = sums.shape
    _add_rows[(triton.cdiv(size, SUMMED_COLUMNS), totals)](
        sums, first, second, rows, size, ROWS=SUMMED_ROWS, COLUMNS=SUMMED_COLUMNS, num_warps=4
    )


@triton.jit
def _residual_norm(
    stream,
    update,
    weight,
    total,
    normed,
    scale,
    rows,
    size,
    epsilon,
    ADDS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    within = column < size
    gain = tl.load(weight + column, mask=within, other=0).to(tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    start = first * size
    for n in range(ROWS):
        inside = within & (first + n < rows)
        at = start + n * size + column
        value = tl.load(stream + at, mask=inside, other=0)
        if ADDS:
            added = tl.load(update + at, mask=inside, other=0)
            value = (value.to(tl.float32) + added.to(tl.float32)).to(normed.dtype.element_ty)
            tl.store(total + at, value, mask=inside)
        wide = value.to(tl.float32)
        factor = tl.rsqrt(tl.sum(wide * wide, 0) / size + epsilon)
        tl.store(scale + first + n, factor, mask=first + n < rows)
        scaled = (wide * factor).to(normed.dtype.element_ty).to(tl.float32)  # rounded, as by the model's definition
        tl.store(normed + at, (scaled * gain).to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _residual_norm_backward(
    gradient,
    carried,
    stream,
    scale,
    weight,
    result,
    sums,
    rows,
    size,
    CARRIES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    within = column < size
    gain = tl.load(weight + column, mask=within, other=0).to(tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    start = first * size
    summed = tl.zeros([BLOCK], tl.float32)
    for n in range(ROWS):
        inside = within & (first + n < rows)
        at = start + n * size + column
        factor = tl.load(scale + first + n, mask=first + n < rows, other=0)
        normed = tl.load(stream + at, mask=inside, other=0).to(tl.float32) * factor
        arriving = tl.load(gradient + at, mask=inside, other=0).to(tl.float32)
        summed += arriving * normed
        inner = arriving * gain
        leaving = (inner - normed * (tl.sum(inner * normed, 0) / size)) * factor
        if CARRIES:
            leaving += tl.load(carried + at, mask=inside, other=0).to(tl.float32)
        tl.store(result + at, leaving.to(result.dtype.element_ty), mask=inside)
    tl.store(sums + tl.program_id(0).to(tl.int64) * size + column, summed, mask=within)


@triton.jit
def _add_rows(sums, first, second, rows, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    within = column < size
    source = sums + tl.program_id(1).to(tl.int64) * rows * size
    summed = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        summed += tl.sum(
            tl.load(source + row * size + column[None, :], mask=(row < rows) & within[None, :], other=0), 0
        )
    if tl.program_id(1) == 0:
        tl.store(first + column, tl.load(first + column, mask=within, other=0) + summed, mask=within)
    else:
        tl.store(second + column, tl.load(second + column, mask=within, other=0) + summed, mask=within)


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
        own = sums + tl.program_id(0) * dim + flat
        others = own + programs * dim
        tl.store(own, query_sum_first, mask=flat < half)
        tl.store(own + half, query_sum_second, mask=flat < half)
        tl.store(others, key_sum_first, mask=flat < half)
        tl.store(others + half, key_sum_second, mask=flat < half)


@triton.jit
def _swiglu(gate_up, result, size, SPAN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = column < size
    gate = tl.load(gate_up + row * 2 * size + column, mask=inside, other=0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + column, mask=inside, other=0).to(tl.float32)
    active = (gate * tl.sigmoid(gate)).to(result.dtype.element_ty).to(tl.float32)  # rounded, as by the definition
    tl.store(result + row * size + column, (active * up).to(result.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_backward(gradient, gate_up, result, size, SPAN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = column < size
    arriving = tl.load(gradient + row * size + column, mask=inside, other=0).to(tl.float32)
    gate = tl.load(gate_up + row * 2 * size + column, mask=inside, other=0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + column, mask=inside, other=0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    gate_gradient = arriving * up * sigmoid * (1 + gate * (1 - sigmoid))
    tl.store(result + row * 2 * size + column, gate_gradient.to(result.dtype.element_ty), mask=inside)
    up_gradient = arriving * gate * sigmoid
    tl.store(result + row * 2 * size + size + column, up_gradient.to(result.dtype.element_ty), mask=inside)


@triton.jit
def _exponentials(logits, maximum, rows, mine, total, labelled, size, SPAN: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    largest = tl.load(maximum + token)
    label = tl.load(rows + token)
    held = tl.load(mine + token) != 0
    summed = tl.zeros([SPAN], tl.float32)
    found = tl.zeros([SPAN], tl.float32)
    for start in range(0, size, SPAN):
        column = start + tl.arange(0, SPAN)
        inside = column < size
        logit = tl.load(logits + token * size + column, mask=inside, other=-float("inf")).to(tl.float32)
        summed += tl.exp(logit - largest)
        found += tl.where(inside & held & (column == label), logit, 0.0)
    tl.store(total + token, tl.sum(summed, 0))
    tl.store(labelled + token, tl.sum(found, 0))


@triton.jit
def _log_sum_exp(logits, rows, mine, result, labelled, size, SPAN: tl.constexpr):
    """As `_exponentials`, with the largest logit so far of every lane, by which its sum is scaled (online softmax)."""
    token = tl.program_id(0).to(tl.int64)
    label = tl.load(rows + token)
    held = tl.load(mine + token) != 0
    largest = tl.full([SPAN], -3.0e38, tl.float32)
    summed = tl.zeros([SPAN], tl.float32)
    found = tl.zeros([SPAN], tl.float32)
    for start in range(0, size, SPAN):
        column = start + tl.arange(0, SPAN)
        inside = column < size
        logit = tl.load(logits + token * size + column, mask=inside, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(largest, logit)
        summed = summed * tl.exp(largest - larger) + tl.exp(logit - larger)
        largest = larger
        found += tl.where(inside & held & (column == label), logit, 0.0)
    maximum = tl.max(largest, 0)
    tl.store(result + token, tl.log(tl.sum(summed * tl.exp(largest - maximum), 0)) + maximum)
    tl.store(labelled + token, tl.sum(found, 0))


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


@triton.jit
def _embed(ids, weight, result, first, rows, size, SPAN: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = column < size
    row = tl.load(ids + token) - first
    held = (row >= 0) & (row < rows)
    value = tl.load(weight + row * size + column, mask=inside & held, other=0)
    tl.store(result + token * size + column, value, mask=inside)


@triton.jit
def _embed_backward(
    gradient, by_id, places, total, first, rows, tokens, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The program of the first of equal ids adds up the gradients of all of them, in order."""
    start = tl.program_id(0)
    own = tl.load(by_id + start)
    before = tl.load(by_id + start - 1, mask=start > 0, other=-1)
    row = own - first
    if (own != before) & (row >= 0) & (row < rows):
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        within = column < size
        summed = tl.zeros([COLUMNS], tl.float32)
        place = start + tl.arange(0, ROWS)
        same = tl.load(by_id + place, mask=place < tokens, other=-1) == own
        while tl.sum(same.to(tl.int32), 0) > 0:
            source = tl.load(places + place, mask=same, other=0)
            mask = same[:, None] & within[None, :]
            summed += tl.sum(
                tl.load(gradient + source[:, None] * size + column[None, :], mask=mask, other=0).to(tl.float32), 0
            )
            place += ROWS
            same = tl.load(by_id + place, mask=place < tokens, other=-1) == own
        at = total + row * size + column
        tl.store(at, tl.load(at, mask=within, other=0) + summed, mask=within)
