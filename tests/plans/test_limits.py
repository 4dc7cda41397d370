"""Deadlines and energies between the precomputed plans, on frontiers that the solver made."""

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import read_provenance, read_table, write_table
from kareus.cli import main
from kareus.frontiers.tables import MICROBATCH
from kareus.partition.config import subject_of
from kareus.pipeline.frontiers import iteration_rows, method_problem
from kareus.pipeline.methods import method_named
from kareus.pipeline.solver.frontier import iteration_frontier
from kareus.pipeline.solver.relaxation import Relaxation
from kareus.pipeline.tables import ITERATION
from kareus.plans.selectors import Prices
from kareus.schedule.tables import SPACE
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import PlanSlice, cut, slice_text

ROOT = Path(__file__).parents[2]
TESTBED = TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail="1")
CLOCKS_MHZ = range(1410, 899, -30)


def microbatch_rows():
    """Seventeen clocks, slower and more frugal one after the other, the less so the lower."""
    for method, stage, (direction, time_s) in (
        (m, s, d) for m in ("sequential", "kareus") for s in (0, 1) for d in (("forward", 0.1), ("backward", 0.31))
    ):
        for point, frequency_mhz in enumerate(CLOCKS_MHZ):
            slow_s = time_s * (1 + point / 20) * (1.0 if method == "kareus" else 1.1)
            effective_energy_j = 250 * time_s * (0.6 + 0.4 / (1 + point / 4))
            yield {
                "method": method,
                "stage": stage,
                "chunk": 0,
                "direction": direction,
                "point": point,
                "execution": "sequential",
                "frequency_mhz": frequency_mhz,
                "time_s": slow_s,
                "energy_j": effective_energy_j + 85 * slow_s,
                "dynamic_energy_j": effective_energy_j + 25 * slow_s,
                "effective_energy_j": effective_energy_j,
                "is_thinned": False,
                "time_error_s": 0.0,
                "energy_error_j": 0.0,
                "on_frontier": True,
                "choices": [],
            }


def origin(workload, stage):
    config_hash = content_hash(cut(workload, stage))
    return Provenance(config_hash=config_hash, testbed=TESTBED, seed=workload.seed, subject=subject_of(workload))


OVERRIDES = (
    "num_microbatches=4",
    "pipeline.deadlines=5",
    "iteration.include_update=false",
    "gpu.clock_change={latency_s:0,pause_s:0,energy_j:0,interval_s:0}",
)
"""Changes of clock are free, so that plans can be compared with those of the solver."""


