"""A sweep, and plans that change, in schedules of PyTorch: on two ranks, which compute what they compute without."""

import json
import os
from pathlib import Path

import polars as pl
import torch
import torch.distributed as dist
from helpers.measured import SIMULATED, measured_workload, true_frontiers
from helpers.piped import MICROBATCHES_EACH, STAGES, is_subsequence, loss, own_gpu, stages_of_rank, trained
from helpers.worlds import spawn
from torch.distributed.pipelining import Schedule1F1B

from kareus.adapters.online import PlanFolder
from kareus.adapters.pipelining import obey
from kareus.adapters.profiling import WARM_UP, Profiling
from kareus.adapters.recorder import table_path
from kareus.adapters.tables import MICROBATCHES
from kareus.artifacts.configuration import to_yaml
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.tables import read_table
from kareus.device.claims import FOLDER_VARIABLE
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import TRACED
from kareus.pipeline.frontiers import solve_iteration
from kareus.plans.frontiers import Frontiers
from kareus.plans.planned_folder import write_frontiers
from kareus.workload.slices import cut

CLOCKS_MHZ = (900, 1155, 1410)
WORKLOAD = (
    "model=qwen3-1.7b",
    *(f"parallelism.{key}" for key in (f"pp={STAGES}", "tp=1", "cp=1", "sequence_parallel=false")),
    f"num_microbatches={MICROBATCHES_EACH}",
    "microbatch_size=1",
    "gpu.search_frequencies.stride_mhz=255",
    "pipeline.deadlines=8",
    "testbed=cuda",
    "iteration.include_update=false",
)
ITERATIONS = 12


def write_job(folder: Path) -> None:
    """Write the workload of the two ranks, and plans of it from made-up costs."""
    workload = measured_workload(of=WORKLOAD)
    (folder / "workload.yaml").write_text(to_yaml(workload))
    costs = {
        InstructionKind(stage, 0, direction): {
            mhz: (0.1 * size * 1410 / mhz, 20.0 * size * (mhz / 1410) ** 2 + 5.0 * size) for mhz in CLOCKS_MHZ
        }
        for stage in range(STAGES)
        for size, direction in enumerate(TRACED, start=1)
    }
    microbatch = true_frontiers(workload, costs)
    iteration, _ = solve_iteration(cut(workload, "pipeline"), microbatch)
    frontiers = Frontiers(iteration=iteration, microbatch=microbatch, testbed=SIMULATED)
    write_frontiers(WorkloadFolder(folder / "plans"), workload, frontiers)


def follow(rank: int, folder: Path) -> None:
    """Train without, with a sweep, and with plans that change."""
    os.environ[FOLDER_VARIABLE] = str(folder / "claims")
    sources = {
        "sweep": Profiling(workload=folder / "workload.yaml", folder=folder / "measured", most_slowdown=0.3),
        "plans": PlanFolder(folder=folder / "plans", conditions=folder / "conditions.json"),
    }
    (stage,) = stages_of_rank(rank, 1)
    expected = trained(Schedule1F1B(stage, MICROBATCHES_EACH, loss_fn=loss), [stage], rank, ITERATIONS)
    for name, source in sources.items():
        gpu = own_gpu(folder / name, rank)
        gpu.clocks_mhz = CLOCKS_MHZ
        (stage,) = stages_of_rank(rank, 1)
        schedule = Schedule1F1B(stage, MICROBATCHES_EACH, loss_fn=loss)
        planned = obey(schedule, source, output=folder / name / "out")
        found = trained(schedule, [stage], rank, ITERATIONS)
        planned.close()
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True)), name
        asked = read_table(table_path(folder / name / "out", MICROBATCHES, rank), MICROBATCHES)["frequency_mhz"]
        assert is_subsequence(gpu.calls()[:-1], [f"lock {mhz}" for mhz in asked])
        assert gpu.calls()[-1] == "reset"
        dist.barrier()
    gpu = own_gpu(folder / "limited", rank)
    gpu.clocks_mhz = CLOCKS_MHZ
    (stage,) = stages_of_rank(rank, 1)
    schedule = Schedule1F1B(stage, MICROBATCHES_EACH, loss_fn=loss)
    planned = obey(schedule, PlanFolder(folder=folder / "plans", method="sequential", actuator="power"))
    assert gpu.power_limit_w() == 400  # that of the workload
    trained(schedule, [stage], rank, 2)
    planned.close()
    assert not any(call.startswith("lock") for call in gpu.calls())


def test_a_job_computes_the_same_whatever_decides_its_clocks(tmp_path: Path) -> None:
    write_job(tmp_path)
    (tmp_path / "conditions.json").write_text('{"straggler": {"slowdown": 1.3}}')
    spawn(STAGES, follow, tmp_path, tmp_path)
    rows = {
        name: pl.concat(
            [read_table(table_path(tmp_path / name / "out", MICROBATCHES, r), MICROBATCHES) for r in (0, 1)]
        )
        for name in ("sweep", "plans")
    }
    swept = rows["sweep"].group_by("iteration").agg(pl.col("frequency_mhz").unique()).sort("iteration")
    clocks = swept["frequency_mhz"].to_list()
    assert {len(of_iteration) for of_iteration in clocks} == {1}  # the same on both ranks, throughout
    assert clocks[:WARM_UP] == [[1410]] * WARM_UP
    assert {clock for (clock,) in clocks} == set(CLOCKS_MHZ)
    first, *later = [json.loads(text) for text in (tmp_path / "plans/out/changes.jsonl").read_text().splitlines()]
    assert "1.300 times as long" in first["reason"]
    # Instructions of a millisecond end before a busy machine has set their clocks, which counts as a violation.
    assert all("its clock is" in line["reason"] or line["reason"] == first["reason"] for line in later)
    assert rows["plans"]["frequency_mhz"].min() < 1410
