"""What the noise of measuring leaves open: standard errors of what methods save, by a parametric bootstrap.

Every point of the microbatch frontiers has standard errors. Many times over, all points are drawn anew around their
estimates, every plan is timed and priced with what was drawn, and the methods are compared as if that had been
measured; the standard deviation of a saving over the draws is its standard error. The same point has the same error in
all plans and methods. Plans are not solved anew, and how right a GPU model is has no part in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from kareus.artifacts.randomness import generator
from kareus.pipeline.compare import FRONTIER_BASELINE, THROUGHPUT_BASELINE, TOLERANCE
from kareus.pipeline.dag import Dag, build_dag
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.lanes import latest_ends
from kareus.pipeline.methods import point_method
from kareus.pipeline.problem import Array
from kareus.pipeline.transfers import transfers_s
from kareus.profile.programs import Execution
from kareus.workload.slices import PipelineSlice

DRAWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsErrors:
    """Standard errors, in points of percent, of the reductions of a `MethodComparison`; None where it has none."""

    time_reduction: float | None
    energy_reduction: float | None
    iso_time_energy_reduction: float | None
    iso_energy_time_reduction: float | None


class Spread:
    """Costs of plans under many draws of the errors of their points."""

    def __init__(self, config: PipelineSlice, microbatch: pl.DataFrame) -> None:
        """Take the points of `microbatch`, a table `MICROBATCH` of the pipeline's stages."""
        self._config = config
        self._instructions = instructions_of(config)
        self._dag: Dag = build_dag(self._instructions, transfers_s(config))
        self._rows = {
            (row["method"], row["stage"], row["chunk"], row["direction"], row["point"]): row
            for row in microbatch.iter_rows(named=True)
        }
        self._drawn: dict[str, tuple[Array, Array]] = {}
        self.is_known = not microbatch.select(pl.any_horizontal(pl.col("time_error_s", "energy_error_j") > 0)).to_series().any()
        """Whether no point has an error, as of a model without noise."""

    def costs(self, method: str, plans: Sequence[Sequence[int]]) -> tuple[Array, Array]:
        """Seconds and joules of plans of `method`, given by their points; each of shape (plans, draws)."""
        of = point_method(method)
        shape = len(self._instructions), len(plans), DRAWS
        times_s, energy_j = np.empty(shape), np.zeros(shape[1:])
        gpu, parallelism = self._config.gpu, self._config.parallelism
        for number, instruction in enumerate(self._instructions):
            for plan, points in enumerate(plans):
                key = (of, instruction.stage, instruction.chunk, str(instruction.direction), points[number])
                time_s, joules = self._point(key)
                times_s[number, plan] = time_s
                energy_j[plan] += (joules - gpu.blocking_power_w * time_s) * parallelism.gpus_per_stage
        lanes_s = times_s.reshape(len(self._instructions), -1)
        starts_s = latest_ends(self._dag, lanes_s, np.zeros(lanes_s.shape[1])) - lanes_s
        makespans_s = -starts_s.min(axis=0).reshape(shape[1:])
        return makespans_s, energy_j + gpu.blocking_power_w * parallelism.gpus * makespans_s

    def _point(self, key: tuple[str, int, int, str, int]) -> tuple[Array, Array]:
        """Seconds and joules of a point in every draw."""
        row = self._rows[key]
        # Overlap on several stages is put together from the same partitions, so it is off by the same share.
        place = () if row["execution"] == Execution.OVERLAP else (row["stage"], row["chunk"])
        own = str((*place, row["direction"], row["execution"], row["frequency_mhz"], row["choices"]))
        if own not in self._drawn:
            drawn = generator(0, own).standard_normal((2, DRAWS))
            self._drawn[own] = drawn[0], drawn[1]
        time_error, energy_error = row["time_error_s"] / row["time_s"], row["energy_error_j"] / row["energy_j"]
        power_error = np.sqrt(max(energy_error**2 - time_error**2, 0.0))
        time_draw, power_draw = self._drawn[own]
        longer = np.exp(time_error * time_draw)
        return row["time_s"] * longer, row["energy_j"] * longer * np.exp(power_error * power_draw)


def savings_errors(spread: Spread, iteration: pl.DataFrame) -> dict[str, SavingsErrors]:
    """Standard errors of what every method of an `ITERATION` table saves, by method."""
    methods = iteration["method"].unique(maintain_order=True).to_list()
    if spread.is_known:
        return dict.fromkeys(methods, SavingsErrors(**dict.fromkeys(SavingsErrors.__slots__)))
    costs = {m: spread.costs(m, iteration.filter(pl.col("method") == m)["points"].to_list()) for m in methods}
    base_time_s, base_energy_j = _fastest(costs[THROUGHPUT_BASELINE])
    found = {}
    for method, own in costs.items():
        time_s, energy_j = _fastest(own)
        is_first, is_frontier = method == THROUGHPUT_BASELINE, method == FRONTIER_BASELINE
        found[method] = SavingsErrors(
            time_reduction=None if is_first else deviation(time_s / base_time_s),
            energy_reduction=None if is_first else deviation(energy_j / base_energy_j),
            iso_time_energy_reduction=None if is_frontier else deviation(_iso(own, costs[FRONTIER_BASELINE])),
            iso_energy_time_reduction=None
            if is_frontier
            else deviation(_iso(own[::-1], costs[FRONTIER_BASELINE][::-1])),
        )
    return found


def deviation(shares: Array) -> float | None:
    """Standard deviation over draws in points of percent; draws without a value are left out, None if few are left."""
    kept = shares[np.isfinite(shares)]
    return 100 * float(kept.std()) if len(kept) > DRAWS // 2 else None


def _fastest(costs: tuple[Array, Array]) -> tuple[Array, Array]:
    """Cost of the plan that is the fastest by the estimates, which comes first."""
    times_s, energies_j = costs
    return times_s[0], energies_j[0]


def _iso(own: tuple[Array, Array], baseline: tuple[Array, Array]) -> Array:
    """Cost at the baseline's least budget over its own, in every draw; NaN where nothing keeps to the budget."""
    draws = np.arange(DRAWS)
    at = baseline[0].argmin(axis=0)
    least, base = baseline[0][at, draws], baseline[1][at, draws]
    within = np.where(own[0] <= least * (1 + TOLERANCE), own[1], np.inf).min(axis=0)
    return np.where(np.isfinite(within), within / base, np.nan)
