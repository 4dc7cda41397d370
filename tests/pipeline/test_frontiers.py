"""Iteration frontiers of the methods, on microbatch frontiers written by hand."""

import dataclasses
import itertools
import subprocess
import sys

import polars as pl
import pytest
from helpers.pipelines import B, F
from helpers.pipelines import pipeline_slice as config

from kareus.artifacts.configuration import to_yaml
from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.tables import read_provenance, read_table, write_table
from kareus.cli import main
from kareus.errors import ArtifactError
from kareus.frontiers.config import frontier_hash
from kareus.frontiers.tables import MICROBATCH
from kareus.partition.config import subject_of
from kareus.pipeline.frontiers import iteration_rows
from kareus.pipeline.tables import INSTRUCTIONS, ITERATION

BLOCKING_W = config().gpu.blocking_power_w
STATIC_W = config().gpu.static_power_w
COSTS = {"sequential": (1.0, 400.0), "nanobatching": (0.9, 390.0), "kareus": (0.8, 370.0)}
"""By method: seconds and joules of one GPU of a forward of stage 0 at the maximum clock."""


def microbatch(stages=2, methods=COSTS):
    """At each clock an instruction is slower and cheaper; backwards take twice as long, stage 1 a tenth longer."""
    rows = []
    for method, stage, direction in itertools.product(methods, range(stages), (F, B)):
        scale = (2.0 if direction is B else 1.0) * (1.1 if stage else 1.0)
        for point, (slower, cheaper, frequency_mhz) in enumerate(
            [(1.0, 1.0, 1410), (1.2, 0.9, 1170), (1.5, 0.95, 900)]
        ):
            time_s, energy_j = COSTS[method][0] * scale * slower, COSTS[method][1] * scale * cheaper
            row = {
                "method": method,
                "stage": stage,
                "chunk": 0,
                "direction": direction,
                "point": point,
                "execution": "sequential",
            }
            row |= {"frequency_mhz": frequency_mhz, "time_s": time_s, "energy_j": energy_j, "choices": []}
            row |= {"dynamic_energy_j": energy_j - STATIC_W * time_s}
            row |= {"effective_energy_j": energy_j - BLOCKING_W * time_s, "on_frontier": point < 2}
            row |= {"is_thinned": False, "time_error_s": 0.0, "energy_error_j": 0.0}
            rows.append(row)
    return MICROBATCH.frame(rows)


def plans_of(rows, method):
    return [row for row in rows if row["method"] == method]


def test_without_waiting_an_iteration_costs_its_instructions():
    alone = config(pp=1, num_microbatches=3)
    (only,) = plans_of(iteration_rows(alone, microbatch(stages=1)), "sequential")
    assert only["time_s"] == pytest.approx(3 * (1.0 + 2.0))
    assert only["energy_j"] == pytest.approx(3 * (400.0 + 800.0) * 8)
    assert only["static_energy_j"] == pytest.approx(9.0 * STATIC_W * 8)
    assert only["dynamic_energy_j"] == pytest.approx(only["energy_j"] - only["static_energy_j"])


def test_a_stage_that_waits_draws_its_blocking_power():
    two = dataclasses.replace(config(num_microbatches=1), gpu=dataclasses.replace(config().gpu, link_gb_per_s=1e12))
    two = dataclasses.replace(two, gpu=dataclasses.replace(two.gpu, node_gb_per_s=1e12))
    (only,) = plans_of(iteration_rows(two, microbatch()), "sequential")
    work_s = [3.0, 3.3]
    busy_j = [1200.0 * 8, 1320.0 * 8]
    waiting_j = [BLOCKING_W * (sum(work_s) - own_s) * 8 for own_s in work_s]
    assert only["time_s"] == pytest.approx(sum(work_s))
    assert only["energy_j"] == pytest.approx(sum(busy_j) + sum(waiting_j))


def test_methods_without_frequency_scaling_have_one_plan():
    rows = iteration_rows(config(), microbatch())
    for method in ("sequential", "nanobatching"):
        (only,) = plans_of(rows, method)
        assert set(only["points"]) == {0}
    assert len(plans_of(rows, "sequential+perseus")) > 1


def test_methods_without_frequency_scaling_use_no_lower_clock():
    slower = microbatch().filter((pl.col("frequency_mhz") < 1410) | (pl.col("method") == "kareus"))
    with pytest.raises(ArtifactError, match="'sequential' have no points for the forward of stage 0 at 1410 MHz"):
        iteration_rows(config(), slower)


