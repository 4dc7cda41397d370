"""Programs of partitions, components and whole instructions, built from the operator graph.

The order of execution comes from `kareus.graph.interleave`.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from kareus.graph.instruction import place_in_line
from kareus.graph.interleave import Pair, block_passes, partition_of, stages_with_all_pairs, staggered
from kareus.graph.recomputation import Recomputation, head_backward
from kareus.graph.records import (
    RECOMPUTING,
    TRACED,
    Batch,
    BlockGraph,
    Direction,
    Partition,
    Program,
    Scope,
    Segment,
    Step,
)
from kareus.graph.split_backward import pass_segments
from kareus.model.training_options import Replicated
from kareus.profile.sharded import (
    COMPUTING_GRADIENTS,
    ShardedWeights,
    WeightLayout,
    sharded_weights,
    with_sharded_weights,
)
from kareus.schedule.records import Choice
from kareus.software.record import Software
from kareus.software.steps import dispatched, overlapped


class Execution(StrEnum):
    """Execution model of an instruction."""

    SEQUENTIAL = "sequential"
    """One microbatch, as its software runs it: collectives exposed but for what it hides by itself."""
    NANOBATCHING = "nanobatching"
    """Two nanobatches, collectives as soon as possible on the default number of SMs."""
    OVERLAP = "overlap"
    """Two nanobatches, every partition under its own execution schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShape:
    """Parts of the model on a pipeline stage, or in one of its chunks."""

    layers: int
    first: bool
    """Whether it has the embedding."""
    last: bool
    """Whether it has the final norm, the LM head and the loss."""
    dense: int = 0
    """Blocks, of all, that have an MLP where the others of a mixture of experts have these."""


def chunk_shapes(
    layers_per_stage: Sequence[int],
    chunks: int,
    dense_layers: Collection[int] = (),
    *,
    folded: bool = False,
    stages: int | None = None,
) -> Mapping[tuple[int, int], StageShape]:
    """Return the shapes by stage and chunk.

    A microbatch passes the first chunk of every stage, then the second of every stage; see `place_in_line`.

    Args:
        layers_per_stage: blocks on each stage, a multiple of `chunks`; or less, where embedding or head take the place
            of blocks in the first chunk of the first stage or the last of the last. Or blocks on each chunk, in the
            order in which a microbatch passes them.
        chunks: parts into which every stage is cut, equal ones unless their blocks are given; 1 where it is whole.
        dense_layers: numbers of the blocks of a mixture of experts that have none.
        folded: whether the second chunks are passed from the last stage to the first.
        stages: of the pipeline; as many as `layers_per_stage` has entries if None.

    Examples:
        >>> [shape.layers for shape in chunk_shapes((3, 4), 2).values()]
        [1, 2, 2, 2]
        >>> {place: shape.layers for place, shape in chunk_shapes((3, 3, 3, 2), 2, folded=True, stages=2).items()}
        {(0, 0): 3, (0, 1): 2, (1, 0): 3, (1, 1): 3}
    """
    layers = tuple(layers_per_stage)
    return _shapes(layers, chunks, tuple(dense_layers), folded, len(layers) if stages is None else stages)


