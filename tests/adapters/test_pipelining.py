"""Plans in schedules of torch.distributed.pipelining: order, clocks, and the numbers of a training without them."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.code_blocks import python_blocks, run_block
from helpers.doc_examples import run_examples
from helpers.driving import driven_plan
from helpers.piped import MICROBATCHES_EACH, STAGES, WIDTH, check_followed, loss, own_gpu, stages_of_rank, trained
from helpers.worlds import spawn
from torch.distributed.pipelining import Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleGPipe, _PipelineScheduleRuntime

from kareus.adapters.agreement import job_agreement
from kareus.adapters.one_clock import SETTLING, StepChoice, StepSweep
from kareus.adapters.pipelining import WRAPPED, obey
from kareus.adapters.recorder import table_path
from kareus.adapters.records import IterationRecord
from kareus.adapters.tables import STEPS
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import read_table, write_table
from kareus.device.claims import FOLDER_VARIABLE
from kareus.errors import EngineError
from kareus.export.torchtitan import schedule_csv
from kareus.pipeline.config import PipelineSchedule
from kareus.plans.file import write_plan

CASES = {
    "1f1b": driven_plan(STAGES, MICROBATCHES_EACH),
    "update": driven_plan(STAGES, MICROBATCHES_EACH, update=True),
    "interleaved": driven_plan(STAGES, MICROBATCHES_EACH, chunks=2, schedule=PipelineSchedule.INTERLEAVED),
    "zero-bubble": driven_plan(STAGES, MICROBATCHES_EACH, schedule=PipelineSchedule.ZERO_BUBBLE_H1),
}
GPIPE = driven_plan(STAGES, MICROBATCHES_EACH, schedule=PipelineSchedule.GPIPE)


def schedule_of(case, stages, folder):
    """The schedule of a case: PyTorch's own where it has one of that order, else the exported one."""
    if case == "interleaved":
        return ScheduleInterleaved1F1B(stages, MICROBATCHES_EACH, loss_fn=loss)
    if case != "zero-bubble":
        return Schedule1F1B(stages[0], MICROBATCHES_EACH, loss_fn=loss)
    schedule = _PipelineScheduleRuntime(stages, MICROBATCHES_EACH, loss_fn=loss)
    schedule._load_csv(str(folder / "zero-bubble.csv"))
    return schedule


def follow(rank: int, folder: Path) -> None:
    """What the two ranks check, case after case."""
    os.environ[FOLDER_VARIABLE] = str(folder / "claims")
    for case, plan in CASES.items():
        chunks = 1 + max(i.chunk for i in plan.stages[0].passes)
        gpu = own_gpu(folder / case, rank)
        plain = stages_of_rank(rank, chunks)
        expected = trained(schedule_of(case, plain, folder), plain, rank)

        stages = stages_of_rank(rank, chunks)
        schedule = schedule_of(case, stages, folder)
        planned = obey(schedule, folder / f"{case}.json", output=folder / case / "out", tokens=64)
        found = trained(schedule, stages, rank)
        assert len(found) == len(expected)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True)), case
        planned.close()
        check_followed(plan, rank, gpu, folder / case / "out")
        assert not any(name in vars(stage) for stage in stages for name in (*WRAPPED, "step"))
        planned.close()  # may be called again
    refuse(rank, folder)
    fail(rank, folder)
    resume(rank, folder)
    evaluate(rank, folder)
    agree(rank)


def refuse(rank: int, folder: Path) -> None:
    """A plan of another order is refused before a clock is set, and the schedule left as it was."""
    gpu = own_gpu(folder / "refused", rank)
    (stage,) = stages_of_rank(rank, 1)
    for schedule, name in (
        (Schedule1F1B(stage, MICROBATCHES_EACH, loss_fn=loss), "gpipe"),
        (ScheduleGPipe(stage, MICROBATCHES_EACH, loss_fn=loss), "1f1b"),
        (_PipelineScheduleRuntime([stage], MICROBATCHES_EACH, loss_fn=loss), "1f1b"),
    ):
        # On the last stage the first departure is a forward, on the first one a backward.
        with pytest.raises(EngineError, match=r"the plan has .* on stage \d here|has no order yet"):
            obey(schedule, folder / f"{name}.json")
        assert "step" not in vars(schedule)
    assert gpu.calls() == []


