"""Folders of tiny workloads that can be trained on this machine: what the stages before the engine leave there."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from helpers.builders import a100, protocol, search, simulated, small_model, software, space
from helpers.worlds import fork
from kareus.artifacts.configuration import to_yaml
from kareus.artifacts.files import write_text
from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import read_table, write_table
from kareus.cli import main
from kareus.frontiers.config import IterationConfig
from kareus.frontiers.tables import MICROBATCH
from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import UPDATING, Direction, instruction_directions
from kareus.launch.processes import free_port
from kareus.model.parallelism import Parallelism, Sharding
from kareus.partition.config import subject_of
from kareus.partition.names import instruction_partitions
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.solver.dag import iteration_dag, makespan
from kareus.pipeline.tables import ITERATION
from kareus.profile.programs import Execution, chunk_shapes
from kareus.schedule.tables import SPACE
from kareus.training.tables import ITERATIONS
from kareus.update.collectives import update_directions
from kareus.workload.config import Workload
from kareus.workload.slices import cut, slice_text

TESTBED = TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail="made up")
TIMES_S = {
    "forward": 1.0,
    "backward": 2.0,
    "input-gradient": 1.0,
    "weight-gradient": 0.9,
    "gradient-reduction": 0.3,
    "embedding-exchange": 0.2,
    "update": 0.1,
}
POWER_W = 200.0
CLOCKS_MHZ = {
    "forward": 1410,
    "backward": 1200,
    "input-gradient": 1320,
    "weight-gradient": 1110,
    "gradient-reduction": 1080,
    "embedding-exchange": 990,
    "update": 900,
}
FOUR_LAYERS = small_model(name="tiny", vocab_size=264, num_layers=4, tie_embeddings=True)
TEXT = Path(__file__).parents[2] / "LICENSE"
"""A text that a model can learn."""
FAST = ("--learning-rate", 0.01)
LONGEST_S = 120.0
"""Time after which ranks that have not ended are killed."""


def tiny_workload(
    dp: int = 1,
    pp: int = 1,
    tp: int = 1,
    cp: int = 1,
    *,
    sequence_parallel: bool = False,
    sharding: Sharding = Sharding.NONE,
    **changes: Any,
) -> Workload:
    model = changes.get("model", small_model(name="tiny", vocab_size=264))
    split = (model.num_layers // pp,) * pp
    values = {
        "model": model,
        "parallelism": Parallelism(
            dp=dp,
            pp=pp,
            tp=tp,
            cp=cp,
            layers_per_stage=split,
            sharding=sharding,
            sequence_parallel=sequence_parallel,
            folded="pipeline" in changes and changes["pipeline"].schedule.folds,
        ),
        "gpu": a100(),
        "software": software(),
        "testbed": simulated(),
        "protocol": protocol(),
        "space": space(),
        "search": search(),
        "pipeline": PipelineConfig(schedule=PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, chunks=1, deadlines=2),
        "iteration": IterationConfig(include_update=True),
        "microbatch_size": 2,
        "num_microbatches": 3,
        "sequence_length": 16,
        "precision": Precision.BF16,
        "recomputation": Recomputation.STAGE,
        "memory_reserve_gib": 1.0,
        "confirmations": 3,
        "seed": 0,
    }
    return Workload(**(values | changes))


def planned(folder: Path, workload: Workload) -> Path:
    """Write what `kareus train` reads of a workload; returns a plan."""
    for stage in ("plan", "partition", "schedule"):
        write_text(folder / f"config/{stage}.yaml", slice_text(workload, stage))
    write_text(folder / "config/workload.yaml", to_yaml(workload))
    segments, partitions = folder / "partition/segments.parquet", folder / "partition/partitions.parquet"
    config = str(folder / "config/partition.yaml")
    for stage in ("partition", "schedule"):
        (folder / stage).mkdir(parents=True, exist_ok=True)
    extracted = ["--segments", str(segments), "--partitions", str(partitions)]
    assert main(["stage", "partition", "--config", config, *extracted]) == 0
    config, space_file = str(folder / "config/schedule.yaml"), folder / "schedule/space.parquet"
    enumerated = ["--partitions", str(partitions), "--space", str(space_file)]
    assert main(["stage", "schedule", "--config", config, *enumerated]) == 0
    launches = dict(read_table(space_file, SPACE).select("partition", "launch").iter_rows())
    microbatch = MICROBATCH.frame([*_points(workload, "kareus", launches), *_points(workload, "sequential", {})])
    iteration = ITERATION.frame([_fastest(workload, method) for method in ("sequential", "kareus")])
    write_table(folder / "frontier/microbatch.parquet", microbatch, MICROBATCH, _origin(workload, "frontier"))
    write_table(folder / "pipeline/iteration.parquet", iteration, ITERATION, _origin(workload, "pipeline"))
    assert main(["select", "fastest", str(folder)]) == 0
    return folder / "plan/fastest.json"


def train(*arguments: object, communicator: str = "gloo", **options: Any) -> subprocess.CompletedProcess[str]:
    """`kareus train`, on CPUs unless another communicator is given."""
    line = command(*arguments, communicator=communicator)
    return subprocess.run(line, capture_output=True, text=True, check=False, env=environment(), **options)


def here(*arguments: object) -> int:
    """`kareus train` of one rank, in this process and on one core, as `train` has it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return main(["train", *map(str, arguments), "--communicator", "gloo"])
    finally:
        torch.set_num_threads(threads)