@lru_cache(maxsize=4096)  # whoever compares layouts asks for each many times
def _shapes(
    layers_per_stage: tuple[int, ...],
    chunks: int,
    dense_layers: tuple[int, ...],
    folded: bool,  # noqa: FBT001 - a key of what is kept
    stages: int,
) -> Mapping[tuple[int, int], StageShape]:
    ends = (0, 0), (0 if folded else stages - 1, chunks - 1)
    shapes = {}
    for place in itertools.product(range(stages), range(chunks)):
        if len(layers_per_stage) == stages:
            whole = -(-layers_per_stage[place[0]] // chunks)
            layers = whole - (chunks * whole - layers_per_stage[place[0]] if place in ends else 0)
        else:
            layers = layers_per_stage[place_in_line(*place, stages, folded=folded)]
        shapes[place] = StageShape(layers=layers, first=place == ends[0], last=place == ends[1])
    return _with_dense(shapes, dense_layers, folded=folded) if dense_layers else shapes


def _with_dense(
    shapes: dict[tuple[int, int], StageShape], dense_layers: Collection[int], *, folded: bool
) -> dict[tuple[int, int], StageShape]:
    """Return shapes that say how many of their blocks are dense; a model's blocks pass the chunks in turn."""
    counted, passed, stages = dict(shapes), 0, 1 + max(stage for stage, _ in shapes)
    for place in sorted(shapes, key=lambda place: place_in_line(place[0], place[1], stages, folded=folded)):
        layers = range(passed, passed + shapes[place].layers)
        passed = layers.stop
        counted[place] = replace(shapes[place], dense=sum(layer in layers for layer in dense_layers))
    return counted


class LaidOut(Replicated, Protocol):
    """A workload, or a slice of it, that says which blocks are where."""

    @property
    def chunks(self) -> int:
        """Chunks of each stage's layers."""


def laid_out_shapes(config: LaidOut) -> Mapping[tuple[int, int], StageShape]:
    """Return the shapes of a workload by stage and chunk."""
    layout = config.parallelism
    dense = config.model.dense_layers
    return chunk_shapes(layout.placed, config.chunks, dense, folded=layout.folded, stages=layout.pp)


def stage_shapes(layers_per_stage: Sequence[int]) -> tuple[StageShape, ...]:
    """Return the shapes of all stages of a pipeline whose stages are whole."""
    return tuple(chunk_shapes(layers_per_stage, 1).values())


def outer_segments(
    graph: BlockGraph, shape: StageShape, direction: Direction, *, recomputation: Recomputation
) -> tuple[Segment, ...]:
    """Return the segments of a stage outside its blocks, in the order of the forward or backward pass."""
    embedding = pass_segments(graph.embedding_forward, graph.embedding_backward, direction) if shape.first else ()
    backward = graph.head_backward
    if direction in RECOMPUTING:
        backward = head_backward(graph, recomputation)
    head = pass_segments(graph.head_forward, backward, direction) if shape.last else ()
    return (*embedding, *head) if direction is Direction.FORWARD else (*head, *embedding)


def profiled_executions(graphs: Mapping[Batch, BlockGraph], direction: Direction) -> tuple[Execution, ...]:
    """Return the execution models for which whole instructions are profiled.

    A microbatch with an odd number of sequences cannot be split into two nanobatches, and a weight-gradient instruction
    has no collectives to overlap: both are profiled sequentially only.
    """
    halves = Batch.NANOBATCH in graphs and direction is not Direction.WEIGHT_GRADIENT
    return (Execution.SEQUENTIAL, Execution.NANOBATCHING) if halves else (Execution.SEQUENTIAL,)


def component_programs(
    graphs: Mapping[Batch, BlockGraph],
    default_sm_count: int,
    directions: Sequence[Direction] = TRACED,
    *,
    recomputation: Recomputation,
) -> dict[str, Program]:
    """Return the programs of every non-partition component, by name.

    Components outside the blocks handle a whole microbatch. Those of an overlapped instruction that nothing runs
    beside, as its first segment and its last collective, handle one nanobatch; there are none without collectives or
    nanobatches. A weight-gradient pass is only ever measured whole, so it has none.
    """
    composed = [direction for direction in directions if direction is not Direction.WEIGHT_GRADIENT]
    ends = StageShape(layers=0, first=True, last=True)
    graph = graphs[Batch.MICROBATCH]
    segments = [s for d in composed for s in outer_segments(graph, ends, d, recomputation=recomputation)]
    programs = {component_name(s): _sequential_program(component_name(s), [s], default_sm_count) for s in segments}
    if Batch.NANOBATCH in graphs:
        for pair in _unpaired(graphs[Batch.NANOBATCH], composed, recomputation):
            name = unpaired_name(pair)
            programs[name] = Program(name=name, steps=(_beside(pair, default_sm_count, {}),))
    return programs


def _unpaired(graph: BlockGraph, directions: Sequence[Direction], recomputation: Recomputation) -> Iterator[Pair]:
    """Yield the components that run alone, of instructions with and without the recomputation of blocks."""
    if not any(segment.collective for segment in graph.forward):
        return
    alone = Recomputation.NONE if recomputation.repeats_blocks else recomputation
    stages = itertools.product(dict.fromkeys((recomputation, alone)), stages_with_all_pairs(graph))
    for direction, (repeated, (layers, dense)) in itertools.product(directions, stages):
        pairs = staggered(graph, layers, direction, recomputation=repeated, dense=dense)
        yield from (pair for pair in pairs if pair.segment is None or pair.ended is None)


def component_name(segment: Segment) -> str:
    """Return the name of a segment outside the blocks as a component."""
    return f"{segment.direction}-{segment.name}"


def unpaired_name(pair: Pair) -> str:
    """Return the name as a component of a segment that no collective runs beside, or of a collective alone."""
    if pair.segment is not None:
        return f"{pair.segment.direction}-{pair.segment.name}-alone"
    assert pair.ended is not None and pair.ended.collective is not None
    return f"{pair.ended.direction}-{pair.ended.collective.label}-alone"


def instruction_program(
    graphs: dict[Batch, BlockGraph],
    shape: StageShape,
    direction: Direction,
    execution: Execution,
    *,
    recomputation: Recomputation,
    default_sm_count: int,
    software: Software,
    choices: Sequence[Choice] = (),
    weights: ShardedWeights | None = None,
) -> Program:
    """Return the program of a whole instruction.

    Args:
        graphs: operator graphs of a block.
        shape: shape of the stage, or of its chunk.
        direction: direction of the instruction.
        execution: execution model of the instruction.
        recomputation: what a backward recomputes.
        default_sm_count: SMs of collectives that nothing is chosen for.
        software: that runs it; what it overlaps by itself runs so in sequential execution.
        choices: one for each partition under `overlap`.
        weights: collectives of weights that replicas share out; execution is then sequential.
    """
    outer = outer_segments(graphs[Batch.MICROBATCH], shape, direction, recomputation=recomputation)
    before, after = _around(outer, direction)
    batch = Batch.MICROBATCH if execution is Execution.SEQUENTIAL else Batch.NANOBATCH
    graph, sizes = graphs[batch], (shape.layers, direction)
    passes = block_passes(graph, *sizes, recomputation=recomputation, dense=shape.dense)
    if weights is not None:
        assert execution is Execution.SEQUENTIAL, "collectives of weights run beside whole blocks"
        steps = [sequential_steps(of_pass, default_sm_count) for of_pass in passes]
        computed = [of_pass[-1].direction in COMPUTING_GRADIENTS for of_pass in passes]
        dense = [of_pass[-1].scope is Scope.DENSE_BLOCK for of_pass in passes]
        middle = overlapped(with_sharded_weights(steps, direction, computed, dense, weights), software)
    elif execution is Execution.SEQUENTIAL:
        middle = overlapped(sequential_steps(itertools.chain(*passes), default_sm_count), software)
    else:
        pairs = staggered(graph, *sizes, recomputation=recomputation, dense=shape.dense)
        middle = staggered_steps(pairs, default_sm_count, {choice.partition: choice for choice in choices})
        if not choices:
            middle = [dispatched(step, software) for step in middle]
    first, last = (overlapped(sequential_steps(ends, default_sm_count), software) for ends in (before, after))
    return Program(
        name=f"{direction}-{execution}-{shape.layers}-layers",
        steps=(*first, *middle, *last),
        blocks=(len(first), len(first) + len(middle)),
    )


def weights_of(config: WeightLayout, stage: int, shape: StageShape, sm_count: int) -> ShardedWeights | None:
    """Return the collectives of the weights of a stage, or of its chunk, on `sm_count` SMs; None if it has none."""
    return sharded_weights(config, stage, sm_count, first=shape.first, last=shape.last)


def partition_program(partition: Partition, sm_count: int, launch: str) -> Program:
    """Return the program of a partition whose collective gets `sm_count` SMs and starts beside operator `launch`."""
    step = Step(
        operators=partition.operators,
        collective=partition.collective,
        launch=partition.operator_index(launch),
        sm_count=sm_count,
    )
    return Program(name=partition.name, steps=(step,))


def default_partition_program(partition: Partition, sm_count: int) -> Program:
    """Return the program of a partition as default nanobatching runs it: its collective starts with the first operator.

    The collective gets `sm_count` SMs.
    """
    return partition_program(partition, sm_count, partition.operators[0].name)


def sequential_steps(segments: Iterable[Segment], sm_count: int) -> list[Step]:
    """Return the steps of segments in order; a collective runs beside its own segment's independent tail only."""
    return [
        Step(
            operators=s.operators,
            collective=s.collective,
            launch=len(s.operators) - s.independent_tail,
            sm_count=sm_count if s.collective else 0,
        )
        for s in segments
    ]


def staggered_steps(pairs: Iterable[Pair], sm_count: int, choices: Mapping[str, Choice]) -> list[Step]:
    """Return the steps of two staggered nanobatches.

    A collective without a choice starts as soon as it can, on `sm_count` SMs.
    """
    return [_beside(pair, sm_count, choices) for pair in pairs]


def _beside(pair: Pair, sm_count: int, choices: Mapping[str, Choice]) -> Step:
    if pair.collective is None:
        return Step(operators=pair.segment.operators if pair.segment else ())
    if pair.segment is None:
        return Step(collective=pair.collective, sm_count=sm_count)
    partition = partition_of(pair.segment, pair.collective)
    choice = choices.get(partition.name)
    if choice is None:
        return Step(operators=partition.operators, collective=pair.collective, sm_count=sm_count)
    (step,) = partition_program(partition, choice.sm_count, choice.launch).steps
    return step


def _sequential_program(name: str, segments: Sequence[Segment], sm_count: int) -> Program:
    return Program(name=name, steps=tuple(sequential_steps(segments, sm_count)))


def _around(outer: Sequence[Segment], direction: Direction) -> tuple[list[Segment], list[Segment]]:
    """Split what is outside the blocks into what runs before and after them."""
    leading = Scope.EMBEDDING if direction is Direction.FORWARD else Scope.HEAD
    return [s for s in outer if s.scope is leading], [s for s in outer if s.scope is not leading]
