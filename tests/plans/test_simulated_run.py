"""Plans played back on the simulated testbed, and compared with what they predict."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from helpers.builders import a100, simulated, small_model, software
from helpers.trainings import CLOCKS_MHZ, planned, tiny_workload

from kareus.artifacts.tables import read_provenance, read_table
from kareus.cli import main
from kareus.errors import ArtifactError
from kareus.frontiers.config import IterationConfig
from kareus.gpu_model.model import run_program
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import UPDATING, Batch
from kareus.partition.read import read_graphs
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.pipeline.solver.dag import iteration_dag, makespan
from kareus.pipeline.tables import ITERATION
from kareus.plans.document import Plan
from kareus.plans.file import read_plan
from kareus.plans.simulated_run import play_back
from kareus.plans.units import scaled
from kareus.profile.programs import chunk_shapes, instruction_program
from kareus.training.comparison import WARMUP_ITERATIONS, compare_runs
from kareus.training.tables import ITERATIONS
from kareus.workload.config import Workload
from kareus.workload.model_flops import mfu
from kareus.workload.slices import cut

DIVIDED = tiny_workload(tp=2, pp=2)
INTERLEAVED = tiny_workload(
    tp=2,
    pp=2,
    model=small_model(num_layers=4),
    pipeline=PipelineConfig(schedule=PipelineSchedule.INTERLEAVED, chunks=2, deadlines=2),
    num_microbatches=4,
)

ZERO_BUBBLE = tiny_workload(
    tp=2, pp=2, pipeline=PipelineConfig(schedule=PipelineSchedule.ZERO_BUBBLE_H1, chunks=1, deadlines=2)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A planned workload of two stages of two GPUs."""
    folder = tmp_path_factory.mktemp("planned") / "divided"
    planned(folder, DIVIDED)
    return folder


def played(folder: Path, workload: Workload, iterations: int = 5) -> pl.DataFrame:
    graphs = read_graphs(folder / "partition/segments.parquet")
    return ITERATIONS.frame(play_back(plan_in(folder), workload, graphs, iterations, {}))


def plan_in(folder: Path) -> Plan:
    return read_plan(folder / "plan/fastest.json")


def ideal(workload: Workload) -> Workload:
    """Free of noise, and of leakage that depends on temperature."""
    coefficients = dataclasses.replace(a100().coefficients, leakage_w_per_c=0.0)
    gpu = dataclasses.replace(workload.gpu, coefficients=coefficients)
    return dataclasses.replace(workload, gpu=gpu, testbed=simulated(time_noise=0.0, power_noise=0.0))


@pytest.mark.parametrize("workload", [DIVIDED, INTERLEAVED, ZERO_BUBBLE], ids=["1f1b", "interleaved", "zb-h1"])
def test_without_noise_it_is_the_pipeline_of_whole_instructions(tmp_path: Path, workload: Workload) -> None:
    planned(tmp_path / "planned", workload)
    folder, workload = tmp_path / "planned", ideal(workload)
    graphs = read_graphs(folder / "partition/segments.parquet")
    shapes = chunk_shapes(workload.parallelism.split, workload.chunks)
    costs: list[tuple[float, float]] = []
    for stage in plan_in(folder).stages:
        for i in stage.instructions:
            if i.direction in UPDATING:
                costs.append((i.time_s, i.energy_j))
                continue
            options: dict[str, Any] = {
                "recomputation": Recomputation.STAGE,
                "default_sm_count": 24,
                "software": software(),
                "choices": i.partitions,
            }
            program = instruction_program(graphs, shapes[stage.stage, i.chunk], i.direction, i.execution, **options)
            behaviour = run_program(workload.gpu, program, float(i.frequency_mhz))
            costs.append((float(behaviour.time_s), float(behaviour.energy_j)))
    dag = iteration_dag(cut(workload, "pipeline"))
    time_s = makespan(dag, [cost[0] for cost in costs])
    waiting_s = 2 * time_s - sum(cost[0] for cost in costs)
    energy_j = 2 * (sum(cost[1] for cost in costs) + workload.gpu.blocking_power_w * waiting_s)
    for _, rows in played(folder, workload).group_by("iteration"):
        assert rows["time_s"].to_list() == pytest.approx([time_s] * 2)
        assert (rows["energy_j"] * rows["gpus"]).sum() == pytest.approx(energy_j)


def test_the_parts_of_an_iteration_are_all_of_it(folder: Path) -> None:
    """A stage whose gradients are summed before the last backward of another waits, then updates with all."""
    plan, rows = plan_in(folder), played(folder, ideal(DIVIDED), 1)
    last_s = [stage.instructions[-1].time_s for stage in plan.stages]
    assert rows["update_time_s"].to_list() == pytest.approx(last_s)
    for unit in ("time_s", "energy_j"):
        parts = (rows[f"{part}_{unit}"] for part in ("pipeline", "reduction", "update"))
        assert sum(parts, pl.Series([0.0, 0.0])).to_list() == pytest.approx(rows[unit].to_list())
    assert rows["includes_update"].all()


