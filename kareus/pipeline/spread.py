"""Standard errors of what methods save, from the noise of measuring, by a parametric bootstrap.

Every point of the microbatch frontiers has standard errors. Many times over, all points are drawn anew around their
estimates and the methods are compared as if that had been measured; the standard deviation of a saving over the draws
is its standard error. A point has the same error in all plans and methods that use it.

The fastest plan is made anew in every draw, since noise decides which clocks it may run at: at their fast end frontiers
are so steep that a thousandth of the time is a percent of the energy. It is made greedily, for how its cost varies is
asked, not what it is. Other plans keep their points, and frontiers are lines between them. How right a GPU model is has
no part in any of this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import polars as pl

from kareus.arrays import Array, generator
from kareus.gpu_model.waiting import effective_energy_j, least_waiting_w
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import Direction
from kareus.pareto import ROUNDING
from kareus.pipeline.compare import FRONTIER_BASELINE, THROUGHPUT_BASELINE
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.iteration import iteration_costs
from kareus.pipeline.methods import method_named, method_points, point_method
from kareus.pipeline.solver.dag import iteration_dag, latest_ends
from kareus.profile.programs import Execution

DRAWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsErrors:
    """Standard errors in points of percent of the reductions of a `MethodComparison`; None where it has none.

    All are None where the points have no standard errors.
    """

    time_reduction: float | None
    energy_reduction: float | None
    iso_time_energy_reduction: float | None
    iso_energy_time_reduction: float | None


Costs = tuple[Array, Array]
"""Seconds and joules, by draw in the last axis."""


class Spread:
    """Costs of plans under many draws of the errors of their points."""

    def __init__(self, config: PipelineSlice, microbatch: pl.DataFrame) -> None:
        """Take the points of `microbatch`, a table `MICROBATCH` of the pipeline's stages."""
        self._config = config
        self._kinds = [i.key.kind for i in instructions_of(config)]
        self._dag = iteration_dag(config)
        self._points: dict[str, dict[InstructionKind, dict[int, Costs]]] = {}
        self._noise: dict[str, Costs] = {}
        self._microbatch = microbatch
        errors = microbatch.select(pl.any_horizontal(pl.col("time_error_s", "energy_error_j") > 0))
        self.is_noise_free = not errors.to_series().any()
        """Whether all standard errors of points are zero, so that savings have no standard errors."""

    def plans(self, method: str, plans: Sequence[Sequence[int]]) -> Costs:
        """Costs of plans of `method`, given by their points; each of shape (plans, draws)."""
        points = self._points_of(method)
        times_s, effective_j = np.empty((2, len(self._kinds), len(plans), DRAWS))
        for number, kind in enumerate(self._kinds):
            costs = points[kind]
            for plan, chosen in enumerate(plans):
                times_s[number, plan], effective_j[number, plan] = costs[chosen[number]]
        return self._total(times_s, effective_j)

    def fastest(self, method: str) -> Costs:
        """Cost of the fastest plan of `method` that each draw would make; each of shape (draws,)."""
        rows = method_points(self._config, self._microbatch, method_named(method))
        keys = rows.select("stage", "chunk", "direction", "point").iter_rows()
        free = {(InstructionKind(stage, chunk, Direction(direction)), point) for stage, chunk, direction, point in keys}
        offered = {
            kind: tuple(
                np.array(costs)
                for costs in zip(*(of_kind for n, of_kind in points.items() if (kind, n) in free), strict=True)
            )
            for kind, points in self._points_of(method).items()
        }
        costs_of = [offered[kind] for kind in self._kinds]
        least_s = np.array([times_s.min(axis=0) for times_s, _ in costs_of])
        deadline_s = -(latest_ends(self._dag, least_s, np.zeros(DRAWS)) - least_s).min(axis=0)
        ends_s = latest_ends(self._dag, least_s, deadline_s)
        chosen_s, chosen_j, finished_s = np.empty((3, len(costs_of), DRAWS))
        for number in self._dag.order:
            start_s = np.zeros(DRAWS)
            for before, transfer_s in self._dag.predecessors[number]:
                start_s = np.maximum(start_s, finished_s[before] + transfer_s)
            times_s, effective_j = costs_of[number]
            in_time = times_s <= np.maximum(ends_s[number] - start_s, least_s[number]) * (1 + ROUNDING)
            pick = np.where(in_time, effective_j, np.inf).argmin(axis=0), np.arange(DRAWS)
            chosen_s[number], chosen_j[number] = times_s[pick], effective_j[pick]
            finished_s[number] = start_s + chosen_s[number]
        return self._total(chosen_s, chosen_j)

    def _total(self, times_s: Array, effective_j: Array) -> Costs:
        """Return the costs of iterations from those of their instructions, which are in the first axis."""
        waiting_power_w = least_waiting_w(self._config.gpu) * self._config.parallelism.gpus
        return iteration_costs(self._dag, times_s, effective_j, waiting_power_w)

    def _points_of(self, method: str) -> dict[InstructionKind, dict[int, Costs]]:
        """Seconds and effective joules of all GPUs of the stage, by kind and point, of what a plan may have."""
        if method not in self._points:
            rows = self._microbatch.filter(pl.col("method") == point_method(method))
            points: dict[InstructionKind, dict[int, Costs]] = {}
            for row in rows.iter_rows(named=True):
                kind = InstructionKind(row["stage"], row["chunk"], Direction(row["direction"]))
                points.setdefault(kind, {})[row["point"]] = self._drawn(row)
            self._points[method] = points
        return self._points[method]

    def _drawn(self, row: Mapping[str, Any]) -> Costs:
        # Overlap on several stages is put together from the same partitions, so it is off by the same share.
        place = () if row["execution"] == Execution.OVERLAP else (row["stage"], row["chunk"])
        noise_key = str((*place, row["direction"], row["execution"], row["frequency_mhz"], row["choices"]))
        if noise_key not in self._noise:
            drawn = generator(0, noise_key).standard_normal((2, DRAWS))
            self._noise[noise_key] = drawn[0], drawn[1]
        time_error, energy_error = row["time_error_s"] / row["time_s"], row["energy_error_j"] / row["energy_j"]
        power_error = np.sqrt(max(energy_error**2 - time_error**2, 0.0))
        longer, stronger = (
            np.exp(e * z) for e, z in zip((time_error, power_error), self._noise[noise_key], strict=True)
        )
        time_s, energy_j = row["time_s"] * longer, row["energy_j"] * longer * stronger
        effective_j = effective_energy_j(energy_j, time_s, least_waiting_w(self._config.gpu))
        return time_s, effective_j * self._config.parallelism.gpus_per_stage


