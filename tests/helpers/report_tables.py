"""A small workload's tables and plans on disk, with numbers whose reductions are easy to work out by hand."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from helpers.builders import CONFIG
from kareus.artifacts.files import write_text
from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.tables import TableSchema, write_table
from kareus.frontiers.tables import MICROBATCH
from kareus.pipeline.tables import ITERATION
from kareus.plans.document import PLAN_SCHEMA_VERSION, Plan, PlannedInstruction, PredictedCost, StagePlan
from kareus.plans.file import write_plan
from kareus.report.workload.inputs import Paths
from kareus.schedule.records import Choice
from kareus.search.tables import CANDIDATES, PROPOSALS, ROUNDS
from kareus.training.tables import ITERATIONS
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import slice_text

SIMULATED = TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail="GPU model 1")
WORKLOAD = "tiny_pp2-tp8"
PARTITIONS = ("forward-mlp-allreduce", "backward-mlp-allreduce")
STATIC_W, BLOCKING_W, GPUS = 60.0, 85.0, 16

FRONTIERS = {
    "sequential": [(4.0, 20e3)],
    "sequential+perseus": [(4.0, 18e3), (5.0, 15e3)],
    "nanobatching": [(4.4, 21e3)],
    "nanobatching+perseus": [(4.4, 20e3), (5.5, 16e3)],
    "kareus": [(3.0, 14e3), (4.0, 12e3), (5.0, 10e3)],
}
"""(seconds, joules) of the plans of every method."""
ORDER = {0: ("F0", "F1", "B0", "B1"), 1: ("F0", "B0", "F1", "B1")}
"""Instructions of the stages of a pipeline with two microbatches."""
DURATIONS_S = {"F": 0.5, "B": 1.0}


@dataclass(frozen=True)
class Names:
    """What a workload is called, for tests that call it something nasty."""

    workload: str = WORKLOAD
    launch: str = "up"
    method: str = "kareus"
    selector: str = "fastest"


def write_inputs(folder: Path, names: Names = Names(), testbed: TestbedIdentity = SIMULATED) -> Paths:
    """Write every input of a report below `folder`."""
    provenance = Provenance(config_hash="0123456789abcdef", testbed=testbed, seed=7)

    def table(name: str, schema: TableSchema, rows: list[dict]) -> Path:
        path = folder / name
        write_table(path, schema.frame(rows), schema, provenance)
        return path

    own = "fastest" if names.selector == "fastest" else "own"  # a file named after a selector holds its plan
    plans = [folder / "plan" / f"{selector}.json" for selector in (own, "deadline=4s")]
    for number, (path, selector) in enumerate(zip(plans, (names.selector, "deadline=4s"), strict=True)):
        write_plan(path, plan(selector, number, names, testbed))
    config = folder / "config/plan.yaml"
    write_text(config, config_text())
    return Paths(
        config=config,
        iteration=table("pipeline/iteration.parquet", ITERATION, iteration_rows(names)),
        microbatch=table("frontier/microbatch.parquet", MICROBATCH, microbatch_rows()),
        candidates=[table(f"search/{p}/candidates.parquet", CANDIDATES, candidate_rows(names)) for p in PARTITIONS],
        rounds=[table(f"search/{p}/rounds.parquet", ROUNDS, round_rows()) for p in PARTITIONS],
        proposals=[table(f"search/{p}/proposals.parquet", PROPOSALS, proposal_rows()) for p in PARTITIONS],
        plans=plans,
    )


@cache
def config_text() -> str:
    """The default workload, with as many microbatches as the tables have."""
    (workload,) = resolve_accepted(["num_microbatches=2", "iteration.include_update=false"], CONFIG).values()
    return slice_text(workload, "plan")


def with_runs(paths: Paths, folder: Path, testbed: TestbedIdentity = SIMULATED) -> Paths:
    """Also say that two methods ran, each a tenth slower than planned, and `kareus` with a tenth less energy."""
    provenance = Provenance(config_hash="0123456789abcdef", testbed=testbed, seed=7)
    path = folder / "engine/end-to-end/iterations.parquet"
    write_table(path, ITERATIONS.frame(list(run_rows())), ITERATIONS, provenance)
    return replace(paths, runs=[path])


def run_rows() -> Iterator[dict]:
    for method, energy_share in (("sequential", 1.0), ("kareus", 0.9)):
        time_s, energy_j = FRONTIERS[method][0]
        for iteration in range(5):
            yield {
                "method": method,
                "selector": "fastest",
                "rank": 0,
                "gpus": GPUS,
                "stage": 0,
                "iteration": iteration,
                "pipeline_time_s": 1.1 * time_s,
                "pipeline_energy_j": energy_share * energy_j / GPUS,
                "reduction_time_s": 0.04 * time_s,
                "reduction_energy_j": 0.04 * energy_j / GPUS,
                "update_time_s": 0.06 * time_s,
                "update_energy_j": 0.06 * energy_j / GPUS,
                "time_s": 1.2 * time_s,
                "energy_j": energy_j / GPUS,
                "includes_update": False,
                "tokens": 1024,
                "loss": None,
                "clocks": [],
            }


def iteration_rows(names: Names = Names()) -> list[dict]:
    return [
        {
            "method": names.method if method == "kareus" else method,
            "plan": number,
            "time_s": time_s,
            "energy_j": energy_j,
            "static_energy_j": STATIC_W * time_s * GPUS,
            "dynamic_energy_j": energy_j - STATIC_W * time_s * GPUS,
            "deadline_s": time_s,
            "lower_bound_j": energy_j / 1.01,
            "gap": 0.01,
            "points": [0] * 8,
        }
        for method, points in FRONTIERS.items()
        for number, (time_s, energy_j) in enumerate(points)
    ]


def microbatch_rows() -> list[dict]:
    """Both stages cost the same; the third point of every frontier is dominated."""
    executions = {"sequential": ("sequential",) * 3, "nanobatching": ("nanobatching",) * 3}
    executions["kareus"] = ("overlap", "sequential", "nanobatching")
    return [
        {
            "method": method,
            "stage": stage,
            "chunk": 0,
            "direction": direction,
            "point": point,
            "execution": execution,
            "frequency_mhz": 1410 - 90 * point,
            "time_s": time_s,
            "energy_j": energy_j,
            "dynamic_energy_j": energy_j - STATIC_W * time_s,
            "effective_energy_j": energy_j - BLOCKING_W * time_s,
            "is_thinned": False,
            "time_error_s": 0.0,
            "energy_error_j": 0.0,
            "on_frontier": point < 2,
            "choices": [],
        }
        for method in executions
        for stage in ORDER
        for direction, scale in (("forward", 1.0), ("backward", 2.0))
        for point, (execution, time_s, energy_j) in enumerate(
            zip(executions[method], (0.3 * scale, 0.36 * scale, 0.42 * scale), (102.0, 96.0, 114.0), strict=True)
        )
    ]


def candidate_rows(names: Names = Names()) -> list[dict]:
    measured = [("initial", 2.0, 0.9), ("total", 1.5, 0.7), ("dynamic", 1.8, 0.5), ("static", 1.2, 0.95)]
    return [
        {
            "candidate": number,
            "round": int(number > 0),
            "chosen_by": [chosen_by],
            "frequency_mhz": 1410 - 30 * number,
            "sm_count": 3 + 3 * number,
            "launch": names.launch,
            "predicted_time_s": None if number == 0 else time_ms / 1e3 * 1.01,
            "predicted_dynamic_energy_j": None if number == 0 else dynamic_energy_j * 0.98,
            "time_s": time_ms / 1e3,
            "energy_j": dynamic_energy_j + STATIC_W * time_ms / 1e3,
            "is_power_limited": False,
            "dynamic_energy_j": dynamic_energy_j,
            "on_frontier": number > 0,
        }
        for number, (chosen_by, time_ms, dynamic_energy_j) in enumerate(measured)
    ]


def round_rows() -> list[dict]:
    common = {"hypervolume": 0.5, "improvement": 0.01, "looked": 7, "measuring_s": 60.0, "looking_s": 6.0}
    common |= {"strategy": "paper", "gpus": 8, "time_noise": None, "power_noise": None, "remaining": None}
    return [
        {"round": 0, "measured": 1, **common, "stop": "", "is_cut_short": False},
        {"round": 1, "measured": 4, **common, "stop": "the most rounds allowed", "is_cut_short": True},
    ]


def proposal_rows() -> list[dict]:
    """A third is spent on deciding to end."""
    return [{"round": round_, "proposing_s": 0.5} for round_ in range(3)]


def plan(selector: str, number: int, names: Names = Names(), testbed: TestbedIdentity = SIMULATED) -> Plan:
    time_s, energy_j = FRONTIERS["kareus"][number]
    static_energy_j = STATIC_W * time_s * GPUS
    return Plan(
        schema_version=PLAN_SCHEMA_VERSION,
        kareus_version="0.1.0",
        created_at="2025-01-01T00:00:00+00:00",
        workload=names.workload,
        workload_hash="fedcba9876543210",
        method=names.method,
        selector=selector,
        testbed=testbed,
        gpus=GPUS,
        prediction=PredictedCost(
            time_s=time_s,
            energy_j=energy_j,
            static_energy_j=static_energy_j,
            dynamic_energy_j=energy_j - static_energy_j,
            lower_bound_j=energy_j / 1.01,
        ),
        stages=tuple(
            StagePlan(stage=stage, layers=14, instructions=tuple(_planned(order, names)))
            for stage, order in ORDER.items()
        ),
    )


def _planned(order: tuple[str, ...], names: Names) -> list[PlannedInstruction]:
    forward = PlannedInstruction(
        direction="forward",
        microbatch=0,
        chunk=0,
        execution="overlap",
        frequency_mhz=1410,
        partitions=(Choice(partition=PARTITIONS[0], sm_count=6, launch=names.launch),),
        start_s=0.0,
        time_s=DURATIONS_S["F"],
        energy_j=170.0,
    )
    backward = replace(
        forward, direction="backward", execution="sequential", partitions=(), time_s=DURATIONS_S["B"], energy_j=250.0
    )
    planned, start_s = [], 0.0
    for name in order:
        kind = forward if name[0] == "F" else backward
        planned.append(replace(kind, microbatch=int(name[1]), start_s=start_s))
        start_s += DURATIONS_S[name[0]]
    return planned
