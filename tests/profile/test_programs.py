import pytest
from helpers.builders import block_graph, software, with_attention
from helpers.builders import graphs as plain_graphs
from hypothesis import given
from hypothesis import strategies as st

from kareus.frontiers.makeup import overlap_makeup
from kareus.graph.recomputation import Recomputation, block_backward
from kareus.graph.records import Batch, Direction, OperatorKind
from kareus.graph.split_backward import pass_segments
from kareus.profile.programs import (
    Execution,
    StageShape,
    chunk_shapes,
    component_programs,
    instruction_program,
    outer_segments,
    profiled_executions,
    stage_shapes,
)

OVERLAPPED = [Direction.FORWARD, Direction.BACKWARD, Direction.INPUT_GRADIENT]
SHAPES = st.builds(StageShape, layers=st.integers(1, 6), first=st.booleans(), last=st.booleans())


def graphs():
    sizes = {Batch.MICROBATCH: 32768, Batch.NANOBATCH: 16384}
    return {batch: with_attention(graph, sizes[batch]) for batch, graph in plain_graphs().items()}


def make(shape, direction, execution, *, recomputation=Recomputation.STAGE):
    return instruction_program(
        graphs(), shape, direction, execution, recomputation=recomputation, default_sm_count=24, software=software()
    )


def flops(program):
    return sum(o.flops for step in program.steps for o in step.operators)


def bus_bytes(program):
    return sum(step.collective.bus_bytes for step in program.steps if step.collective)


@given(SHAPES, st.sampled_from(Direction), st.sampled_from(Recomputation))
def test_both_execution_models_do_the_same_work(shape, direction, recomputation):
    sequential = make(shape, direction, Execution.SEQUENTIAL, recomputation=recomputation)
    nanobatching = make(shape, direction, Execution.NANOBATCHING, recomputation=recomputation)
    assert flops(nanobatching) == flops(sequential)
    assert bus_bytes(nanobatching) == pytest.approx(bus_bytes(sequential))


@given(SHAPES, st.sampled_from(OVERLAPPED), st.sampled_from(Recomputation))
def test_partitions_and_components_sum_to_the_instruction(shape, direction, recomputation):
    """The multiplicities of composition, and the program of the testbed, count the same work."""
    both = graphs()
    makeup = overlap_makeup(
        both[Batch.NANOBATCH], both[Batch.MICROBATCH], shape, direction, recomputation=recomputation
    )
    components = component_programs(both, 24, OVERLAPPED, recomputation=recomputation)
    inner = both[Batch.NANOBATCH]
    segments = {
        f"{s.direction}-{s.name}": s
        for d in OVERLAPPED
        for s in pass_segments(inner.forward, block_backward(inner, recomputation), d)
    }
    counted = sum(n * flops(components[name]) for name, n in (makeup.edges | makeup.outer).items())
    reduced = sum(n * bus_bytes(components[name]) for name, n in (makeup.edges | makeup.outer).items())
    for name, n in makeup.partitions.items():
        segment = segments[name.rpartition("-")[0]]
        counted += n * sum(o.flops for o in segment.operators)
        reduced += n * segment.collective.bus_bytes  # all collectives of this block are alike
    whole = make(shape, direction, Execution.NANOBATCHING, recomputation=recomputation)
    assert counted == flops(whole)
    assert reduced == pytest.approx(bus_bytes(whole))


def test_checkpointing_recomputes_the_forward_of_every_block():
    shape = StageShape(layers=3, first=False, last=False)
    forward = make(shape, Direction.FORWARD, Execution.SEQUENTIAL)
    without = make(shape, Direction.BACKWARD, Execution.SEQUENTIAL, recomputation=Recomputation.NONE)
    for recomputation in (Recomputation.FULL, Recomputation.STAGE):
        whole = make(shape, Direction.BACKWARD, Execution.SEQUENTIAL, recomputation=recomputation)
        assert flops(whole) == flops(forward) + flops(without)


def test_selective_recomputation_adds_attention_only():
    shape = StageShape(layers=3, first=False, last=False)
    without, found = (
        make(shape, Direction.BACKWARD, Execution.SEQUENTIAL, recomputation=r)
        for r in (Recomputation.NONE, Recomputation.SELECTIVE)
    )
    forward = make(shape, Direction.FORWARD, Execution.SEQUENTIAL)
    attention = sum(o.flops for s in forward.steps for o in s.operators if o.kind is OperatorKind.ATTENTION)
    assert flops(found) == flops(without) + attention
    names = [o.name for o in found.steps[1].operators]
    assert names.index("projection.dgrad") < names.index("attention.again") < names.index("projection.wgrad")