def savings_errors(spread: Spread, iteration: pl.DataFrame) -> dict[str, SavingsErrors]:
    """Standard errors of what every method of an `ITERATION` table saves, by method."""
    methods = iteration["method"].unique(maintain_order=True).to_list()
    if spread.is_noise_free:
        return dict.fromkeys(methods, SavingsErrors(**dict.fromkeys(field.name for field in fields(SavingsErrors))))
    first = spread.fastest(THROUGHPUT_BASELINE)
    plans = {m: spread.plans(m, iteration.filter(pl.col("method") == m)["points"].to_list()) for m in methods}
    baseline, frugal = spread.fastest(FRONTIER_BASELINE), _frugal(plans[FRONTIER_BASELINE])
    errors = {}
    for method in methods:
        time_s, energy_j = spread.fastest(method)
        is_first, is_frontier = method == THROUGHPUT_BASELINE, method == FRONTIER_BASELINE
        within_time_j = _along(*plans[method], baseline[0])
        within_energy_s = _along(*plans[method][::-1], frugal[1])
        errors[method] = SavingsErrors(
            time_reduction=None if is_first else deviation(time_s / first[0]),
            energy_reduction=None if is_first else deviation(energy_j / first[1]),
            iso_time_energy_reduction=None if is_frontier else deviation(within_time_j / baseline[1]),
            iso_energy_time_reduction=None if is_frontier else deviation(within_energy_s / frugal[0]),
        )
    return errors


def deviation(shares: Array) -> float:
    """Standard deviation over draws, in points of percent."""
    return 100 * float(shares.std())


def _frugal(costs: Costs) -> Costs:
    """Cost of the plan of the least energy in every draw."""
    at = costs[1].argmin(axis=0), np.arange(DRAWS)
    return costs[0][at], costs[1][at]


def _along(budgets: Array, costs: Array, given: Array) -> Array:
    """Cost at a given budget on the line through plans, in every draw; beyond its ends that of the last plan."""
    order = budgets.argsort(axis=0)
    budgets, costs = (np.take_along_axis(each, order, axis=0) for each in (budgets, costs))
    return np.array([np.interp(given[draw], budgets[:, draw], costs[:, draw]) for draw in range(DRAWS)])