class EndedRanks(NamedTuple):
    """How the ranks of a training ended, and what all of them said."""

    codes: list[int | None]
    stdout: str
    stderr: str


def train_in_ranks(ranks: int, *arguments: object) -> str:
    """`kareus train` of several ranks, as `end_in_ranks` runs them, that succeeds; returns what rank 0 said."""
    ended = end_in_ranks(ranks, *arguments)
    assert ended.codes == [0] * ranks, ended.stderr
    return ended.stdout


def end_in_ranks(ranks: int, *arguments: object) -> EndedRanks:
    """`kareus train` of several ranks in forked processes, which need not import PyTorch, to their end."""
    with tempfile.TemporaryDirectory() as folder:
        out, error = Path(folder) / "out", Path(folder) / "error"
        for stream in (out, error):
            stream.touch()
        words, port = tuple(map(str, arguments)), free_port()
        processes = [fork(_train_as_rank, rank, ranks, port, words, (out, error)) for rank in range(ranks)]
        for process in processes:
            process.join(LONGEST_S)
            process.kill()  # nothing to one that has ended
            process.join()
        return EndedRanks([process.exitcode for process in processes], out.read_text(), error.read_text())


def _train_as_rank(rank: int, ranks: int, port: int, arguments: tuple[str, ...], streams: tuple[Path, Path]) -> None:
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in variables.items()}
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    sys.exit(here(*arguments))


def command(*arguments: object, communicator: str = "gloo") -> list[str]:
    return [sys.executable, "-m", "kareus", "train", *map(str, arguments), "--communicator", communicator]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def losses(output: Path) -> list[float]:
    """Of every iteration, as rank 0 recorded them."""
    rows = read_table(output / "rank-00000.parquet", ITERATIONS).sort("iteration")
    assert rows["iteration"].to_list() == list(range(len(rows)))
    return rows["loss"].to_list()


def weights_of(output: Path, iteration: int) -> dict[str, bytes]:
    """Tensors of a checkpoint, file by file."""
    folder = output / f"checkpoints/iteration-{iteration:08d}"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def _points(workload: Workload, method: str, launches: dict[str, str]) -> Iterator[dict[str, Any]]:
    """One point of every instruction: overlap where there are partitions, for `kareus` nanobatching elsewhere.

    Forwards and backwards have clocks of their own.
    """
    for (stage, chunk), shape in chunk_shapes(workload.parallelism.split, workload.chunks).items():
        passes = instruction_directions(split_backward=workload.split_backward)
        for direction in (*passes, *(update_directions(workload, stage) if chunk == 0 else ())):
            time_s, overlaps = TIMES_S[direction], direction in passes and bool(launches)
            partitions = instruction_partitions(workload, direction, shape.layers) if overlaps else ()
            whole = (Direction.WEIGHT_GRADIENT, *UPDATING)
            halves = workload.parallelism.halves(workload.microbatch_size) and direction not in whole
            splits = Execution.OVERLAP if partitions else Execution.NANOBATCHING
            yield {
                "method": method,
                "stage": stage,
                "chunk": chunk,
                "direction": direction,
                "point": 0,
                "execution": splits if method == "kareus" and halves else "sequential",
                "frequency_mhz": CLOCKS_MHZ[direction],
                "time_s": time_s,
                "energy_j": POWER_W * time_s,
                "dynamic_energy_j": (POWER_W - workload.gpu.static_power_w) * time_s,
                "effective_energy_j": (POWER_W - workload.gpu.blocking_power_w) * time_s,
                "is_thinned": False,
                "time_error_s": 0.0,
                "energy_error_j": 0.0,
                "on_frontier": True,
                "choices": [{"partition": p, "sm_count": 3, "launch": launches[p]} for p in partitions],
            }


def _fastest(workload: Workload, method: str) -> dict[str, Any]:
    """Row of the iteration frontier whose prediction follows from the instructions."""
    instructions = instructions_of(cut(workload, "pipeline"))
    times_s = [TIMES_S[i.key.direction] for i in instructions]
    dag = iteration_dag(cut(workload, "pipeline"))
    time_s, gpus = makespan(dag, times_s), workload.parallelism.gpus
    effective_j = (POWER_W - workload.gpu.blocking_power_w) * sum(times_s) * workload.parallelism.gpus_per_stage
    energy_j = effective_j + workload.gpu.blocking_power_w * time_s * gpus
    static_energy_j = workload.gpu.static_power_w * time_s * gpus
    return {
        "method": method,
        "plan": 0,
        "time_s": time_s,
        "energy_j": energy_j,
        "static_energy_j": static_energy_j,
        "dynamic_energy_j": energy_j - static_energy_j,
        "deadline_s": time_s,
        "lower_bound_j": energy_j,
        "gap": 0.0,
        "points": [0] * len(instructions),
    }


def _origin(workload: Workload, stage: str) -> Provenance:
    config_hash = content_hash(cut(workload, stage))
    return Provenance(config_hash=config_hash, testbed=TESTBED, seed=workload.seed, subject=subject_of(workload))
