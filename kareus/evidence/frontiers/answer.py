"""The answer of `validate` to a file with planned frontiers or reductions: plain data, or tables for a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from kareus.artifacts.records import to_plain
from kareus.evidence.frontiers.predict import EXECUTIONS
from kareus.evidence.frontiers.reference import FrontierRow, ReductionRow, fastest_rows, rows_of
from kareus.evidence.frontiers.score import FrontierScore, ReductionScore, score_frontiers, score_reductions
from kareus.evidence.frontiers.staged import by_stages
from kareus.evidence.frontiers.subject import Subject, Subjects, subjects_of
from kareus.evidence.frontiers.throughput import SequentialScore, score_sequential
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.trust import trust
from kareus.prediction.lines import Line
from kareus.profile.programs import Execution


@dataclass(frozen=True, slots=True, kw_only=True)
class TrivialErrors:
    """Mean absolute percentage errors of the fastest plans of all curves."""

    constant_throughput_time_mape_pct: float
    """Time as if every workload reached the same FLOP/s."""
    constant_power_energy_mape_pct: float
    """Energy as if every iteration drew the same power, for its true time."""


def trivial_errors(rows: Sequence[FrontierRow], subjects: Subjects) -> TrivialErrors | None:
    """Errors of the best constant of each kind, or None without rows of the baselines."""
    fastest = fastest_rows([row for row in rows if row.method in EXECUTIONS])
    if not fastest:
        return None
    return TrivialErrors(
        constant_throughput_time_mape_pct=_spread_pct([r.time_s / _flops(subjects[r.scenario]) for r in fastest]),
        constant_power_energy_mape_pct=_spread_pct([r.energy_j / r.scenario.pp / r.time_s for r in fastest]),
    )


def _flops(subject: Subject) -> float:
    """Of one GPU of every stage, for one microbatch forward and backward."""
    counted = [tally for (_, execution), tally in subject.tallies.items() if execution is Execution.SEQUENTIAL]
    microbatches = subject.workload.num_microbatches
    return microbatches * float(
        sum(
            count * operator.flops
            for tally in counted
            for steps in (tally.blocks, tally.outer)
            for step, count in steps.items()
            for operator in step.operators
        )
    )


def _spread_pct(values: Sequence[float]) -> float:
    """Mean absolute percentage error of predicting the mean of `values` for each of them."""
    mean = fmean(values)
    return 100 * fmean(abs(mean / value - 1) for value in values)


@dataclass(frozen=True, slots=True)
class _TableAnswer:
    """What both answers have: the GPU, and the trust in its numbers."""

    gpu: Gpu

    @property
    def gpus(self) -> set[str]:
        """Name of the GPU."""
        return {self.gpu.name.lower()}

    def _plain(self, *parts: object) -> dict[str, Any]:
        merged = {"gpu": self.gpu.name, "trust": trust(self.gpu)}
        for part in parts:
            merged |= to_plain(part)
        return merged


@dataclass(frozen=True, slots=True)
class FrontierAnswer(_TableAnswer):
    """Planned frontiers of a file and their predictions."""

    score: FrontierScore
    trivial: TrivialErrors | None

    @property
    def title(self) -> str:
        """What the file holds."""
        return f"Planned iterations on {self.gpu.name}"

    @property
    def plain(self) -> dict[str, Any]:
        """The answer as plain data."""
        return self._plain(self.score) | {"trivial": to_plain(self.trivial)}

    @property
    def lines(self) -> list[str]:
        """Errors by row, and their means, for people."""
        return [trust(self.gpu), "", *_frontier_lines(self.score, self.trivial)]


@dataclass(frozen=True, slots=True)
class ReductionAnswer(_TableAnswer):
    """Measured reductions of a file and their predictions."""

    score: ReductionScore
    sequential: SequentialScore | None = None
    """Absolute times of sequential iterations; None where no workload has a published one."""

    @property
    def title(self) -> str:
        """What the file holds."""
        return f"What plans save on {self.gpu.name}"

    @property
    def plain(self) -> dict[str, Any]:
        """The answer as plain data."""
        return self._plain(self.score, *([] if self.sequential is None else [self.sequential]))

    @property
    def lines(self) -> list[str]:
        """Errors by row, and their means, for people."""
        sequential = ["", *_sequential_lines(self.sequential)] if self.sequential is not None else []
        return [trust(self.gpu), "", *_reduction_lines(self.score), *sequential]


TableAnswer = FrontierAnswer | ReductionAnswer


def answer_tables(
    header: Sequence[str], lines: Sequence[Line], path: Path, overrides: Sequence[str], config_dir: Path
) -> TableAnswer:
    """Predict and score a file with planned frontiers or reductions.

    Raises:
        ArtifactError: the file has the columns of neither, or a value that cannot be used.
        ConfigError: an override cannot be used, or a workload cannot run.
    """
    rows = rows_of(header, lines, path)
    subjects = subjects_of(rows, tuple(overrides), config_dir)
    gpu = next(iter(subjects.values())).workload.gpu
    frontiers = [row for row in rows if isinstance(row, FrontierRow)]
    if frontiers:
        return FrontierAnswer(gpu, score_frontiers(frontiers, subjects), trivial_errors(frontiers, subjects))
    reductions = [row for row in rows if isinstance(row, ReductionRow)]
    return ReductionAnswer(gpu, score_reductions(reductions, subjects, by_stages), score_sequential(subjects))


def _frontier_lines(score: FrontierScore, trivial: TrivialErrors | None) -> list[str]:
    lines = [f"{'workload':<38} {'method':<22} {'row':>3} {'time s':>15} {'error':>7} {'energy J':>15} {'error':>7}"]
    for row in score.rows:
        times = f"{row.given_time_s:7.3f} {row.predicted_time_s:7.3f}"
        energies = f"{row.given_energy_j:7.0f} {row.predicted_energy_j:7.0f}"
        note = "" if row.scored else "  dominated, not scored"
        lines.append(
            f"{row.workload:<38} {row.method:<22} {row.point:>3} {times:>15} {row.time_error_pct:>6.1f}% "
            f"{energies:>15} {row.energy_error_pct:>6.1f}%{note}"
        )
    lines += [
        "",
        f"{'workload':<38} {'method':<22} {'least time':>10} {'energy there':>13} {'energy at equal time':>21}",
    ]
    for curve in score.curves:
        cells = (curve.least_time_pct, curve.energy_there_pct, curve.energy_at_equal_time_mape_pct)
        least, there, along = ("-" if cell is None else f"{cell:.1f}%" for cell in cells)
        lines.append(f"{curve.workload:<38} {curve.method:<22} {least:>10} {there:>13} {along:>21}")
    lines += ["", *_means(score)]
    if trivial:
        lines += [
            f"for comparison, constant FLOP/s: {trivial.constant_throughput_time_mape_pct:.1f} % of least time",
            f"for comparison, constant power: {trivial.constant_power_energy_mape_pct:.1f} % of energy at least time",
        ]
    return lines


def _means(score: FrontierScore) -> list[str]:
    named = {
        "time at the listed clocks": score.time_mape_pct,
        "energy at the listed clocks": score.energy_mape_pct,
        "least time, planned by us": score.least_time_mape_pct,
        "energy at least time, planned by us": score.energy_there_mape_pct,
        "energy at equal time, planned by us": score.energy_at_equal_time_mape_pct,
        "energy of kareus at the given times": score.kareus_energy_mape_pct,
    }
    return [f"mean absolute error, {what}: {value:.2f} %" for what, value in named.items() if value is not None]


def _reduction_lines(score: ReductionScore) -> list[str]:
    lines = [f"{'table':<33} {'workload':<38} {'metric':<31} {'method':<21} {'given':>6} {'ours':>6} {'error':>6}"]
    for row in score.rows:
        note = "" if row.reached else "  no such point, counts as 0"
        lines.append(
            f"{row.table:<33} {row.workload:<38} {row.metric:<31} {row.method:<21} {row.given_pct:>6.1f} "
            f"{row.predicted_pct:>6.1f} {row.predicted_pct - row.given_pct:>6.1f}{note}"
        )
    lines += ["", f"mean absolute error: {score.reduction_mae_points:.2f} points over {len(score.rows)} values"]
    lines += [f"wrong order: {order}" for order in score.wrong_orders]
    return lines


def _sequential_lines(score: SequentialScore) -> list[str]:
    lines = [f"{'sequential, with the update':<38} {'given s':>8} {'ours s':>8} {'error':>7}"]
    lines += [
        f"{row.workload:<38} {row.given_time_s:>8.3f} {row.predicted_time_s:>8.3f} {row.error_pct:>6.1f}%"
        for row in score.sequential_times
    ]
    return [*lines, "", f"mean absolute error of sequential time: {score.sequential_time_mape_pct:.2f} %"]