def fail(rank: int, folder: Path) -> None:
    """An iteration that fails on all ranks can be run again."""
    gpu, output = own_gpu(folder / "failed", rank), folder / "failed" / "out"
    stages = stages_of_rank(rank, 1)
    schedule = Schedule1F1B(stages[0], MICROBATCHES_EACH, loss_fn=loss)
    planned = obey(schedule, folder / "update.json", output=output)
    reduce = stages[0].perform_reduce_grad  # runs after the last backward
    stages[0].perform_reduce_grad = None
    with pytest.raises(TypeError):
        trained(schedule, stages, rank, iterations=1)
    stages[0].perform_reduce_grad = reduce
    trained(schedule, stages, rank)
    planned.close()
    assert read_table(table_path(output, STEPS, rank), STEPS)["iteration"].to_list() == [0, 1, 2]
    assert gpu.calls()[-1] == "reset"


def resume(rank: int, folder: Path) -> None:
    """Ranks that were killed after different iterations go on with the same one."""
    output = folder / "resumed" / "out"
    row = {"rank": rank, "selector": "fastest", "time_s": 1.0}
    before = STEPS.frame([{**row, "iteration": iteration} for iteration in range(1 + rank)])
    path = table_path(output, STEPS, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, before, STEPS, Provenance(config_hash=""))
    own_gpu(folder / "resumed", rank)
    stages = stages_of_rank(rank, 1)
    schedule = Schedule1F1B(stages[0], MICROBATCHES_EACH, loss_fn=loss)
    planned = obey(schedule, folder / "1f1b.json", output=output)
    trained(schedule, stages, rank, iterations=2)
    planned.close()
    assert read_table(path, STEPS)["iteration"].to_list() == [*range(1 + rank), 2, 3]


def evaluate(rank: int, folder: Path) -> None:
    """Evaluation passes by the plan."""
    gpu = own_gpu(folder / "evaluated", rank)
    (stage,) = stages_of_rank(rank, 1)
    schedule = Schedule1F1B(stage, MICROBATCHES_EACH, loss_fn=loss)
    os.chdir(folder)
    planned = run_block(python_blocks("howto/torchtitan.md")[1], {"schedule": schedule})["planned"]
    batch, target = torch.zeros(2, 2 * MICROBATCHES_EACH, WIDTH)
    schedule.eval(*((batch,) if rank == 0 else ()), target=target if rank == STAGES - 1 else None)
    assert planned.driver.iteration == 0
    planned.close()  # waits for every clock that was asked for
    run_examples(obey, {"schedule": schedule})
    assert gpu.calls() == []
    dist.barrier()


def agree(rank: int) -> None:
    """Both ranks choose one clock for their steps: neither the one that is best for the first nor for the second."""
    sweep = StepSweep(clocks_mhz=(1400, 1200, 1000), steps_per_clock=1)
    choice = StepChoice("min-energy", sweep, job_agreement())
    energies_j = ({1400: 90.0, 1200: 100.0, 1000: 300.0}, {1400: 300.0, 1200: 100.0, 1000: 90.0})[rank]
    for number in range(sweep.end):
        mhz, _ = sweep.place_of(number)
        choice.take_note(
            IterationRecord(
                iteration=number,
                selector="sweep",
                time_s=1.0,
                energy_j=energies_j[mhz],
                tokens=64,
                frequency_mhz=mhz,
                observed_mhz=mhz,
                instructions=(),
            )
        )
    choice.iteration(sweep.end + SETTLING)
    assert choice.chosen_mhz == 1200


def test_schedules_follow_plans_and_compute_the_same(tmp_path: Path) -> None:
    (tmp_path / "plan").mkdir()
    for case, plan in {**CASES, "gpipe": GPIPE, "plan/fastest_sequential+perseus": CASES["1f1b"]}.items():
        write_plan(tmp_path / f"{case}.json", plan)
    (tmp_path / "zero-bubble.csv").write_text(schedule_csv(CASES["zero-bubble"]))
    spawn(STAGES, follow, tmp_path, tmp_path)
