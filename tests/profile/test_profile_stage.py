"""The command `profile`: what it measures, how often, and which operator graph it refuses."""

import polars as pl
import pytest
from helpers.builders import CONFIG, graphs
from helpers.partition_tables import write_graphs

from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import read_table
from kareus.cli import main
from kareus.partition.config import subject_of
from kareus.profile.tables import COMPONENTS, MEASUREMENTS, PROFILED_INSTRUCTIONS
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import slice_text


def test_the_operator_graph_of_another_workload_is_not_measured(tmp_path, capsys):
    (workload,) = resolve_accepted([], CONFIG).values()
    (tmp_path / "profile.yaml").write_text(slice_text(workload, "profile"))
    write_graphs(tmp_path / "segments.parquet", graphs(), Provenance(config_hash="test", subject="other"))
    outputs = [f"--{name}={tmp_path / name}.parquet" for name in ("segments", "components", "instructions")]
    store = tmp_path / "store"
    assert main(["stage", "profile", f"--config={tmp_path / 'profile.yaml'}", f"--store={store}", *outputs]) == 2
    line = capsys.readouterr().err
    assert "segments.parquet: made for" in line
    assert line.count("\n") == 1
    assert not store.exists()


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    (workload,) = resolve_accepted([], CONFIG).values()
    (folder / "profile.yaml").write_text(slice_text(workload, "profile"))
    write_graphs(folder / "segments.parquet", graphs(), Provenance(config_hash="test", subject=subject_of(workload)))
    assert profile(folder) == 0
    return folder


def profile(folder, tables="tables"):
    (folder / tables).mkdir(exist_ok=True)
    outputs = [f"--{name}={folder / tables / name}.parquet" for name in ("components", "instructions")]
    inputs = [f"--config={folder / 'profile.yaml'}", f"--segments={folder / 'segments.parquet'}"]
    return main(["stage", "profile", *inputs, f"--store={folder / 'store'}", *outputs])


def measurements(folder):
    (path,) = folder.glob("store/**/measurements.parquet")
    return read_table(path, MEASUREMENTS)


def test_clocks_about_as_fast_as_the_fastest_are_measured_again(profiled):
    """The default is three confirmations; the baseline, sequential at the maximum clock, is among them.

    What draws more than the power limit may be clearly slower there than at a lower clock, and is not measured again.
    """
    found = read_table(profiled / "tables/instructions.parquet", PROFILED_INSTRUCTIONS)
    assert set(found["measurements"]) == {1, 4}
    fastest = pl.col("frequency_mhz") == 1410
    assert set(found.filter(fastest, pl.col("execution") == "sequential")["measurements"]) == {4}
    assert set(found.filter(pl.col("frequency_mhz") == 900)["measurements"]) == {1}
    least_s = pl.col("time_s").min().over("stage", "direction", "execution")
    assert found.filter(pl.col("measurements") > 1).select((pl.col("time_s") / least_s).max()).item() < 1.05


def test_every_measurement_is_of_a_repeat_of_its_own(profiled):
    rows = measurements(profiled)
    assert set(rows["repeat"]) == {0, 1, 2, 3}
    assert rows.select("program", "frequency_mhz", "repeat").is_unique().all()
    often = rows.group_by("program", "frequency_mhz").agg(pl.len(), pl.col("time_s").n_unique().alias("times"))
    assert (often["len"] == often["times"]).all()


def test_profiling_again_measures_nothing_and_gives_the_same(profiled):
    before = measurements(profiled)
    assert profile(profiled, "again") == 0
    assert measurements(profiled).equals(before)
    for name, schema in (("components", COMPONENTS), ("instructions", PROFILED_INSTRUCTIONS)):
        first, second = (read_table(profiled / tables / f"{name}.parquet", schema) for tables in ("tables", "again"))
        assert first.equals(second)


def test_every_cost_has_its_errors(profiled):
    for name, schema in (("components", COMPONENTS), ("instructions", PROFILED_INSTRUCTIONS)):
        found = read_table(profiled / f"tables/{name}.parquet", schema)
        assert (found["time_error_s"] / found["time_s"]).is_between(0, 0.01, closed="right").all()
        assert (found["energy_error_j"] / found["energy_j"]).is_between(0, 0.02, closed="right").all()


def test_partitions_are_measured_under_their_default_schedules_at_every_third_clock(profiled):
    found = read_table(profiled / "tables/components.parquet", COMPONENTS)
    clocks = found.group_by("component").agg(pl.col("frequency_mhz").sort())
    of = dict(zip(clocks["component"], clocks["frequency_mhz"].to_list(), strict=True))
    assert of["backward-mlp-allreduce"] == list(range(960, 1411, 90))
    assert of["forward-attention-alone"] == list(range(900, 1411, 30))
