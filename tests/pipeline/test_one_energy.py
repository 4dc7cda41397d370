"""One energy for an iteration: what plans say is what a long training takes, played back on chips that warm up."""

from dataclasses import replace

import pytest
from helpers.builders import CONFIG

import kareus
from kareus.adviser.predictions import LayoutPredictor
from kareus.adviser.prices import InstructionPrices
from kareus.gpu_model.model import KnownSteps
from kareus.plans.build import select_plan
from kareus.plans.planning import PlannedTables, plan_tables
from kareus.plans.simulated_run import play_back
from kareus.training.comparison import compare_runs
from kareus.training.tables import ITERATIONS
from kareus.workload.config import Workload
from kareus.workload.resolve import resolve_accepted

FEW = (
    "search=random",
    *(f"search.{size}.{key}" for size in ("medium", "large") for key in ("initial=6", "max_rounds=0")),
    "pipeline.deadlines=8",
)
"""Few candidates and plans."""
FEW_CLOCKS = "gpu.search_frequencies.stride_mhz=255"


@pytest.fixture(scope="module")
def workload() -> Workload:
    (workload,) = resolve_accepted((*FEW, FEW_CLOCKS), CONFIG).values()
    return workload


@pytest.fixture(scope="module")
def tables(workload: Workload) -> PlannedTables:
    return plan_tables(workload)


def test_playback_runs_at_the_energy_of_plans(workload: Workload, tables: PlannedTables) -> None:
    """Within 1 %, on chips that are as warm as a long training leaves them."""
    frontiers, known = tables.frontiers, KnownSteps()
    plans = [select_plan(workload, frontiers, "fastest", method, name="few") for method in frontiers.methods]
    rows = [row for plan in plans for row in play_back(plan, workload, tables.graphs, 12, known)]
    for run, plan in zip(compare_runs(ITERATIONS.frame(rows), tables.iteration), plans, strict=True):
        assert run.predicted_energy_j == plan.prediction.energy_j
        assert abs(run.energy_percent) < 1, run


GPUS_AND_MODELS = {
    "A100": ("num_microbatches=4", FEW_CLOCKS),
    "H100": ("model=llama3.1-8b", "gpu=h100-sxm5-80gb", "num_microbatches=4", "gpu.search_frequencies.stride_mhz=270"),
}


@pytest.mark.parametrize("overrides", GPUS_AND_MODELS.values(), ids=GPUS_AND_MODELS)
def test_one_execution_has_one_energy(overrides: tuple[str, ...]) -> None:
    """Predicted, priced by the adviser, and as the baseline of a plan, but for the noise and period of instruments."""
    (workload,) = resolve_accepted((*FEW, *overrides), CONFIG).values()
    exact = replace(
        workload,
        testbed=replace(workload.testbed, time_noise=0.0, power_noise=0.0, counter_period_s=1e-6),
        protocol=replace(workload.protocol, settle_s=0.0),
    )
    predicted = kareus.predict(workload)
    price, _ = LayoutPredictor(workload, InstructionPrices(workload)).sequential(workload)
    baseline = kareus.plan(exact, method="sequential").prediction
    for cost in (price, baseline):
        assert cost.time_s == pytest.approx(predicted.time_s, rel=1e-6)
        assert cost.energy_j == pytest.approx(predicted.energy_j, rel=1e-6)
