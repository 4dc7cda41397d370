"""Properties of the fused kernels, for a process that was started with TRITON_INTERPRET=1; run as a module."""

from inspect import unwrap

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers import examples
from helpers.triton_interpreter import MovedBytes, round_to_nearest
from kareus.model import fused
from kareus.model.config import ActivationKind
from kareus.model.fused import Affine, HeadNorm, Rotated, own_rows
from kareus.model.fused.dispatch import INTERPRETED
from kareus.model.kernels import activations, embedding, layer_norms, loss, norms, rotary

ALLOWED = {torch.float32: 3e-6, torch.bfloat16: 2.0**-7}
"""Largest difference over the largest value: of bf16, a unit in the last place, where two ways of rounding meet."""
DTYPES = st.sampled_from(list(ALLOWED))
ANY = examples.drawn(12)


def same(found: Tensor, expected: Tensor, dtype: torch.dtype, what: str) -> None:
    assert found.shape == expected.shape, what
    assert found.dtype == expected.dtype, what
    difference = (found.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-12)
    assert difference <= ALLOWED[dtype], f"{what}: {float(difference):.3g}"


def is_view(tensor: Tensor, whole: Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def drawn(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@ANY
@given(dtype=DTYPES, rows=st.integers(1, 35), size=st.integers(1, 300), adds=st.booleans())
def norm(dtype: torch.dtype, rows: int, size: int, adds: bool) -> None:
    stream, update, gradient, carried = drawn(dtype, 4, rows, size)
    weight = drawn(dtype, size)
    added = update if adds else None
    found = norms.residual_norm(stream, added, weight, 1e-5)
    expected = unwrap(fused.residual_norm)(stream, added, weight, 1e-5)
    for name, own, other in zip(found._fields, found, expected, strict=True):
        same(own, other, dtype, name)
    totals = torch.ones(2, size)
    carries = carried if adds else None
    kept = (expected.stream, expected.scale, weight)
    own = norms.residual_norm_backward(gradient, carries, *kept, totals[0])
    same(own, unwrap(fused.residual_norm_backward)(gradient, carries, *kept, totals[1]), dtype, "gradient")
    same(totals[0], totals[1], torch.float32, "weight gradient")


@ANY
@given(dtype=DTYPES, rows=st.integers(1, 35), size=st.integers(1, 300), adds=st.booleans(), biased=st.booleans())
def layer_norm(dtype: torch.dtype, rows: int, size: int, adds: bool, biased: bool) -> None:
    stream, update, gradient, carried = drawn(dtype, 4, rows, size)
    weight, bias = drawn(dtype, 2, size)
    affine, added = Affine(weight, bias if biased else None), update if adds else None
    found = layer_norms.residual_layer_norm(stream, added, affine, 1e-5)
    expected = unwrap(fused.residual_layer_norm)(stream, added, affine, 1e-5)
    for name, own, other in zip(found._fields, found, expected, strict=True):
        same(own, other, dtype, name)
    totals = torch.ones(2, 2, size)
    own_totals, other_totals = (Affine(total[0], total[1] if biased else None) for total in totals)
    kept, carries = (expected.stream, expected.mean, expected.scale), carried if adds else None
    own = layer_norms.residual_layer_norm_backward(gradient, carries, kept, weight, own_totals)
    other = unwrap(fused.residual_layer_norm_backward)(gradient, carries, kept, weight, other_totals)
    same(own, other, dtype, "gradient")
    same(totals[0], totals[1], torch.float32, "weight gradients")


@ANY
@given(
    dtype=DTYPES,
    batch=st.integers(1, 3),
    tokens=st.integers(1, 6),
    heads=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    half=st.integers(1, 9),
    norms=st.booleans(),
    apart=st.booleans(),
)
def rotation(
    dtype: torch.dtype, batch: int, tokens: int, heads: tuple[int, int], half: int, norms: bool, apart: bool
) -> None:
    dim, number = 2 * half, heads[0] + 2 * heads[1]
    angles = drawn(torch.float32, tokens, 1, half), drawn(torch.float32, tokens, 1, half) / 2
    norm = HeadNorm(*drawn(dtype, 2, dim), 1e-5) if norms else None
    qkv = drawn(dtype, batch, tokens, number * dim)
    own, other = qkv.clone(), qkv.clone()
    found, own_scales = rotary.rotate(own, angles, heads, norm, apart=apart)
    expected, scales = unwrap(fused.rotate)(other, angles, heads, norm, apart=apart)
    for name, mine, its in zip(("query", "key", "value"), found, expected, strict=True):
        same(mine, its, dtype, name)
        assert is_view(mine, own) == is_view(its, other), name
    same(own, other, dtype, "input, which is changed in place or not at all")
    gradients = Rotated(*[drawn(dtype, batch, tokens, n, dim) for n in (heads[0], heads[1], heads[1])])
    if norm is None:
        same(
            rotary.rotate_backward(gradients, angles),
            unwrap(fused.rotate_backward)(gradients, angles),
            dtype,
            "gradient",
        )
        return
    for mine, its in zip(own_scales, scales, strict=True):
        same(mine, its, torch.float32, "scales")
    totals = torch.ones(2, 2, dim)
    back = rotary.norm_rotate_backward(gradients, angles, qkv, scales, norm, (totals[0, 0], totals[0, 1]))
    wanted = unwrap(fused.norm_rotate_backward)(gradients, angles, qkv, scales, norm, (totals[1, 0], totals[1, 1]))
    same(back, wanted, dtype, "gradient")
    same(totals[0], totals[1], torch.float32, "weight gradients")


@ANY
@given(dtype=DTYPES, rows=st.integers(1, 5), size=st.integers(1, 1500))
def gated(dtype: torch.dtype, rows: int, size: int) -> None:
    gate_up, gradient = drawn(dtype, rows, 2 * size), drawn(dtype, rows, size)
    same(activations.swiglu(gate_up), unwrap(fused.swiglu)(gate_up), dtype, "output")
    wide = unwrap(fused.swiglu_backward)(gradient.float(), gate_up.float())
    same(activations.swiglu_backward(gradient, gate_up), wide.to(dtype), dtype, "gradient")
    for kind in (ActivationKind.GEGLU, ActivationKind.GEGLU_TANH):
        same(activations.geglu(gate_up, kind), unwrap(fused.geglu)(gate_up, kind), dtype, "output")
        wide = unwrap(fused.geglu_backward)(gradient.float(), gate_up.float(), kind)
        same(activations.geglu_backward(gradient, gate_up, kind), wide.to(dtype), dtype, "gradient")


@ANY
@given(dtype=DTYPES, rows=st.integers(1, 5), size=st.integers(1, 1500))
def ungated(dtype: torch.dtype, rows: int, size: int) -> None:
    x, gradient = drawn(dtype, 2, rows, size)
    for kind in (kind for kind in ActivationKind if not kind.gated):
        same(activations.activate(x, kind), unwrap(fused.activate)(x.float(), kind).to(dtype), dtype, "output")
        wide = unwrap(fused.activate_backward)(gradient.float(), x.float(), kind)
        same(activations.activate_backward(gradient, x, kind), wide.to(dtype), dtype, "gradient")


@ANY
@given(dtype=DTYPES, tokens=st.integers(1, 5), size=st.integers(1, 9000), first=st.integers(0, 4000))
def entropy(dtype: torch.dtype, tokens: int, size: int, first: int) -> None:
    logits = 3 * drawn(dtype, tokens, size)
    labels = torch.randint(0, 9000, (tokens,), generator=torch.Generator().manual_seed(size))
    rows, mine = own_rows(labels, size, first)
    maximum = logits.amax(-1).float()
    found = loss.exponentials(logits, maximum, rows, mine)
    for name, own, other in zip(
        ("sum", "label"), found, unwrap(fused.exponentials)(logits, maximum, rows, mine), strict=True
    ):
        same(own, other, torch.float32, name)
    given = (found[0], found[1], maximum)
    for name, own, other in zip(
        ("loss", "log-sum-exp"), loss.mean_loss(*given), unwrap(fused.mean_loss)(*given), strict=True
    ):
        same(own, other, torch.float32, name)
    once, expected = loss.cross_entropy(logits, rows, mine), unwrap(fused.cross_entropy)(logits, rows, mine)
    for name, own, other in zip(("loss", "log-sum-exp"), once, expected, strict=True):
        same(own, other, torch.float32, name)
    own, other = logits.clone(), logits.clone()
    kept = (found[0].log() + maximum, rows, mine, torch.tensor(0.3))
    loss.cross_entropy_backward_(own, *kept)
    unwrap(fused.cross_entropy_backward_)(other, *kept)
    same(own, other, dtype, "gradient")


@ANY
@given(
    dtype=DTYPES,
    ids=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    first=st.integers(0, 5),
    rows=st.integers(1, 6),
    size=st.integers(1, 130),
)
def lookup(dtype: torch.dtype, ids: list[int], first: int, rows: int, size: int) -> None:
    weight, gradient, tokens = drawn(dtype, rows, size), drawn(dtype, len(ids), size), torch.tensor(ids)
    for added in (None, gradient):
        found = embedding.embed(tokens, weight, first, added)
        assert torch.equal(found, unwrap(fused.embed)(tokens, weight, first, added))
    several = embedding.embed(tokens.repeat(2, 1), weight, first, gradient)
    assert torch.equal(several, unwrap(fused.embed)(tokens.repeat(2, 1), weight, first, gradient))
    totals = torch.ones(2, rows, size)
    embedding.embed_backward(gradient, tokens, first, totals[0])
    unwrap(fused.embed_backward)(gradient, tokens, first, totals[1])
    same(totals[0], totals[1], torch.float32, "weight gradient")


def positions() -> None:
    """Of all tokens, and of two chunks that a rank holds of a sequence."""
    whole, chunks = [(slice(0, 6), slice(0, 6))], [(slice(3, 6), slice(0, 3)), (slice(9, 12), slice(3, 6))]
    for places in (whole, chunks):
        gradient, totals = drawn(torch.bfloat16, 3, 6, 40), torch.ones(2, 12, 40)
        embedding.add_over_sequences(gradient, totals[0], places)
        unwrap(fused.add_over_sequences)(gradient, totals[1], places)
        same(totals[0], totals[1], torch.float32, "gradient of positions")


def norm_backwards_move_what_is_recorded() -> None:
    """Inputs and outputs once each, and at most a tenth more: sums of programs for gradients of weight and offset."""
    size, moved = 96, {}
    for rows in (64, 128):
        stream, gradient = drawn(torch.bfloat16, 2, rows, size)
        weight, totals, scale = drawn(torch.bfloat16, size), torch.zeros(2, size), torch.ones(rows, 1)
        with MovedBytes() as rms:
            norms.residual_norm_backward(gradient, None, stream, scale, weight, totals[0])
        with MovedBytes() as layer:
            kept = (stream, scale, scale)
            layer_norms.residual_layer_norm_backward(gradient, None, kept, weight, Affine(totals[0], totals[1]))
        moved[rows] = [own.loaded + own.stored for own in (rms, layer)]
    for scales, few, more in zip((1, 2), moved[64], moved[128], strict=True):
        recorded = 64 * (3 * torch.bfloat16.itemsize * size + scales * torch.float32.itemsize)
        assert recorded < more - few <= 1.1 * recorded


def main() -> None:
    assert INTERPRETED
    round_to_nearest()
    norm_backwards_move_what_is_recorded()
    for holds in (norm, layer_norm, rotation, gated, ungated, entropy, lookup, positions):
        holds()


if __name__ == "__main__":
    main()
