"""A plan as a pipeline schedule of torch.distributed.pipelining, which torchtitan reads as a CSV file.

`parallelism.pipeline_parallel_schedule_csv` names a file with one row for each pipeline rank and one cell for each
instruction, in order of execution: the number of the stage, `F` for a forward, `B` for a backward, `I` for its input
gradients or `W` for its weight gradients, and the number of the microbatch (`_PipelineScheduleRuntime._load_csv`,
PyTorch 2.13). Its reader knows no comments, so that what the file leaves out is said in a second file.

PyTorch counts the chunks of a rank as stages: stage `chunk x ranks + rank`, or in a V for the second chunk the ranks
backwards.
"""

import re
from pathlib import Path

from kareus.artifacts.files import read_text
from kareus.errors import ArtifactError, ConfigError, described_in
from kareus.export.layouts import header, starts_with
from kareus.graph.instruction import InstructionKey, place_in_line
from kareus.graph.records import Direction
from kareus.interchange.stage_layout import chunk_modules
from kareus.pipeline.config import PipelineSchedule
from kareus.plans.document import Plan
from kareus.workload.config import Workload

LETTERS = {
    Direction.FORWARD: "F",
    Direction.BACKWARD: "B",
    Direction.INPUT_GRADIENT: "I",
    Direction.WEIGHT_GRADIENT: "W",
}
CLASSES = {PipelineSchedule.ZERO_BUBBLE_V: "ZBVZeroBubble", PipelineSchedule.DUALPIPE_V: "DualPipeV"}
"""PyTorch's schedules that place chunks on ranks as these do (`get_schedule_class`, PyTorch 2.13)."""
NOTES = "About a pipeline schedule for torchtitan, by Kareus"
CELL = re.compile(r"\d+[FBIW]\d+")


def schedule_csv(plan: Plan, *, folded: bool = False) -> str:
    """Return the text of the file, with `folded` of stages that a microbatch passes there and back.

    Raises:
        ConfigError: the plan has one stage, of which torchtitan makes no pipeline.
    """
    stages = len(plan.stages)
    if stages == 1:
        raise ConfigError(
            f"plan '{plan.selector}' of {plan.workload}: has one stage, so that torchtitan makes no pipeline and reads "
            f"no schedule; kareus.adapters.torchtitan follows the plan as it is ({described_in('howto/fsdp.md')})."
        )
    rows = ([_cell(key, stages, folded=folded) for key, i in stage.keyed if i in stage.passes] for stage in plan.stages)
    return "".join(",".join(row) + "\n" for row in rows)


def schedule_notes(plan: Plan, workload: Workload) -> str:
    """Return what the schedule carries and leaves out, and the settings that belong to it."""
    parallelism, usual = workload.parallelism, "Interleaved1F1B" if workload.chunks > 1 else "1F1B"
    named = CLASSES.get(workload.pipeline.schedule, usual)
    parts = chunk_modules(parallelism.placed, workload.chunks, parallelism.pp, folded=parallelism.folded)
    modules = ",".join("[" + ",".join(f'"{name}"' for name in part) + "]" for part in parts)
    settings = [
        f"--parallelism.pipeline_parallel_degree {parallelism.pp}",
        f"--parallelism.pipeline_parallel_schedule {named}",
        f"--training.local_batch_size {workload.microbatch_size * workload.num_microbatches}",
        f"--parallelism.pipeline_parallel_microbatch_size {workload.microbatch_size}",
        f"--training.seq_len {workload.sequence_length}",
    ]
    return header(
        [
            NOTES,
            f"From a plan of {plan.gpus} GPUs ({plan.testbed.label}).",
            "Carries: the order of forwards and backwards on every pipeline rank.",
            "Leaves out: clocks (kareus.adapters.torchtitan follows them), the halves of microbatches, launch",
            "operators, SM counts, and the update of the weights.",
            "Settings that belong to it; the named schedule only tells torchtitan how many stages a rank has:",
            *(f"  {setting}" for setting in settings),
            f"  parallelism.module_fqns_per_model_part = [{modules}]",
        ]
    )


def is_schedule_csv(path: Path) -> bool:
    """Return whether a file is one of `schedule_csv`."""
    try:
        rows = read_text(path).splitlines()
    except ArtifactError:
        return False
    return bool(rows) and all(CELL.fullmatch(cell) for row in rows for cell in row.split(","))


def is_schedule_notes(path: Path) -> bool:
    """Return whether a file is one of `schedule_notes`."""
    return starts_with(path, NOTES)


def _cell(key: InstructionKey, stages: int, *, folded: bool) -> str:
    return f"{place_in_line(key.stage, key.chunk, stages, folded=folded)}{LETTERS[key.direction]}{key.microbatch}"