def test_without_the_update_an_iteration_is_its_pipeline(tmp_path: Path) -> None:
    without = dataclasses.replace(DIVIDED, iteration=IterationConfig(include_update=False))
    planned(tmp_path / "planned", without)
    rows = played(tmp_path / "planned", without, 1)
    assert rows["pipeline_time_s"].to_list() == rows["time_s"].to_list()
    assert rows["pipeline_energy_j"].to_list() == rows["energy_j"].to_list()
    assert not rows["includes_update"].any()


def test_choices_of_a_plan_matter(folder: Path) -> None:
    """Fewer SMs make a collective slower, and the operators beside it faster."""
    plan = plan_in(folder)
    stages = tuple(
        dataclasses.replace(
            stage,
            instructions=tuple(
                dataclasses.replace(i, partitions=tuple(dataclasses.replace(p, sm_count=20) for p in i.partitions))
                for i in stage.instructions
            ),
        )
        for stage in plan.stages
    )
    graphs = read_graphs(folder / "partition/segments.parquet")
    other = ITERATIONS.frame(play_back(dataclasses.replace(plan, stages=stages), ideal(DIVIDED), graphs, 1, {}))
    assert other["time_s"][0] != played(folder, ideal(DIVIDED), 1)["time_s"][0]


def test_it_is_a_function_of_the_plan_and_the_seed(folder: Path) -> None:
    first = played(folder, DIVIDED)
    assert first.equals(played(folder, DIVIDED))
    assert not first.equals(played(folder, dataclasses.replace(DIVIDED, seed=1)))
    assert first["time_s"].n_unique() == 5


def test_chips_are_as_warm_as_a_long_training_leaves_them(folder: Path) -> None:
    def energies_j(ambient_c: float) -> list[float]:
        gpu = dataclasses.replace(DIVIDED.gpu, ambient_c=ambient_c)
        testbed = simulated(time_noise=0.0, power_noise=0.0)
        rows = played(folder, dataclasses.replace(DIVIDED, gpu=gpu, testbed=testbed))
        return rows.filter(pl.col("stage") == 0)["energy_j"].to_list()

    assert energies_j(25.0) == pytest.approx([energies_j(25.0)[0]] * 5, rel=1e-5)
    assert energies_j(45.0)[0] > energies_j(25.0)[0]


def test_clocks_change_where_the_plan_says(folder: Path) -> None:
    first_stage = played(folder, DIVIDED, 1).row(0, named=True)["clocks"]
    directions = ("forward", "backward", "forward", "backward", "update")  # F0 F1 B0 F2 B1 B2 U
    assert [c["frequency_mhz"] for c in first_stage] == [CLOCKS_MHZ[d] for d in directions]
    starts_s = [c["start_s"] for c in first_stage]
    assert starts_s == sorted(starts_s)


