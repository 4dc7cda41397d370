"""Folders of tiny workloads that can be trained on this machine: what the stages before the engine leave there."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from builders import a100, protocol, search, simulated, small_model, space

from kareus.artifacts.files import write_json, write_text
from kareus.artifacts.provenance import TestbedIdentity
from kareus.artifacts.records import to_plain
from kareus.artifacts.tables import read_table
from kareus.cli import main
from kareus.engine.tables import ITERATIONS
from kareus.frontier.tables import MICROBATCH
from kareus.partition.names import instruction_partitions
from kareus.pipeline.dag import build_dag, makespan
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.transfers import transfers_s
from kareus.plan.build import build_plan
from kareus.plan.document import Plan
from kareus.schedule.tables import SPACE
from kareus.workload.config import Parallelism, PipelineConfig, PipelineSchedule, Workload
from kareus.workload.slices import cut, slice_text, to_yaml

TESTBED = TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail="made up")
CLOCKS_MHZ = {"forward": 1410, "backward": 1200}


def tiny_workload(dp: int = 1, pp: int = 1, tp: int = 1, cp: int = 1, **changes: Any) -> Workload:
    values = {
        "model": small_model(name="tiny", vocab_size=264),
        "parallelism": Parallelism(dp=dp, pp=pp, tp=tp, cp=cp, layers_per_stage=(2 // pp,) * pp, shard_optimizer=False),
        "gpu": a100(),
        "testbed": simulated(),
        "protocol": protocol(),
        "space": space(),
        "search": search(),
        "pipeline": PipelineConfig(schedule=PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, chunks=1, deadlines=2),
        "microbatch_size": 2,
        "num_microbatches": 3,
        "sequence_length": 16,
        "activation_checkpointing": True,
        "memory_reserve_gib": 1.0,
        "seed": 0,
    }
    return Workload(**(values | changes))


def planned(folder: Path, workload: Workload) -> Path:
    """Write what `kareus train` reads of a workload; returns a plan of overlapped instructions, all alike."""
    for stage in ("plan", "partition", "schedule"):
        write_text(folder / f"config/{stage}.yaml", slice_text(workload, stage))
    write_text(folder / "config/workload.yaml", to_yaml(workload))
    segments, partitions = folder / "partition/segments.parquet", folder / "partition/partitions.parquet"
    config = str(folder / "config/partition.yaml")
    assert main(["partition", "--config", config, "--segments", str(segments), "--partitions", str(partitions)]) == 0
    config, space_file = str(folder / "config/schedule.yaml"), folder / "schedule/space.parquet"
    assert main(["schedule", "--config", config, "--partitions", str(partitions), "--space", str(space_file)]) == 0
    path = folder / "plan/fastest.json"
    write_json(path, to_plain(plan_of(workload, folder.name, _launches(space_file))))
    return path


def plan_of(workload: Workload, name: str, launches: dict[str, str]) -> Plan:
    """Overlap wherever there are partitions, nanobatching elsewhere; forwards at another clock than backwards."""
    rows = []
    for stage, layers in enumerate(workload.parallelism.split):
        for direction in ("forward", "backward"):
            partitions = instruction_partitions(workload, direction, layers) if launches else ()
            execution = "overlap" if partitions else "nanobatching"
            time_s = 1.0 if direction == "forward" else 2.0
            rows.append(
                {
                    "method": "kareus",
                    "stage": stage,
                    "chunk": 0,
                    "direction": direction,
                    "point": 0,
                    "execution": "sequential" if workload.microbatch_size % 2 else execution,
                    "frequency_mhz": CLOCKS_MHZ[direction],
                    "time_s": time_s,
                    "energy_j": 200.0 * time_s,
                    "dynamic_energy_j": 140.0 * time_s,
                    "effective_energy_j": (200.0 - workload.gpu.blocking_power_w) * time_s,
                    "on_frontier": True,
                    "choices": [
                        {"partition": p, "sm_count": workload.space.small_group_sm_stride, "launch": launches[p]}
                        for p in partitions
                    ]
                    if execution == "overlap"
                    else [],
                }
            )
    return build_plan(workload, name, "fastest", _prediction(workload), MICROBATCH.frame(rows), TESTBED)


def train(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """`kareus train` on CPUs."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, check=False, env=environment(), **options
    )


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "kareus", "train", *map(str, arguments), "--communicator", "gloo"]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def losses(output: Path) -> list[float]:
    """Of every iteration, as rank 0 recorded them."""
    rows = read_table(output / "rank-00000.parquet", ITERATIONS).sort("iteration")
    assert rows["iteration"].to_list() == list(range(len(rows)))
    return rows["loss"].to_list()


def _prediction(workload: Workload) -> dict[str, Any]:
    """Row of the iteration frontier whose prediction follows from the instructions."""
    instructions = instructions_of(workload)
    times_s = [1.0 if i.direction == "forward" else 2.0 for i in instructions]
    dag = build_dag(instructions, transfers_s(cut(workload, "pipeline")))
    time_s, gpus = makespan(dag, times_s), workload.parallelism.gpus
    effective_j = (200.0 - workload.gpu.blocking_power_w) * sum(times_s) * workload.parallelism.gpus_per_stage
    energy_j = effective_j + workload.gpu.blocking_power_w * time_s * gpus
    static_energy_j = workload.gpu.static_power_w * time_s * gpus
    return {
        "method": "kareus",
        "time_s": time_s,
        "energy_j": energy_j,
        "static_energy_j": static_energy_j,
        "dynamic_energy_j": energy_j - static_energy_j,
        "lower_bound_j": energy_j,
        "points": [0] * len(instructions),
    }


def _launches(space_file: Path) -> dict[str, str]:
    """The last launch operator of every partition."""
    return dict(read_table(space_file, SPACE).select("partition", "launch").iter_rows())
