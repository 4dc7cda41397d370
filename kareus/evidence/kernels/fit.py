"""Fitting the coefficients of single kernels to measured ones, stage by stage, and judging the fit on shapes left out.

Least squares in logarithms with a weak prior on every coefficient. A stage is fitted to the rows of its kind, with what
the stages before found. Left-out errors are those of shapes, not of rows: a shape is left out on all software at once.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kareus.arrays import Array, Indices
from kareus.calibrate.coefficient_space import CoefficientSpace, softened, space_of, with_coefficients
from kareus.evidence.kernels.counted import power_counts, time_counts
from kareus.evidence.kernels.predict import Predicted, predict
from kareus.evidence.kernels.rows import KernelKind, Kernels
from kareus.evidence.kernels.stages import STAGES, FitStage
from kareus.gpu_model.gpu import Gpu

ERROR_SCALE = 0.05
"""Relative error of a time that weighs as much as one standard deviation of a prior; the laws are not better."""
SLOPE_STEP = 0.02
"""Change of a logarithm that slopes are taken over: wide enough for times that jump where another tile is faster."""
POWER_WEIGHT = 0.5
"""Of an error of power relative to one of time: readings scatter more."""
EVALUATIONS = 25
REFIT_EVALUATIONS = 6
"""Most steps of a fit, and of one that starts from another."""
FOLDS = 5
"""Parts of the shapes, each left out once."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Predictions of the rows of a stage, each by a fit that had not seen its shape."""

    stage: FitStage
    rows: Kernels
    predicted: Predicted


def fit_kernels(files: Mapping[KernelKind, Kernels], gpu: Gpu, option: str) -> Gpu:
    """Return `gpu` fitted to the rows of `files` that name `option` as their GPU, stage by stage."""
    for stage in STAGES:
        for part in parts_of(stage, files, option):
            gpu = _fit(stage, part, gpu, option, EVALUATIONS)
        if stage.by_library:
            gpu = with_best_library(stage, gpu)
    return gpu


def left_out(files: Mapping[KernelKind, Kernels], gpu: Gpu, option: str) -> list[LeftOut]:
    """Return predictions of every row by fits of its stage to the other shapes, all other coefficients as in `gpu`."""
    errors = []
    for stage in STAGES:
        for part in parts_of(stage, files, option):
            folds = shape_folds(part)
            predicted = Predicted(*(np.full(len(part), np.nan) for _ in range(4)))
            for fold in range(FOLDS):
                fitted = _fit(stage, part.where(folds != fold), gpu, option, REFIT_EVALUATIONS)
                predicted.put(folds == fold, predict(part.where(folds == fold), {option: fitted}))
            errors.append(LeftOut(stage, part, predicted))
    return errors


def shape_folds(rows: Kernels) -> Indices:
    """Return the part of the shapes to which each row belongs: the same for equal shapes, whatever ran them."""
    sizes = np.stack(list(rows.sizes.values()), axis=1)
    names = [f"{kind} {' '.join(map(str, shape))}" for kind, shape in zip(rows.collective, sizes, strict=True)]
    return np.array([zlib.crc32(name.encode()) % FOLDS for name in names])


def with_best_library(stage: FitStage, gpu: Gpu) -> Gpu:
    """Return the GPU whose own coefficients are those of its most efficient library, which a training would use."""
    efficiency = next(iter(stage.priors))
    fitted = [library for library in gpu.libraries.values() if efficiency in library]
    if not fitted:
        return gpu
    best = max(fitted, key=lambda library: library[efficiency])
    return _with(gpu, None, {name: best[name] for name in stage.priors})


def parts_of(stage: FitStage, files: Mapping[KernelKind, Kernels], option: str) -> list[Kernels]:
    """Rows that the stage is fitted to: all at once, or those of one library after the other."""
    if stage.kind not in files:
        return []
    every = files[stage.kind]
    rows = stage.rows(every.where((every.gpu == option) & time_counts(every)))
    if not len(rows):
        return []
    if not stage.by_library:
        return [rows]
    return [rows.where(rows.libraries == library) for library in np.unique(rows.libraries)]


@dataclass(frozen=True, slots=True)
class StageProblem:
    """What a stage minimises the squares of, over logarithms of its coefficients."""

    rows: Kernels
    gpu: Gpu
    """All other numbers."""
    option: str
    library: str | None
    """Kernel library whose coefficients they are; None for those of the GPU itself."""
    space: CoefficientSpace

    def changed(self, x: Array) -> Gpu:
        """Return the GPU with these coefficients."""
        return _with(self.gpu, self.library, self.space.values(x))

    def residuals(self, x: Array) -> Array:
        """Return errors of time of all rows, of power of those that have it, and distances from the priors."""
        return np.concatenate([softened(_errors(self.rows, self.changed(x), self.option)), self.space.distances(x)])

    def slopes(self, x: Array) -> Array:
        """Return the derivatives of the residuals, shape (residuals, coefficients)."""
        here, steps = self.residuals(x), np.where(x + SLOPE_STEP < self.space.upper, SLOPE_STEP, -SLOPE_STEP)
        axes = np.eye(len(x))
        columns = [(self.residuals(x + step * axis) - here) / step for step, axis in zip(steps, axes, strict=True)]
        return np.stack(columns, axis=1)

    @property
    def start(self) -> Array:
        """Logarithms to start from: the GPU's own values, or those expected, inside of the bounds."""
        return self.space.clipped(_start(self.gpu, self.library, self.space), 1e-6)


def problem(stage: FitStage, rows: Kernels, gpu: Gpu, option: str) -> StageProblem:
    """Return what a stage minimises for rows of one library, or of all where libraries share coefficients."""
    library = str(rows.libraries[0]) if stage.by_library else None
    return StageProblem(rows, gpu, option, library, space_of(stage.priors_of(gpu, rows)))


def solved(subproblem: StageProblem, evaluations: int) -> Array:
    """Return the logarithms of the least squares, after so many steps at most."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - only fitting needs it

    x: Array = least_squares(
        subproblem.residuals,
        subproblem.start,
        subproblem.slopes,
        bounds=(subproblem.space.lower, subproblem.space.upper),
        x_scale=subproblem.space.spreads,
        max_nfev=evaluations,
        ftol=1e-4,
    ).x
    return x


def _fit(stage: FitStage, rows: Kernels, gpu: Gpu, option: str, evaluations: int) -> Gpu:
    stage_problem = problem(stage, rows, gpu, option)
    return stage_problem.changed(solved(stage_problem, evaluations))


def _errors(rows: Kernels, gpu: Gpu, option: str) -> Array:
    """Errors of time and of power where it was read, in their scales."""
    predicted = predict(rows, {option: gpu})
    times = np.log(predicted.time_s / rows.time_s) / ERROR_SCALE
    read = power_counts(rows)
    return np.concatenate([times, POWER_WEIGHT * np.log(predicted.power_w[read] / rows.power_w[read]) / ERROR_SCALE])


def _start(gpu: Gpu, library: str | None, space: CoefficientSpace) -> Array:
    """Logarithms to start from: the GPU's own values where they are within bounds, else those expected."""
    coefficients = gpu.with_library(library).coefficients if library else gpu.coefficients
    with np.errstate(divide="ignore"):
        logarithms = space.logarithms(coefficients)
    return np.where((space.lower <= logarithms) & (logarithms <= space.upper), logarithms, space.expected)


def _with(gpu: Gpu, library: str | None, values: Mapping[str, float]) -> Gpu:
    if library is None:
        return with_coefficients(gpu, values)
    return replace(gpu, libraries={**gpu.libraries, library: {**gpu.libraries.get(library, {}), **values}})
