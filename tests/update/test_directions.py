"""Instructions of the update, and what they wait for."""

import itertools

import pytest
from helpers.builders import CONFIG

from kareus.graph.instruction import NO_MICROBATCH
from kareus.graph.records import UPDATING, Direction
from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.instructions import instructions_of, pipeline_instructions
from kareus.pipeline.solver.dag import build_dag, earliest_starts, makespan
from kareus.update.collectives import update_directions
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import cut

REDUCTION, EXCHANGE, UPDATE = UPDATING
SIZES = [
    (schedule, stages, microbatches, chunks)
    for schedule in PipelineSchedule
    for stages, microbatches in itertools.product((1, 2, 3), (3, 6))
    for chunks in ((2,) if schedule is PipelineSchedule.INTERLEAVED or schedule.folds else (1,))
    if microbatches % stages == 0 and (chunks == 1 or stages > 1)
    if schedule is not PipelineSchedule.DUALPIPE_V or microbatches >= 2 * stages
]


def resolved(*overrides):
    (workload,) = resolve_accepted(overrides, CONFIG).values()
    return workload


def names(*overrides):
    config = cut(resolved(*overrides), "pipeline")
    return [update_directions(config, stage) for stage in range(config.parallelism.pp)]


def test_without_replicas_there_are_only_norm_and_step():
    assert names("model=llama3.3-70b", "parallelism=pp10tp8", "microbatch_size=2") == [(UPDATE,)] * 10
    assert names("model=qwen3-1.7b", "parallelism.pp=1") == [(UPDATE,)]


def test_the_ends_of_a_pipeline_exchange_a_tied_embedding():
    assert names("parallelism.pp=4", "parallelism.tp=4") == [
        (EXCHANGE, UPDATE),
        (UPDATE,),
        (UPDATE,),
        (EXCHANGE, UPDATE),
    ]


@pytest.mark.parametrize("degrees", [("parallelism.dp=2",), ("parallelism.cp=2", "parallelism.tp=4")])
def test_ranks_with_the_same_weights_reduce_gradients(degrees):
    assert names("microbatch_size=2", *degrees) == [(REDUCTION, EXCHANGE, UPDATE)] * 2


def test_an_iteration_without_the_update_ends_with_backwards():
    with_update, without = (
        instructions_of(cut(resolved(f"iteration.include_update={value}"), "pipeline")) for value in ("true", "false")
    )
    assert not {i.key.direction for i in without} & set(UPDATING)
    assert [i.key for i in with_update if i.key.direction not in UPDATING] == [i.key for i in without]
    assert {i.key.microbatch for i in with_update if i.key.direction in UPDATING} == {NO_MICROBATCH}


def times_of(instructions):
    """Times that are all different, so that another order of anything shows."""
    return [1.0 + 0.37 * n % 1 for n, _ in enumerate(instructions)]


@pytest.mark.parametrize(("schedule", "stages", "microbatches", "chunks"), SIZES)
def test_the_update_begins_when_what_it_waits_for_has_ended(schedule, stages, microbatches, chunks):
    """Every start is worked out from the words of the design, without the DAG's edges."""
    ends = {0, stages - 1} if stages > 1 else set()
    updates = [(REDUCTION, *(EXCHANGE,) * (stage in ends), UPDATE) for stage in range(stages)]
    instructions = pipeline_instructions(schedule, stages, microbatches, chunks=chunks, updates=updates)
    times_s = times_of(instructions)
    starts_s = earliest_starts(build_dag(instructions, [0.25] * stages), times_s)
    passes = pipeline_instructions(schedule, stages, microbatches, chunks=chunks)
    numbers = {i.key: n for n, i in enumerate(instructions)}
    passes_s = [times_s[numbers[i.key]] for i in passes]
    passed_s = earliest_starts(build_dag(passes, [0.25] * stages), passes_s)
    done_s = [
        max(start + time for i, start, time in zip(passes, passed_s, passes_s, strict=True) if i.key.stage == stage)
        for stage in range(stages)
    ]

    def own(stage, direction):
        (number,) = [n for n, i in enumerate(instructions) if (i.key.stage, i.key.direction) == (stage, direction)]
        return starts_s[number], starts_s[number] + times_s[number]

    reduced_s = [own(stage, REDUCTION)[1] for stage in range(stages)]
    for stage in range(stages):
        assert own(stage, REDUCTION)[0] == pytest.approx(done_s[stage])
    met_s = max((reduced_s[stage] for stage in ends), default=0.0)
    for stage in ends:
        assert own(stage, EXCHANGE)[0] == pytest.approx(met_s)
    ready_s = [own(stage, EXCHANGE)[1] if stage in ends else reduced_s[stage] for stage in range(stages)]
    for stage in range(stages):
        assert own(stage, UPDATE)[0] == pytest.approx(max(ready_s))


def test_messages_between_stages_take_no_time_of_the_update():
    updates = [(EXCHANGE, UPDATE)] * 2
    instructions = pipeline_instructions(PipelineSchedule.GPIPE, 2, 1, updates=updates)
    assert makespan(build_dag(instructions, [5.0]), [1.0] * len(instructions)) == 4 + 2 * 5.0 + 2


def test_an_instruction_of_the_update_is_named_without_a_microbatch():
    keys = [i.key for i in pipeline_instructions(PipelineSchedule.GPIPE, 1, 1, updates=[(Direction.UPDATE,)])]
    assert str(keys[-1]) == "update of stage 0"