def test_a_point_off_its_microbatch_frontier_is_in_no_plan():
    for row in iteration_rows(config(), microbatch()):
        assert 2 not in row["points"]


def test_scaling_frequency_is_as_fast_and_never_costs_more():
    rows = iteration_rows(config(), microbatch())
    for scaled, fixed in (("sequential+perseus", "sequential"), ("nanobatching+perseus", "nanobatching")):
        fastest, only = plans_of(rows, scaled)[0], plans_of(rows, fixed)[0]
        assert fastest["time_s"] == pytest.approx(only["time_s"])
        assert fastest["energy_j"] <= only["energy_j"]


def test_sequential_is_required_and_other_methods_are_optional():
    rows = iteration_rows(config(), microbatch(methods=("sequential", "kareus")))
    assert {row["method"] for row in rows} == {"sequential", "sequential+perseus", "kareus"}
    with pytest.raises(ArtifactError, match="'sequential' have no points for the forward of stage 0"):
        iteration_rows(config(), microbatch(methods=("kareus",)))


def test_a_stage_too_few_is_refused_by_name():
    with pytest.raises(
        ArtifactError, match="forward of stage 1 at 1410 MHz, expected 2 stages; rerun the stage 'frontier'"
    ):
        iteration_rows(config(), microbatch(stages=1))


SIMULATED = TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail="by hand")


def origin_of(own):
    return Provenance(config_hash=frontier_hash(own), testbed=SIMULATED, subject=subject_of(own))


def test_the_command_notes_that_the_update_is_left_out(tmp_path, caplog):
    (tmp_path / "pipeline.yaml").write_text(to_yaml(config(dp=2)))
    write_table(tmp_path / "microbatch.parquet", microbatch(), MICROBATCH, origin_of(config(dp=2)))
    arguments = [f"--{name}={tmp_path / name}.parquet" for name in ("microbatch", "instructions", "iteration")]
    with caplog.at_level("INFO"):
        assert main(["stage", "pipeline", f"--config={tmp_path / 'pipeline.yaml'}", *arguments]) == 0
    assert "the update of the weights is not part of the iteration (iteration.include_update=false)" in caplog.messages


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (config(sequence_length=8192), "microbatch.parquet: made for another workload (subject"),
        (
            dataclasses.replace(config(), gpu=dataclasses.replace(config().gpu, name="H200")),
            "microbatch.parquet: made with another configuration (hash",
        ),
    ],
)
def test_microbatch_frontiers_of_another_workload_are_refused(tmp_path, capsys, other, message):
    (tmp_path / "pipeline.yaml").write_text(to_yaml(config()))
    write_table(tmp_path / "microbatch.parquet", microbatch(), MICROBATCH, origin_of(other))
    arguments = [f"--{name}={tmp_path / name}.parquet" for name in ("microbatch", "instructions", "iteration")]
    assert main(["stage", "pipeline", f"--config={tmp_path / 'pipeline.yaml'}", *arguments]) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert not (tmp_path / "iteration.parquet").exists()


def test_the_command_writes_both_tables_with_their_origin(tmp_path):
    (tmp_path / "pipeline.yaml").write_text(to_yaml(config()))
    origin = origin_of(config())
    write_table(tmp_path / "microbatch.parquet", microbatch(), MICROBATCH, origin)
    arguments = [f"--{name}={tmp_path / name}.parquet" for name in ("microbatch", "instructions", "iteration")]
    words = ["stage", "pipeline", f"--config={tmp_path / 'pipeline.yaml'}", *arguments]
    command = [sys.executable, "-m", "kareus", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    iteration = read_table(tmp_path / "iteration.parquet", ITERATION)
    instructions = read_table(tmp_path / "instructions.parquet", INSTRUCTIONS)
    assert iteration["points"].list.len().unique().to_list() == [len(instructions)]
    assert read_provenance(tmp_path / "iteration.parquet", ITERATION).testbed == SIMULATED
    assert "kareus:" in done.stderr + done.stdout

    (tmp_path / "microbatch.parquet").write_bytes(b"PAR1 cut short")
    before = (tmp_path / "iteration.parquet").read_bytes()
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1
    assert "microbatch.parquet" in failed.stderr
    assert (tmp_path / "iteration.parquet").read_bytes() == before
