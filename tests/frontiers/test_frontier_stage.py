"""The command `frontier`: what it composes, and which tables it refuses."""

import dataclasses
import shutil
from pathlib import Path

import polars as pl
import pytest
from helpers.builders import CONFIG, a100, graphs
from helpers.partition_tables import write_graphs

from kareus.artifacts.configuration import to_yaml
from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.tables import read_provenance, read_table, write_table
from kareus.cli import main
from kareus.frontiers.config import FrontierSlice
from kareus.frontiers.tables import MICROBATCH
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import TRACED
from kareus.partition.config import subject_of
from kareus.partition.names import expected_partitions
from kareus.profile.programs import component_programs
from kareus.profile.tables import COMPONENTS, PROFILED_INSTRUCTIONS
from kareus.search.tables import CANDIDATES
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import cut

CLOCKS_MHZ = a100().search_frequencies.clocks_mhz
TIME_NOISE, ENERGY_NOISE = 0.003, 0.006
TESTBED = TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail="1")


def config(*overrides: str) -> FrontierSlice:
    (workload,) = resolve_accepted(list(overrides), CONFIG).values()
    return cut(workload, "frontier")


def costs(scale: float) -> list[dict]:
    return [{"frequency_mhz": mhz, "time_s": scale / mhz, "energy_j": 0.1 * scale} for mhz in CLOCKS_MHZ]


def profiled(scale: float) -> list[dict]:
    """Estimates of whole instructions and components: 1 % of the time and 2 % of the energy is in doubt."""
    return [
        cost
        | {"time_error_s": 0.01 * cost["time_s"], "energy_error_j": 0.02 * cost["energy_j"]}
        | {"is_power_limited": False, "time_noise": TIME_NOISE, "energy_noise": ENERGY_NOISE, "measurements": 1}
        for cost in costs(scale)
    ]


def candidate_rows() -> list[dict]:
    common = {
        "is_power_limited": False,
        "round": 0,
        "chosen_by": ["all"],
        "sm_count": 6,
        "launch": "norm",
        "on_frontier": True,
    }
    common |= {"predicted_time_s": None, "predicted_dynamic_energy_j": None, "dynamic_energy_j": 0.1}
    return [{"candidate": n, **common, **cost} for n, cost in enumerate(costs(1.0))]


def write_inputs(folder: Path, own: FrontierSlice) -> Path:
    origin = Provenance(config_hash="test", testbed=TESTBED, seed=0, subject=subject_of(own))
    write_graphs(folder / "segments.parquet", graphs(), origin)
    components = [
        {"component": name} | cost
        for name in (*component_programs(graphs(), 6, recomputation=Recomputation.STAGE), *expected_partitions(own))
        for cost in profiled(1.0)
    ]
    write_table(folder / "components.parquet", COMPONENTS.frame(components), COMPONENTS, origin)
    instructions = [
        {"stage": stage, "chunk": 0, "direction": direction, "execution": execution} | cost
        for stage in range(own.parallelism.pp)
        for direction in TRACED
        for execution in ("sequential", "nanobatching")
        for cost in profiled(200.0)
    ]
    table = PROFILED_INSTRUCTIONS.frame(instructions)
    write_table(folder / "instructions.parquet", table, PROFILED_INSTRUCTIONS, origin)
    for partition in expected_partitions(own):
        path = folder / "search" / partition / "candidates.parquet"
        write_table(path, CANDIDATES.frame(candidate_rows()), CANDIDATES, origin)
    (folder / "frontier.yaml").write_text(to_yaml(own))
    return folder


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    return write_inputs(tmp_path / "own", config())


def compose(folder: Path) -> int:
    names = ("segments", "components", "instructions", "microbatch")
    tables = [f"--{name}={folder / name}.parquet" for name in names]
    candidates = [str(path) for path in sorted(folder.glob("search/*/candidates.parquet"))]
    return main(["stage", "frontier", f"--config={folder / 'frontier.yaml'}", *tables, "--candidates", *candidates])