def test_full_recomputation_alternates_by_block():
    shape = StageShape(layers=2, first=False, last=False)
    program = make(shape, Direction.BACKWARD, Execution.SEQUENTIAL, recomputation=Recomputation.FULL)
    runs_forward = [
        any(o.kind is OperatorKind.ATTENTION or o.name == "down" for o in s.operators) for s in program.steps
    ]
    assert runs_forward == [True, True, False, False] * 2


def test_sequential_collectives_hide_behind_weight_gradients():
    program = make(
        StageShape(layers=1, first=False, last=False),
        Direction.BACKWARD,
        Execution.SEQUENTIAL,
        recomputation=Recomputation.NONE,
    )
    assert [s.operators[s.launch].name for s in program.steps] == ["gate_up.wgrad", "qkv.wgrad"]
    forward = make(StageShape(layers=1, first=False, last=False), Direction.FORWARD, Execution.SEQUENTIAL)
    assert all(s.launch == len(s.operators) for s in forward.steps)


def test_nanobatching_leaves_only_both_edges_alone():
    program = make(StageShape(layers=2, first=False, last=False), Direction.FORWARD, Execution.NANOBATCHING)
    assert [s.collective is None for s in program.steps] == [True] + [False] * 8
    assert [not s.operators for s in program.steps] == [False] * 8 + [True]


@given(SHAPES, st.sampled_from(Recomputation))
def test_both_gradients_do_what_a_whole_backward_does(shape, recomputation):
    whole = make(shape, Direction.BACKWARD, Execution.SEQUENTIAL, recomputation=recomputation)
    inputs = make(shape, Direction.INPUT_GRADIENT, Execution.SEQUENTIAL, recomputation=recomputation)
    weights = make(shape, Direction.WEIGHT_GRADIENT, Execution.SEQUENTIAL, recomputation=recomputation)
    assert flops(inputs) + flops(weights) == flops(whole)
    assert bus_bytes(inputs) == bus_bytes(whole)
    assert all(step.collective is None for step in weights.steps)


def test_weight_gradients_recompute_nothing():
    shape = StageShape(layers=2, first=True, last=True)
    assert make(shape, Direction.WEIGHT_GRADIENT, Execution.SEQUENTIAL) == make(
        shape, Direction.WEIGHT_GRADIENT, Execution.SEQUENTIAL, recomputation=Recomputation.NONE
    )
    assert profiled_executions(graphs(), Direction.WEIGHT_GRADIENT) == (Execution.SEQUENTIAL,)
    assert len(profiled_executions(graphs(), Direction.INPUT_GRADIENT)) == 2


def test_split_collectives_run_after_their_whole_segment():
    shape = StageShape(layers=1, first=False, last=False)
    program = make(shape, Direction.INPUT_GRADIENT, Execution.SEQUENTIAL, recomputation=Recomputation.NONE)
    assert [step.launch == len(step.operators) for step in program.steps] == [True, True]
    assert [o.name for o in program.steps[0].operators] == ["norm", "down.dgrad", "gate_up.dgrad"]


def test_the_ends_of_the_model_are_in_the_end_chunks():
    shapes = chunk_shapes([4, 6], 2)
    assert {place: shape.layers for place, shape in shapes.items()} == {(0, 0): 2, (0, 1): 2, (1, 0): 3, (1, 1): 3}
    assert [place for place, shape in shapes.items() if shape.first] == [(0, 0)]
    assert [place for place, shape in shapes.items() if shape.last] == [(1, 1)]


def test_the_ends_of_the_model_are_on_the_end_stages():
    first, middle, last = stage_shapes([8, 8, 8])
    graph = block_graph(1024)
    names = {
        shape.first * "first" + shape.last * "last": [
            s.name for s in outer_segments(graph, shape, Direction.BACKWARD, recomputation=Recomputation.NONE)
        ]
        for shape in (first, middle, last)
    }
    assert names == {"first": ["embedding"], "": [], "last": ["head"]}
    assert [
        s.name
        for s in outer_segments(graph, stage_shapes([28])[0], Direction.FORWARD, recomputation=Recomputation.NONE)
    ] == ["embedding", "head"]


def test_embedding_and_head_take_places_of_blocks_in_chunks():
    shapes = chunk_shapes((15, 16, 15), 8)
    assert [shapes[0, chunk].layers for chunk in range(8)] == [1, *[2] * 7]
    assert [shapes[2, chunk].layers for chunk in range(8)] == [*[2] * 7, 1]
    assert {shapes[1, chunk].layers for chunk in range(8)} == {2}