@pytest.fixture(scope="module")
def coarse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of a workload whose frontiers are coarse."""
    ((name, workload),) = resolve_accepted(OVERRIDES, ROOT / "config").items()
    place = tmp_path_factory.mktemp("coarse") / name
    (place / "config").mkdir(parents=True)
    (place / "config/plan.yaml").write_text(slice_text(workload, "plan"))
    microbatch = MICROBATCH.frame(list(microbatch_rows()))
    iteration = ITERATION.frame(iteration_rows(cut(workload, "pipeline"), microbatch))
    write_table(place / "frontier/microbatch.parquet", microbatch, MICROBATCH, origin(workload, "frontier"))
    space = SPACE.frame(
        [{"partition": "forward-mlp-allreduce", "candidate": 0, "frequency_mhz": 1410, "sm_count": 6, "launch": "norm"}]
    )
    write_table(place / "schedule/space.parquet", space, SPACE, origin(workload, "schedule"))
    write_table(place / "pipeline/iteration.parquet", iteration, ITERATION, origin(workload, "pipeline"))
    return place


@pytest.fixture
def folder(coarse: Path, tmp_path: Path) -> Path:
    """A copy, which a test may change."""
    return Path(shutil.copytree(coarse, tmp_path / coarse.name))


def plans_of(folder, method="kareus"):
    return read_table(folder / "pipeline/iteration.parquet", ITERATION).filter(pl.col("method") == method)


def predicted(folder, selector, *arguments):
    """What the plan of a selector is predicted to cost; the plan passes its check."""
    output = folder / "plan/asked.json"
    assert main(["select", selector, str(folder), "--output", str(output), *arguments]) == 0
    assert main(["check-plan", str(output)]) == 0
    return json.loads(output.read_text())["prediction"]


def test_a_deadline_just_below_a_plan_is_used_up(folder):
    slower, faster = plans_of(folder).row(2, named=True), plans_of(folder).row(1, named=True)
    deadline_s = slower["time_s"] * (1 - 1e-6)
    found = predicted(folder, f"deadline={deadline_s!r}s")
    assert found["time_s"] <= deadline_s
    assert found["energy_j"] < 0.5 * (slower["energy_j"] + faster["energy_j"])
    assert found["static_energy_j"] + found["dynamic_energy_j"] == pytest.approx(found["energy_j"])


def test_the_gap_is_certified_at_the_requested_deadline(folder, caplog):
    workload = load_slice(folder / "config/plan.yaml", PlanSlice).workload
    microbatch = read_table(folder / "frontier/microbatch.parquet", MICROBATCH)
    problem = method_problem(cut(workload, "pipeline"), microbatch, method_named("kareus"))
    for plan in plans_of(folder).rows(named=True):
        deadline_s = 1.003 * plan["time_s"]
        with caplog.at_level("INFO"):
            found = predicted(folder, f"deadline={deadline_s!r}s")
        bound_j = Relaxation(problem).solve(deadline_s).energy_j
        assert found["lower_bound_j"] == pytest.approx(bound_j)
        said = re.findall(r"certified gap to the least energy possible within the deadline: ([0-9.]+) %", caplog.text)[
            -1
        ]
        assert float(said) == pytest.approx(100 * (found["energy_j"] / bound_j - 1), abs=6e-4)


def test_an_energy_just_below_a_plans_costs_hardly_more_time(folder):
    frugal, thirsty = plans_of(folder).row(2, named=True), plans_of(folder).row(1, named=True)
    energy_j = thirsty["energy_j"] * (1 - 1e-4)
    found = predicted(folder, f"energy={energy_j!r}J")
    assert found["energy_j"] <= energy_j
    assert found["time_s"] < thirsty["time_s"] + 0.2 * (frugal["time_s"] - thirsty["time_s"])


AT_ONCE = {"sequential": (1.0, 3.0), "sequential+perseus": (1.02,), "kareus": (1.0, 1.02, 3.0)}


@pytest.mark.parametrize(
    ("method", "factor"),
    [
        pytest.param(method, factor, marks=[] if factor in AT_ONCE[method] else pytest.mark.acceptance)
        for method in AT_ONCE
        for factor in (1.0, 1.001, 1.02, 1.1, 3.0)
    ],
)
def test_nothing_is_worse_than_the_best_plan_already_there(folder, method, factor):
    plans = plans_of(folder, method)
    for plan in plans.rows(named=True):
        deadline_s, energy_j = factor * plan["time_s"], factor * plan["energy_j"]
        found = predicted(folder, f"deadline={deadline_s!r}s", f"--method={method}")
        assert found["time_s"] <= deadline_s
        assert found["energy_j"] <= plans.filter(pl.col("time_s") <= deadline_s)["energy_j"].min()
        found = predicted(folder, f"energy={energy_j!r}J", f"--method={method}")
        assert found["energy_j"] <= energy_j
        assert found["time_s"] <= plans.filter(pl.col("energy_j") <= energy_j)["time_s"].min()


def test_what_the_precomputed_plans_cannot_reach_is_refused(folder, capsys):
    plans = plans_of(folder)
    for selector in (f"deadline={plans['time_s'].min() * 0.999}s", f"energy={plans['energy_j'].min() * 0.999}J"):
        assert main(["select", selector, str(folder)]) == 2
        said = r"no plan is within \d+\.\d+ (s|J|kJ); the least that can be reached is"
        assert re.search(said, capsys.readouterr().err)


def test_frontiers_that_do_not_belong_together_are_refused(folder, capsys):
    slower = MICROBATCH.frame(list(microbatch_rows())).with_columns(pl.col("time_s") * 2)
    path = folder / "frontier/microbatch.parquet"
    write_table(path, slower, MICROBATCH, read_provenance(path, MICROBATCH))
    deadline_s = 1.001 * plans_of(folder)["time_s"].min()
    assert main(["select", f"deadline={deadline_s}s", str(folder)]) == 2
    assert "the microbatch frontiers allow none below" in capsys.readouterr().err


def costs(folder, method="kareus"):
    return plans_of(folder, method).select("time_s", "energy_j").rows()


def test_a_power_just_below_a_plans_costs_hardly_more_time(folder):
    (thirsty_s, thirsty_j), (frugal_s, _) = costs(folder)[1:3]
    power_w = thirsty_j / thirsty_s * (1 - 1e-4)
    found = predicted(folder, f"power={power_w!r}W")
    assert found["energy_j"] / found["time_s"] <= power_w
    assert found["time_s"] < thirsty_s + 0.2 * (frugal_s - thirsty_s)


@pytest.mark.parametrize("method", ["sequential", "kareus"])
def test_a_tighter_power_is_never_faster_and_always_kept(folder, method):
    ends_w = [energy_j / time_s for time_s, energy_j in costs(folder, method)]
    before_s = 0.0
    for step in range(7):
        power_w = max(ends_w) + (min(ends_w) - max(ends_w)) * step / 6
        found = predicted(folder, f"power={power_w * (1 + 1e-9)!r}W", f"--method={method}")
        assert found["energy_j"] / found["time_s"] <= power_w * (1 + 1e-8)
        assert found["time_s"] >= before_s * (1 - 1e-3)  # rounding to real points is not exactly monotone
        before_s = found["time_s"]


def test_a_straggler_is_the_deadline_that_it_sets(folder):
    deadline_s = 1.07 * plans_of(folder)["time_s"].min()
    assert predicted(folder, "straggler=1.07x") == predicted(folder, f"deadline={deadline_s!r}s")


@pytest.fixture(scope="module")
def fine_plans(coarse):
    """Plans for many deadlines: what a search along the frontier can at most find."""
    workload = load_slice(coarse / "config/plan.yaml", PlanSlice).workload
    microbatch = read_table(coarse / "frontier/microbatch.parquet", MICROBATCH)
    problem = method_problem(cut(workload, "pipeline"), microbatch, method_named("kareus"))
    return [(plan.time_s, plan.energy_j) for plan in iteration_frontier(problem, 60)]


def test_the_least_product_is_that_of_a_fine_frontier(folder, fine_plans):
    found = predicted(folder, "edp")
    product_js = found["time_s"] * found["energy_j"]
    assert product_js <= min(time_s * energy_j for time_s, energy_j in costs(folder)) * (1 + 1e-9)
    assert product_js <= min(time_s * energy_j for time_s, energy_j in fine_plans) * (1 + 2e-3)


@pytest.mark.parametrize("per_gpu_hour", [0.0, 0.01, 0.05, 0.2, 3.0])
def test_the_least_cost_is_that_of_a_fine_frontier(folder, fine_plans, per_gpu_hour):
    prices = Prices(0.12, per_gpu_hour)
    found = predicted(folder, f"cost=0.12perkWh+{per_gpu_hour!r}perGPUh")
    cost = prices.cost(found["time_s"], found["energy_j"], 16)
    assert cost <= min(prices.cost(*plan, 16) for plan in costs(folder)) * (1 + 1e-9)
    assert cost <= min(prices.cost(*plan, 16) for plan in fine_plans) * (1 + 2e-3)


@pytest.mark.parametrize("prices", ["2perGPUh", "1e-7perkWh+2perGPUh", "1e-15perkWh+2perGPUh", "1e-300perkWh+2perGPUh"])
def test_paying_almost_only_for_time_selects_the_fastest_plan(folder, prices):
    assert predicted(folder, f"cost={prices}")["time_s"] == pytest.approx(plans_of(folder)["time_s"].min())


def test_the_tokens_of_a_run_scale_what_it_takes_and_costs(folder, caplog):
    found = predicted(folder, "straggler=1x")
    with caplog.at_level("INFO"):
        assert main(["select", "cost=2perGPUh", str(folder), "--tokens", "1e12"]) == 0
    iterations = 1e12 / (4 * 8 * 4096)  # microbatches x sequences x tokens
    hours = iterations * found["time_s"] / 3600
    assert f"1,000,000,000,000 tokens: {iterations:,.0f} iterations, {hours / 24:,.0f} days on 16 GPUs" in caplog.text
    assert f"cost {hours * 16 * 2:,.0f}" in caplog.text


def test_no_tokens_at_all_are_refused(folder, capsys):
    assert main(["select", "fastest", str(folder), "--tokens", "0"]) == 2
    assert "--tokens 0: " in capsys.readouterr().err
    assert not list(folder.glob("plan/*"))