def test_the_command_runs_every_method_and_says_it_is_simulated(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    output = tmp_path / "iterations.parquet"
    assert main(["stage", "end-to-end", str(folder), "--output", str(output)]) == 0
    rows = read_table(output, ITERATIONS)
    assert rows["method"].unique(maintain_order=True).to_list() == ["sequential", "kareus"]
    assert rows["loss"].null_count() == len(rows)
    assert read_provenance(output, ITERATIONS).testbed.kind == "simulated"
    assert caplog.text.count("[simulated testbed, A100-SXM4-40GB]") >= 2


def test_training_by_a_simulated_plan_simulates_the_run(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    options = ["train", str(folder / "plan/fastest.json"), "--iterations", "5", "--output", str(tmp_path)]
    assert main(options) == 0
    rows = read_table(tmp_path / "iterations.parquet", ITERATIONS)
    assert rows.equals(played(folder, DIVIDED))
    assert read_provenance(tmp_path / "iterations.parquet", ITERATIONS).testbed.kind == "simulated"
    said = [message for message in caplog.messages if message.startswith("iteration ")]
    last = rows.filter(pl.col("iteration") == 4)
    time_s, energy_j = last["time_s"][0], (last["energy_j"] * last["gpus"]).sum()
    assert len(said) == 5
    assert said[-1] == (
        f"iteration 5/5  {3 * 2 * 16 / time_s:,.0f} tokens/s  {time_s:.3f} s  "
        f"MFU {100 * mfu(DIVIDED, time_s):.3g} % of A100-SXM4-40GB  "
        f"{scaled(energy_j, 'J', digits=4)}  {scaled(energy_j / (3 * 2 * 16), 'J/token')}  "
        f"[simulated testbed, A100-SXM4-40GB]"
    )
    assert main([*options, "--seed", "1", "--force"]) == 0
    other = read_table(tmp_path / "iterations.parquet", ITERATIONS)
    assert other.equals(played(folder, dataclasses.replace(DIVIDED, seed=1)))


def test_what_is_played_back_trains_no_weights_to_export(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--iterations", "1", "--output", str(tmp_path), "--export", str(tmp_path / "weights")]
    assert main(["train", str(folder / "plan/fastest.json"), *options]) == 2
    assert capsys.readouterr().err == (
        f"kareus train: --export {tmp_path}/weights: a plan of the simulated testbed, A100-SXM4-40GB, is played back "
        "and trains no weights; train with --communicator gloo or nccl.\n"
    )
    assert not (tmp_path / "iterations.parquet").exists()


def test_playing_back_needs_no_torch(folder: Path, tmp_path: Path) -> None:
    options = ["train", str(folder / "plan/fastest.json"), "--iterations", "1", "--output", str(tmp_path)]
    script = (
        f"import sys; from kareus.cli import main; assert main({options!r}) == 0; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_runs_are_compared_with_predictions_after_warmup(folder: Path) -> None:
    iteration = read_table(folder / "pipeline/iteration.parquet", ITERATION)
    predicted = iteration.filter(pl.col("method") == "kareus").row(0, named=True)
    cold = pl.col("iteration") < WARMUP_ITERATIONS
    rows = played(folder, DIVIDED, WARMUP_ITERATIONS + 2).with_columns(
        time_s=pl.when(cold).then(99.0).otherwise(predicted["time_s"] * 1.1),
        energy_j=pl.lit(predicted["energy_j"] / 4 * 0.9),
    )
    (row,) = compare_runs(rows, iteration)
    assert (row.method, row.iterations) == ("kareus", 2)
    assert row.time_percent == pytest.approx(10)
    assert row.energy_percent == pytest.approx(-10)
    (unmeasured,) = compare_runs(rows.with_columns(energy_j=pl.lit(None, pl.Float64)), iteration)
    assert unmeasured.energy_j is None
    to_backward = rows.with_columns(includes_update=pl.lit(value=False), pipeline_time_s=2 * predicted["time_s"])
    assert compare_runs(to_backward, iteration)[0].time_percent == pytest.approx(100)
    with pytest.raises(ArtifactError, match="'kareus' ran and was not planned"):
        compare_runs(rows, iteration.filter(pl.col("method") != "kareus"))


def test_a_microbatch_without_halves_is_played_back_too(tmp_path: Path) -> None:
    odd = tiny_workload(pp=2, microbatch_size=3)
    planned(tmp_path / "odd", odd)
    assert Batch.NANOBATCH not in read_graphs(tmp_path / "odd/partition/segments.parquet")
    assert played(tmp_path / "odd", odd)["time_s"].min() > 0


def test_what_is_played_back_writes_no_event_files(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--iterations", "1", "--output", str(tmp_path), "--metrics", str(tmp_path / "events")]
    assert main(["train", str(folder / "plan/fastest.json"), *options]) == 2
    assert capsys.readouterr().err == (
        f"kareus train: --metrics {tmp_path / 'events'}: a plan of the simulated testbed, A100-SXM4-40GB, is played "
        f"back and writes no event files; leave it out ({tmp_path / 'iterations.parquet'} has the iterations), or "
        "train with --communicator gloo or nccl.\n"
    )


@pytest.mark.parametrize(
    ("plan", "options", "said"),
    [
        (
            "fastest",
            ["--iterations", "3"],
            "has 5 iterations, and --iterations is 3; give another --output, or --force",
        ),
        ("fastest", ["--iterations", "5", "--seed", "1"], "has iterations of seed 0; "),
        ("min-energy", ["--iterations", "5"], "has iterations of the plan fastest of kareus; "),
    ],
)
def test_iterations_that_are_there_are_replaced_only_by_more_of_them(folder, tmp_path, capsys, plan, options, said):
    table = tmp_path / "iterations.parquet"

    def trained(name: str, *options: str) -> int:
        path = tmp_path / f"{name}.json"
        assert main(["select", name, str(folder), "--output", str(path)]) == 0
        return main(["train", str(path), "--folder", str(folder), "--output", str(tmp_path), *options])

    assert trained("fastest", "--iterations", "5") == 0
    before = table.read_bytes()
    assert trained(plan, *options) == 2
    assert f"{table}: {said}" in capsys.readouterr().err
    assert table.read_bytes() == before
    assert trained(plan, *options, "--force") == 0
    assert read_table(table, ITERATIONS)["selector"].unique().to_list() == [plan]
    assert trained(plan, *options, "--iterations", "6") == 0
    assert read_table(table, ITERATIONS)["iteration"].max() == 5


def test_an_interrupted_playback_says_what_is_kept_and_how_to_go_on(folder, tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("kareus.training.simulated.play_back", interrupted)
    options = ["train", str(folder / "plan/fastest.json"), "--iterations", "5", "--output", str(tmp_path / "run")]
    assert main(options) == 130
    assert capsys.readouterr().err == (
        "kareus train: interrupted; no iteration is kept, since they are written once all have run; run it again, or "
        "with fewer --iterations.\n"
    )
    assert not (tmp_path / "run").exists()