def refusal(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that refuses to compose what is in `folder`."""
    assert compose(folder) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert not (folder / "microbatch.parquet").exists()
    return line


def test_overlap_is_composed_and_the_subject_kept(inputs):
    assert compose(inputs) == 0
    overlaps = read_table(inputs / "microbatch.parquet", MICROBATCH).filter(execution="overlap", method="kareus")
    assert overlaps.select("stage", "direction").unique().height == 4
    assert read_provenance(inputs / "microbatch.parquet", MICROBATCH).subject == subject_of(config())


def test_what_isolation_misses_is_measured_and_not_taken_from_the_gpu(inputs, tmp_path):
    assert compose(inputs) == 0
    other = write_inputs(tmp_path / "other", config("software.isolation_overhead=0.9"))
    assert compose(other) == 0
    first, second = (read_table(folder / "microbatch.parquet", MICROBATCH) for folder in (inputs, other))
    assert first.equals(second)


@pytest.mark.parametrize(
    "place",
    [
        "segments.parquet",
        "components.parquet",
        "instructions.parquet",
        "search/forward-mlp-allreduce/candidates.parquet",
    ],
)
def test_a_table_of_another_workload_is_refused_by_name(inputs, tmp_path, capsys, place):
    other = write_inputs(tmp_path / "other", config("sequence_length=2048"))
    shutil.copy(other / place, inputs / place)
    assert f"{place}: made for another" in refusal(inputs, capsys)


def test_consistent_tables_of_another_workload_are_refused(inputs, tmp_path, capsys):
    (inputs / "frontier.yaml").write_text(to_yaml(config("parallelism=cp2tp4")))
    assert "segments.parquet: made for" in refusal(inputs, capsys)


def test_a_missing_search_is_named(inputs, capsys):
    shutil.rmtree(inputs / "search/backward-mlp-allreduce")
    assert "--candidates: partitions missing: backward-mlp-allreduce, superfluous: none;" in refusal(inputs, capsys)


def test_a_superfluous_search_is_named(inputs, capsys):
    shutil.copytree(inputs / "search/backward-mlp-allreduce", inputs / "search/backward-qkv-allgather")
    assert "partitions missing: none, superfluous: backward-qkv-allgather; give one" in refusal(inputs, capsys)


@pytest.mark.parametrize(
    ("name", "schema", "dropped", "message"),
    [
        (
            "components",
            COMPONENTS,
            pl.col("component") == "forward-attention-alone",
            "components.parquet: forward-attention-alone: not measured at the clocks of the configuration",
        ),
        (
            "components",
            COMPONENTS,
            pl.col("frequency_mhz") == 1200,
            "components.parquet: forward-attention-alone: not measured at the clocks of the configuration, they differ "
            "at 1200 MHz; rerun the stage 'profile'.",
        ),
        (
            "components",
            COMPONENTS,
            pl.col("component") == "forward-mlp-allreduce",
            "components.parquet: forward-attention-allreduce, forward-mlp-allreduce: not measured under their default "
            "schedules at a common clock; rerun the stage 'profile'.",
        ),
        (
            "instructions",
            PROFILED_INSTRUCTIONS,
            pl.col("stage") == 1,
            "instructions.parquet: stage 1, forward, sequential: not measured at the clocks",
        ),
    ],
)
def test_what_was_not_measured_is_named(inputs, capsys, name, schema, dropped, message):
    path = inputs / f"{name}.parquet"
    origin = read_provenance(path, schema)
    write_table(path, read_table(path, schema).filter(~dropped), schema, origin)
    assert message in refusal(inputs, capsys)


def test_a_search_at_clocks_not_configured_is_refused(inputs, capsys):
    path = inputs / "search/forward-mlp-allreduce/candidates.parquet"
    shifted = read_table(path, CANDIDATES).with_columns(pl.col("frequency_mhz") - 15)
    write_table(path, shifted.head(1), CANDIDATES, read_provenance(path, CANDIDATES))
    assert "candidates.parquet: searched at 885 MHz, which the configuration lacks" in refusal(inputs, capsys)


def test_tables_measured_on_another_gpu_are_refused(inputs, capsys):
    other = dataclasses.replace(config(), gpu=a100(name="H200"))
    (inputs / "frontier.yaml").write_text(to_yaml(other))
    assert "components.parquet: measured on A100-SXM4-40GB, the configuration has H200" in refusal(inputs, capsys)
