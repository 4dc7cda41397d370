"""All tables of a results folder as LazyFrames."""

import importlib
import pkgutil
import subprocess
import sys

import polars as pl
import pytest

import kareus
from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.tables import TableSchema, write_table
from kareus.errors import ArtifactError
from kareus.export.catalogue import CAMPAIGN_CATALOGUE, CATALOGUE
from kareus.pipeline.tables import ITERATION
from kareus.search.tables import ROUNDS
from kareus.workload.tables import WORKLOADS

SIMULATED = TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail="GPU model 2")


def write(path, schema, rows):
    write_table(path, schema.frame(rows), schema, Provenance(config_hash="0" * 16, testbed=SIMULATED, seed=1))


def plan_row(number, time_s):
    return {
        "method": "kareus",
        "plan": number,
        "time_s": time_s,
        "energy_j": 10.0 / time_s,
        "static_energy_j": 1.0,
        "dynamic_energy_j": 2.0,
        "deadline_s": time_s,
        "lower_bound_j": 1.0,
        "gap": 0.0,
        "points": [0, 1],
    }


def round_row(number):
    return {
        "round": number,
        "measured": 8 * (number + 1),
        "hypervolume": 0.5,
        "improvement": None,
        "measuring_s": 1.0,
        "looked": 0,
        "looking_s": 0.0,
        "strategy": "paper",
        "gpus": 8,
        "time_noise": None,
        "power_noise": None,
        "stop": "",
        "is_cut_short": False,
        "remaining": None,
    }


@pytest.fixture
def results(tmp_path):
    write(tmp_path / "workloads.parquet", WORKLOADS, [])
    write(tmp_path / "first/pipeline/iteration.parquet", ITERATION, [plan_row(0, 1.0), plan_row(1, 2.0)])
    write(tmp_path / "second/pipeline/iteration.parquet", ITERATION, [plan_row(0, 4.0)])
    for partition in ("forward-mlp-allreduce", "backward-mlp-allreduce"):
        write(tmp_path / f"first/search/{partition}/rounds.parquet", ROUNDS, [round_row(0), round_row(1)])
    return tmp_path


def test_one_frame_holds_the_rows_of_all_workloads(results):
    frame = kareus.open_results(results)["iteration"]
    assert isinstance(frame, pl.LazyFrame)
    rows = frame.select("workload", "testbed", "plan", "time_s").collect().rows()
    label = "simulated testbed, A100-SXM4-40GB"
    assert rows == [("first", label, 0, 1.0), ("first", label, 1, 2.0), ("second", label, 0, 4.0)]


def test_what_stands_in_the_path_becomes_a_column(results):
    counted = kareus.open_results(results)["rounds"].group_by("partition").agg(pl.len()).collect()
    assert sorted(counted.rows()) == [("backward-mlp-allreduce", 2), ("forward-mlp-allreduce", 2)]


def test_every_table_has_its_columns_even_if_never_written(results):
    tables = kareus.open_results(results)
    assert set(tables) == {"workloads", *(entry.schema.name for entry in (*CATALOGUE, *CAMPAIGN_CATALOGUE))}
    for entry in (*CATALOGUE, *CAMPAIGN_CATALOGUE):
        assert set(entry.schema.polars) < set(tables[entry.schema.name].collect_schema())


def test_a_table_with_flipped_bits_is_refused(results):
    path = results / "second/pipeline/iteration.parquet"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"second/pipeline/iteration\.parquet"):
        kareus.open_results(results)


def test_a_folder_may_be_called_like_a_pattern(tmp_path):
    write(tmp_path / "results[1]/workloads.parquet", WORKLOADS, [])
    assert kareus.open_results(tmp_path / "results[1]")["workloads"].collect().is_empty()


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(ArtifactError, match="run snakemake"):
        kareus.open_results(tmp_path / "elsewhere")


def test_every_table_below_a_workload_is_in_the_catalogue():
    rooms = [m.name for m in pkgutil.walk_packages(kareus.__path__, "kareus.") if m.name.endswith(".tables")]
    values = [value for room in rooms for value in vars(importlib.import_module(room)).values()]
    declared = {value.name for value in values if isinstance(value, TableSchema)}
    listed = {entry.schema.name for entry in (*CATALOGUE, *CAMPAIGN_CATALOGUE)}
    assert declared - listed == {"workloads", "measurements", "looks"}


def test_importing_the_package_stays_light():
    code = "import sys, kareus; print('polars' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
