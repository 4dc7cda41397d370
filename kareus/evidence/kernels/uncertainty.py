"""Errors of a GPU that was fitted to single kernels: of shapes left out, and bootstrap intervals.

Refits are to parts of the shapes, and to shapes drawn anew with replacement, since rows of one shape err together.
Where there are thousands of rows, a refit is one Gauss-Newton step from the fit, which costs one set of slopes for each
stage and no search; where there are few, as of collectives, draws differ too much for that, and refits are cheap. What
refits change is taken relative to the refit to all rows, which changes nothing only where the fit has converged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kareus.arrays import Array, Indices
from kareus.evidence.kernels.counted import power_counts
from kareus.evidence.kernels.fit import (
    FOLDS,
    REFIT_EVALUATIONS,
    StageProblem,
    parts_of,
    problem,
    shape_folds,
    solved,
    with_best_library,
)
from kareus.evidence.kernels.predict import predict
from kareus.evidence.kernels.rows import KernelKind, Kernels
from kareus.evidence.kernels.stages import STAGES, FitStage
from kareus.gpu_model.gpu import Gpu, KernelUncertainty
from kareus.gpu_model.trust import kernel_numbers_of
from kareus.prediction.workload_prediction import predict as predict_workload
from kareus.workload.config import Workload

SAMPLES = 40
"""Draws of the bootstrap."""
PERCENT = 90.0
FEW_ROWS = 200
"""Rows of a stage up to which refits are whole."""


@dataclass(frozen=True, slots=True)
class StageRefits:
    """A fitted stage, and what other weights of its shapes make of it."""

    stage: FitStage
    problem: StageProblem
    at: Array
    """Logarithms of the fit."""
    residuals: Array
    slopes: Array
    shapes: Indices
    """Number of the shape of each row."""
    read: Indices
    """Rows whose power was read, which have a second residual."""

    @property
    def num_shapes(self) -> int:
        """Number of different shapes."""
        return int(self.shapes.max()) + 1

    def changed(self, counts: Indices) -> Array:
        """Return the logarithms of a refit to shapes that count so many times, relative to the refit to all."""
        refitted = self.at + self._refit(counts) - self._refit(np.ones(self.num_shapes, dtype=np.int64))
        return self.problem.space.clipped(refitted, 0.0)

    def _refit(self, counts: Indices) -> Array:
        if len(self.problem.rows) > FEW_ROWS:
            return self._step(counts.astype(np.float64))
        rows = self.problem.rows.where(np.repeat(np.arange(len(self.problem.rows)), counts[self.shapes]))
        return solved(replace(self.problem, rows=rows), REFIT_EVALUATIONS)

    def _step(self, weights: Array) -> Array:
        """Return the logarithms after a step; bounds hold."""
        shape_weights = weights[self.shapes]
        full = np.concatenate([shape_weights, shape_weights[self.read], np.ones(len(self.at))])
        weighted = self.slopes * full[:, None]
        step = np.linalg.solve(self.slopes.T @ weighted, -weighted.T @ self.residuals)
        clipped: Array = np.clip(self.at + step, self.problem.space.lower, self.problem.space.upper)
        return clipped


def kernel_uncertainty(
    files: Mapping[KernelKind, Kernels], gpu: Gpu, option: str, workload: Workload, seed: int = 0
) -> KernelUncertainty:
    """Return errors on shapes left out, and intervals of an iteration of a workload.

    Args:
        files: measured kernels; rows of other GPUs are left aside.
        gpu: the fitted GPU.
        option: its option in the files.
        workload: what the intervals are of; its GPU is replaced.
        seed: of the draws.
    """
    stages = [_refits(stage, rows, gpu, option) for stage in STAGES for rows in parts_of(stage, files, option)]
    errors = [_left_out(refits, option) for refits in stages]
    times, energies = (np.abs(np.concatenate([sample_errors[n] for sample_errors in errors])) for n in (0, 1))
    predicted = np.array([_iteration(workload, sample) for sample in _samples(stages, gpu, seed)])
    half_widths = [_half_width_percent(column / np.median(column)) for column in predicted.T]
    return KernelUncertainty(
        time_percent=round(100 * float(np.percentile(times, PERCENT)), 1),
        energy_percent=round(100 * float(np.percentile(energies, PERCENT)), 1) if energies.size else None,
        time_interval_percent=half_widths[0],
        energy_interval_percent=half_widths[1] if energies.size else None,
        estimated_for=kernel_numbers_of(gpu),
    )


def _refits(stage: FitStage, rows: Kernels, gpu: Gpu, option: str) -> StageRefits:
    stage_problem = problem(stage, rows, gpu, option)
    at = stage_problem.start
    return StageRefits(
        stage=stage,
        problem=stage_problem,
        at=at,
        residuals=stage_problem.residuals(at),
        slopes=stage_problem.slopes(at),
        shapes=_shape_numbers(rows),
        read=np.flatnonzero(power_counts(rows)),
    )


def _shape_numbers(rows: Kernels) -> Indices:
    """Number of the shape of each row; equal shapes have one, whatever ran them."""
    kinds = np.unique(rows.collective, return_inverse=True)[1]
    sizes = np.stack([kinds, *rows.sizes.values()], axis=1)
    numbers: Indices = np.unique(sizes, axis=0, return_inverse=True)[1].ravel()
    return numbers


def _left_out(refits: StageRefits, option: str) -> tuple[Array, Array]:
    """Relative errors of time of all rows, and of energy of those with power, each by a refit to other shapes."""
    rows, folds = refits.problem.rows, shape_folds(refits.problem.rows)
    times, energies = [], []
    for fold in range(FOLDS):
        in_fold = folds == fold
        if not in_fold.any():
            continue
        counts = np.ones(refits.num_shapes, dtype=np.int64)
        counts[refits.shapes[in_fold]] = 0
        part = rows.where(in_fold)
        predicted = predict(part, {option: refits.problem.changed(refits.changed(counts))})
        times.append(predicted.time_s / part.time_s - 1)
        read = power_counts(part)
        energies.append((predicted.time_s * predicted.power_w / (part.time_s * part.power_w) - 1)[read])
    return np.concatenate(times), np.concatenate(energies)


def _samples(stages: list[StageRefits], gpu: Gpu, seed: int) -> list[Gpu]:
    """GPUs with the coefficients of refits to shapes drawn anew."""
    random = np.random.default_rng(seed)
    return [_resampled(stages, gpu, random) for _ in range(SAMPLES)]


def _resampled(stages: list[StageRefits], gpu: Gpu, random: np.random.Generator) -> Gpu:
    for refits in stages:
        counts = random.multinomial(refits.num_shapes, np.full(refits.num_shapes, 1 / refits.num_shapes))
        gpu = replace(refits.problem, gpu=gpu).changed(refits.changed(counts))
    shared = {refits.stage.name: refits.stage for refits in stages if refits.stage.by_library}
    for stage in shared.values():
        gpu = with_best_library(stage, gpu)
    return gpu


def _iteration(workload: Workload, gpu: Gpu) -> tuple[float, float]:
    prediction = predict_workload(replace(workload, gpu=gpu))
    return prediction.time_s, prediction.energy_j


def _half_width_percent(values: Array) -> float:
    tail = (100 - PERCENT) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return round(100 * float(high - low) / 2, 2)
