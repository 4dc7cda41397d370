"""A small fleet whose every plan can be enumerated, and the microbatch frontiers of its pipeline."""

import itertools
from pathlib import Path

import polars as pl

from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import write_table
from kareus.emulate.resolve import Fleet, resolve_fleets
from kareus.frontiers.tables import MICROBATCH
from kareus.partition.config import subject_of
from kareus.pipeline.solver.problem import Problem
from kareus.workload.slices import cut

CONFIG = Path(__file__).parents[2] / "config"
TESTBED = TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail="1")
SMALL = (
    "model=llama3.2-3b",
    "parallelism=tp8",
    "microbatch_size=8",
    "emulation.pipelines=4",
    "emulation.num_microbatches=2",
    "emulation.deadlines=6",
)
"""Overrides of a fleet of four pipelines with two stages and two microbatches: 8 instructions."""


UPDATE_S = {"gradient_reduction": 0.05, "embedding_exchange": 0.02, "update": 0.04}
"""Least times of the update of `SMALL` with replicas."""


def with_small(*overrides: str) -> list[str]:
    """`SMALL` with other values for what `overrides` name."""
    keys = {text.partition("=")[0] for text in overrides}
    return [*(text for text in SMALL if text.partition("=")[0] not in keys), *overrides]


def fleet(*overrides: str) -> Fleet:
    (one,) = resolve_fleets(with_small(*overrides), CONFIG)
    return one


def microbatch(points: int = 2, **update_s: float) -> pl.DataFrame:
    """Points that are slower and more frugal one after the other, the less so the later.

    Args:
        points: of every instruction.
        update_s: least seconds of each direction of the update, such as `gradient_reduction`.
    """
    rows = []
    least_s = {"forward": 0.1, "backward": 0.31} | {name.replace("_", "-"): time_s for name, time_s in update_s.items()}
    for method, slower in (("sequential", 1.1), ("kareus", 1.0)):
        for stage, (direction, base_s) in itertools.product((0, 1), least_s.items()):
            for point in range(points):
                time_s = base_s * slower * (1 + point / 10)
                effective_j = 250 * base_s * (0.6 + 0.4 / (1 + point / 2))
                rows.append(
                    {
                        "method": method,
                        "stage": stage,
                        "chunk": 0,
                        "direction": direction,
                        "point": point,
                        "execution": "sequential",
                        "frequency_mhz": 1410 - 30 * point,
                        "time_s": time_s,
                        "energy_j": effective_j + 85 * time_s,
                        "dynamic_energy_j": effective_j + 25 * time_s,
                        "effective_energy_j": effective_j,
                        "is_thinned": False,
                        "time_error_s": 0.0,
                        "energy_error_j": 0.0,
                        "on_frontier": True,
                        "choices": [],
                    }
                )
    return MICROBATCH.frame(rows)


def write_microbatch(results: Path, own: Fleet, points: int = 2, **update_s: float) -> None:
    """Put the microbatch frontiers where `kareus emulate` finds them."""
    provenance = Provenance(
        config_hash=content_hash(cut(own.workload, "frontier")),
        testbed=TESTBED,
        seed=own.workload.seed,
        subject=subject_of(own.workload),
    )
    write_table(
        results / own.workload_name / "frontier/microbatch.parquet",
        microbatch(points, **update_s),
        MICROBATCH,
        provenance,
    )


def all_plans(problem: Problem) -> list[tuple[float, float]]:
    """Time and energy of every combination of points."""
    return [problem.cost(choice) for choice in itertools.product(*(range(len(s.times_s)) for s in problem.point_sets))]
