"""Traces evaluated for sizes, against traces at these sizes."""

import dataclasses

import pytest
from helpers.builders import small_model
from helpers.examples import about
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import KareusError
from kareus.graph.records import Batch, Direction
from kareus.model.parallelism import Parallelism, Sharding
from kareus.partition import template
from kareus.partition.events import Region, Trace, TracedEvent
from kareus.partition.extract import extract, graph_of
from kareus.partition.structure import Structure, probes
from kareus.partition.template import template_of
from kareus.partition.trace import trace
from kareus.partition.trace_cache import cached_template

DEGREES = [(1, 1), (2, 1), (8, 1), (1, 2), (4, 2)]
PLAIN = Structure(qk_norm=False, qkv_bias=False, tensor_parallel=True, cp=1, ones=())
FIRST, SECOND = probes(PLAIN)


@st.composite
def workloads(draw, least=2):
    """A model, its degrees, a microbatch of sizes from `least` on, and a sequence."""
    tp, cp = draw(st.sampled_from(DEGREES))
    size = st.integers(least, 40)
    key_value, shared, qwen = draw(size), draw(st.integers(1, 5)), draw(st.booleans())
    model = small_model(
        hidden_size=draw(size),
        intermediate_size=draw(size) * tp,
        num_attention_heads=key_value * shared * tp,
        num_key_value_heads=key_value * tp,
        head_dim=2 * draw(size),
        vocab_size=draw(size) * tp,
        qk_norm=qwen,
        qkv_bias=qwen,
    )
    parallelism = Parallelism(
        dp=1, pp=1, tp=tp, cp=cp, layers_per_stage=(2,), sharding=Sharding.NONE, sequence_parallel=False
    )
    return model, parallelism, 2 * draw(st.integers(least, 6)), 2 * cp * draw(size)


def traced_anew(model, parallelism, microbatch_size, sequence_length):
    sizes = {Batch.MICROBATCH: microbatch_size, Batch.NANOBATCH: microbatch_size // 2}
    return {batch: graph_of(trace(model, parallelism, size, sequence_length)) for batch, size in sizes.items()}


@given(workloads())
@about(5)
def test_a_graph_is_that_of_a_fresh_trace(workload):
    assert extract(*workload) == traced_anew(*workload)


@given(workloads(least=1))
@about(2)
def test_a_graph_with_sizes_of_one_is_that_of_a_fresh_trace(workload):
    model, parallelism, _, sequence_length = workload
    model = dataclasses.replace(model, num_key_value_heads=parallelism.tp, head_dim=2)
    assert extract(model, parallelism, 2, sequence_length) == traced_anew(model, parallelism, 2, sequence_length)


def test_a_template_reads_back_as_it_was_written():
    known = cached_template(PLAIN)
    assert template.from_plain(template.to_plain(known)) == known


def recorded(*shape, kernel="mm", buffer=7, offset=0):
    size = 2
    for n in shape:
        size *= n
    region = Region(buffer, offset, size, tuple(shape), 2)
    return Trace((TracedEvent("mlp.down", Direction.FORWARD, kernel, (region,), (region,)),), frozenset({buffer, 99}))


def test_sizes_are_named_by_their_factors():
    traces = [(recorded(4 * d.batch * d.hidden, d.tokens), d) for d in (FIRST, SECOND)]
    made = template_of(traces)
    ((buffer, start, elements, shape, itemsize),) = made.regions
    assert shape == ((4, ("batch", "hidden")), (1, ("tokens",)))
    assert (elements, buffer, start, itemsize) == ((4, ("batch", "hidden", "tokens")), 0, 0, 2)
    assert made.lasting == {0}
    sizes = dataclasses.replace(FIRST, batch=3, hidden=5, tokens=7)
    assert made.trace(sizes, {}).events[0].reads[0] == Region(0, 0, 2 * 4 * 3 * 5 * 7, (60, 7), 2)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (recorded(FIRST.batch + FIRST.hidden), recorded(SECOND.batch + SECOND.hidden), "which is no dimension"),
        (recorded(FIRST.batch), recorded(SECOND.hidden), "a size is no product of dimensions"),
        (recorded(2 * FIRST.batch), recorded(3 * SECOND.batch), "a size is no product of dimensions"),
        (recorded(FIRST.batch), recorded(SECOND.batch, kernel="addmm"), "mm depends on the sizes"),
        (recorded(FIRST.batch), Trace((), frozenset()), "mm depends on the sizes"),
        (Trace((), frozenset()), recorded(SECOND.batch), "more kernels depends on the sizes"),
    ],
)
def test_what_is_no_product_of_dimensions_is_refused(first, second, message):
    with pytest.raises(KareusError, match=message):
        template_of([(first, FIRST), (second, SECOND)])
