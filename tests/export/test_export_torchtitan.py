"""Pipeline schedules for torchtitan: read by PyTorch's own reader, in the order of the plan."""

import dataclasses
import re

import pytest
from helpers.builders import small_model
from helpers.driving import driven_plan
from helpers.pipelines import BI, BW, B, F
from helpers.trainings import tiny_workload
from torch.distributed.pipelining import ScheduleZBVZeroBubble
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _validate_schedule, get_schedule_class

from kareus.errors import ConfigError
from kareus.export.torchtitan import is_schedule_csv, is_schedule_notes, schedule_csv, schedule_notes
from kareus.graph.instruction import place_in_line
from kareus.pipeline.config import PipelineSchedule

COMPUTATIONS = {
    _ComputationType.FORWARD: F,
    _ComputationType.FULL_BACKWARD: B,
    _ComputationType.BACKWARD_INPUT: BI,
    _ComputationType.BACKWARD_WEIGHT: BW,
}
SIZES = [
    (PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, 1),
    (PipelineSchedule.GPIPE, 1),
    (PipelineSchedule.INTERLEAVED, 2),
    (PipelineSchedule.ZERO_BUBBLE_H1, 1),
    (PipelineSchedule.ZERO_BUBBLE_V, 2),
    (PipelineSchedule.DUALPIPE_V, 2),
]
STAGES, MICROBATCHES = 2, 4


def plan_of(schedule, chunks):
    return driven_plan(STAGES, MICROBATCHES, chunks, schedule=schedule, update=True)


@pytest.mark.parametrize(("schedule", "chunks"), SIZES)
def test_pytorch_reads_the_order_of_the_plan(schedule, chunks):
    plan = plan_of(schedule, chunks)
    text = schedule_csv(plan, folded=schedule.folds)
    rows = [[_Action.from_str(cell) for cell in row.split(",")] for row in text.splitlines()]
    _validate_schedule(dict(enumerate(rows)), STAGES, STAGES * chunks, MICROBATCHES)
    for stage, row in zip(plan.stages, rows, strict=True):
        read = [(a.stage_index, COMPUTATIONS[a.computation_type], a.microbatch_index) for a in row]
        places = [place_in_line(stage.stage, i.chunk, STAGES, folded=schedule.folds) for i in stage.passes]
        assert read == [(p, i.direction, i.microbatch) for p, i in zip(places, stage.passes, strict=True)]


def test_a_plan_of_one_stage_has_no_schedule():
    said = r"has one stage, so that torchtitan makes no pipeline .*howto/fsdp\.md in Kareus' repository\)\.$"
    with pytest.raises(ConfigError, match=said):
        schedule_csv(driven_plan(1, MICROBATCHES, gpus=8))


def test_a_row_that_is_a_comment_is_refused_by_pytorch():
    with pytest.raises(RuntimeError, match="Invalid action string"):
        _Action.from_str("# a comment")


def test_the_notes_name_the_blocks_of_every_stage_once():
    workload = tiny_workload(pp=STAGES)
    notes = schedule_notes(plan_of(*SIZES[0]), workload)
    for name in ("tok_embeddings", *(f"layers.{n}" for n in range(workload.model.num_layers)), "norm", "lm_head"):
        assert notes.count(f'"{name}"') == 1
    assert "Leaves out: clocks" in notes
    assert f"--parallelism.pipeline_parallel_degree {STAGES}" in notes


def test_chunks_of_a_rank_have_every_second_part_of_the_blocks():
    own = tiny_workload(pp=STAGES)
    workload = dataclasses.replace(own, pipeline=dataclasses.replace(own.pipeline, schedule=SIZES[2][0], chunks=2))
    parts = schedule_notes(plan_of(*SIZES[2]), workload).split("module_fqns_per_model_part = ")[1]
    names = [part.split(",") for part in parts.strip().strip("[]").split("],[")]
    assert len(names) == 2 * STAGES
    assert names[0][0] == '"tok_embeddings"'
    assert names[-1][-2:] == ['"norm"', '"lm_head"']
    assert "Interleaved1F1B" in schedule_notes(plan_of(*SIZES[2]), workload)


def test_the_first_rank_of_a_v_has_both_ends_of_the_model():
    own = tiny_workload(pp=STAGES, model=small_model(num_layers=4))
    pipeline = dataclasses.replace(own.pipeline, schedule=PipelineSchedule.ZERO_BUBBLE_V, chunks=2)
    parallelism = dataclasses.replace(own.parallelism, folded=True)
    workload = dataclasses.replace(own, pipeline=pipeline, parallelism=parallelism)
    notes = schedule_notes(plan_of(PipelineSchedule.ZERO_BUBBLE_V, 2), workload)
    named = re.search(r"pipeline_parallel_schedule (\w+)", notes)
    assert named is not None
    assert get_schedule_class(named[1]) is ScheduleZBVZeroBubble  # which deals out parts so that rank 0 has 0 and 3
    blocks = [f'"layers.{n}"' for n in range(4)]
    assert [notes.index(block) for block in blocks] == sorted(notes.index(block) for block in blocks)


def test_schedules_and_notes_are_told_from_other_files(tmp_path):
    plan, path = plan_of(*SIZES[0]), tmp_path / "file"
    for text, is_csv, is_notes in (
        (schedule_csv(plan), True, False),
        (schedule_notes(plan, tiny_workload(pp=STAGES)), False, True),
        ("a,b\n1,2\n", False, False),
        ("", False, False),
    ):
        path.write_text(text)
        assert (is_schedule_csv(path), is_schedule_notes(path)) == (is_csv, is_notes)
