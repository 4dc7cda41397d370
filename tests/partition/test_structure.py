"""Which facts and sizes a trace depends on, held against torch's symbolic shapes, which know."""

import dataclasses
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from kareus.model.config import Model
from kareus.partition import trace as tracing
from kareus.partition.structure import FUSED_HEADS, Dimensions, Structure, probes
from kareus.partition.trace_cache import cached_template

NAMES = [field.name for field in dataclasses.fields(Dimensions)]
WITHOUT_HEADS = [name for name in NAMES if name not in ("query_heads", "key_value_heads")]
ONES = [(), ("key_value_heads",), ("query_heads", "key_value_heads")]


def structure(**changes: object) -> Structure:
    facts = {"qk_norm": True, "qkv_bias": True, "tensor_parallel": True, "cp": 2, "ones": ()}
    return Structure(**{**facts, **changes})


@given(st.sets(st.sampled_from(WITHOUT_HEADS)), st.sampled_from(ONES), st.sampled_from([1, 2, 8, 64]))
def test_sizes_that_are_probed_are_distinct_primes(others, heads, cp):
    ones = tuple(name for name in NAMES if name in {*others, *heads})
    first, second = probes(structure(ones=ones, cp=cp))
    for dimensions in (first, second):
        sizes = {name: size for name, size in dimensions.named().items() if size not in (1, 3)}
        assert {name for name in NAMES if name not in sizes} == set(ones)
        assert len(set(sizes.values())) == len(sizes)
        assert all(size > 4 * cp and all(size % d for d in range(2, math.isqrt(size) + 1)) for size in sizes.values())
    assert all(getattr(first, name) != getattr(second, name) for name in NAMES if name not in ones)
    assert (FUSED_HEADS in sizes) == ("query_heads" not in ones)


def symbolic(structure: Structure, monkeypatch):
    """A trace whose sizes are torch's symbols, those symbols by name, and the conditions that it holds under."""
    environment = ShapeEnv(duck_shape=False, specialize_zero_one=True)
    sizes = {}
    for size, name in enumerate(NAMES, start=101):
        source = ConstantSource(name)
        symbol = environment.create_symbol(size, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
        sizes[name] = environment.create_symintnode(symbol, hint=size, source=source)

    monkeypatch.setattr(tracing, "_without_memory", lambda: FakeTensorMode(shape_env=environment))
    for module in ("config", "parallelism"):
        monkeypatch.setattr(f"kareus.model.{module}.within", lambda *_: None)
    monkeypatch.setattr(Model, "rotary_dim", property(lambda model: model.head_dim))  # a share of 1.0 makes it a float
    trace = tracing.trace_structure(structure, Dimensions(**sizes))
    return trace, {name: size.node.expr for name, size in sizes.items()}, environment


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "facts",
    [
        {"cp": 1, "qk_norm": False, "qkv_bias": False},
        {},
        {"tensor_parallel": False},
        {"token_shards": 2},
        {"token_shards": 8, "cp": 1},
    ],
)
def test_torch_finds_no_condition_and_the_same_sizes(facts, monkeypatch):
    own = structure(**facts)
    trace, symbols, environment = symbolic(own, monkeypatch)
    # All that is asked of a size n is whether 2 n, cut in parts of n, is 2 parts: (3 n - 1) // n, which is 2 for any n.
    for guard in environment.guards:
        # A size may be a symbol, or with shared tokens twice one.
        once, twice = r"Eq\(\(\(3\*(s\d+) - 1\)//\1\), 2\)", r"Eq\(\(\(6\*(s\d+) - 1\)//\(2\*\1\)\), 2\)"
        assert re.fullmatch(once, str(guard.expr)) or re.fullmatch(twice, str(guard.expr)), guard
    sizes = Dimensions(
        batch=4, tokens=6, hidden=10, head_pairs=3, query_heads=8, key_value_heads=2, intermediate=14, vocabulary=22
    )
    values = {symbols[name]: getattr(sizes, name) for name in NAMES}

    def number(size: object) -> int:
        return int(size.node.expr.subs(values)) if isinstance(size, torch.SymInt) else size

    evaluated = cached_template(own).trace(sizes, {"tp": max(2, own.token_shards), "cp": own.cp})
    assert len(evaluated.events) == len(trace.events)
    for found, expected in zip(evaluated.events, trace.events, strict=True):
        assert (found.path, found.kernel, found.direction) == (expected.path, expected.kernel, expected.direction)
        for mine, its in zip((*found.reads, *found.writes), (*expected.reads, *expected.writes), strict=True):
            assert (mine.size_bytes, mine.shape) == (number(its.size_bytes), tuple(map(number, its.shape)))
