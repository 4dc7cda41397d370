"""Reference data: what real GPUs did, or what was planned from profiles of real GPUs, as CSV files in two formats.

A *frontier* file has one row for each planned iteration: its time, its energy, and the clock of every instruction. A
*reduction* file has one row for each workload and metric of a published table: what each method saved, in percent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kareus.errors import ArtifactError
from kareus.gpu_model.gpu import MOST_MHZ
from kareus.graph.records import Direction
from kareus.model.config import MOST_TOKENS
from kareus.model.parallelism import MOST_GPUS
from kareus.pipeline import methods as pipeline
from kareus.pipeline.solver.problem import MOST_J, MOST_S
from kareus.prediction.lines import MOST_DIGITS, Line, read_lines
from kareus.workload.config import MOST_PASSES

LEAST = 1e-9
"""Seconds or joules of an iteration."""
MOST_STAGES = 10_000

DIRECTIONS = {"F": Direction.FORWARD, "B": Direction.BACKWARD}
METHODS = ("sequential+perseus", "nanobatching+perseus", "kareus")
"""Methods that a reduction file has columns for."""
PLANNED_METHODS = tuple(method.name for method in pipeline.METHODS)
"""Methods that a frontier file may have rows of."""
ABLATIONS = {
    "ablation_without_frequency": "kareus-without-frequency",
    "ablation_without_kernel_schedule": "kareus-without-kernel-schedule",
    "ablation_nanobatching": "nanobatching",
}
"""Method that each ablation table is about; its column `kareus` says by how much that method exceeds kareus."""
METRICS = (
    "time_reduction_pct",
    "energy_reduction_pct",
    "iso_time_energy_reduction_pct",
    "iso_energy_time_reduction_pct",
    "time_increase_pct",
    "energy_increase_pct",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The workload of a row; what it does not say is as in the default workload."""

    model: str
    """Option of the configuration group `model`."""
    cp: int
    tp: int
    pp: int
    num_microbatches: int
    microbatch_size: int
    seq_len: int

    @property
    def overrides(self) -> list[str]:
        """What makes this workload of the default one."""
        return [
            f"model={self.model}",
            *(f"parallelism.{name}={getattr(self, name)}" for name in ("cp", "tp", "pp")),
            "parallelism.dp=1",
            "parallelism.layers_per_stage=null",
            f"num_microbatches={self.num_microbatches}",
            f"microbatch_size={self.microbatch_size}",
            f"sequence_length={self.seq_len}",
        ]

    @property
    def label(self) -> str:
        """Readable name for a table."""
        ranks = f"CP{self.cp}TP{self.tp}" if self.cp > 1 else f"TP{self.tp}"
        return f"{self.model} PP{self.pp} {ranks} {self.num_microbatches}x{self.microbatch_size}x{self.seq_len}"


Clocks = tuple[tuple[tuple[Direction, int], ...], ...]
"""By stage: direction and clock in MHz of every instruction, in order of execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierRow:
    """One planned iteration."""

    scenario: Scenario
    method: str
    point: int
    time_s: float
    energy_j: float
    """Total energy of one GPU of each stage, summed over the stages."""
    clocks: Clocks | None
    """None where the schedule of the instructions is not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionRow:
    """One row of a published table."""

    scenario: Scenario
    table: str
    metric: str
    given_percent: dict[str, float]
    """By method; methods without a value are left out."""


Curve = tuple[Scenario, str]
"""Workload and method."""


def by_curve(rows: Sequence[FrontierRow]) -> dict[Curve, list[FrontierRow]]:
    """Rows of each curve, in their order."""
    curves: dict[Curve, list[FrontierRow]] = {}
    for row in rows:
        curves.setdefault((row.scenario, row.method), []).append(row)
    return curves


def fastest_rows(rows: Sequence[FrontierRow]) -> list[FrontierRow]:
    """The fastest row of each curve."""
    return [min(curve, key=lambda row: row.time_s) for curve in by_curve(rows).values()]


def read_reference(path: Path) -> list[FrontierRow] | list[ReductionRow]:
    """Read a file of either format, told apart by its header.

    Raises:
        ArtifactError: missing, of neither format, or a value that cannot be used; names line and column.
    """
    header, lines = read_lines(path)
    return rows_of(header, lines, path)


def rows_of(header: Sequence[str], lines: Sequence[Line], path: Path) -> list[FrontierRow] | list[ReductionRow]:
    """Return the rows of a file of either format; errors as of `read_reference`."""
    if "iteration_time_s" in header:
        frontiers = [_frontier_row(line) for line in lines]
        return _filled(frontiers, path)
    if "metric" in header:
        reductions = [_reduction_row(line) for line in lines]
        return _filled([row for row in reductions if row.given_percent], path)
    raise ArtifactError(
        f"{path}: has neither a column iteration_time_s (planned frontiers) nor a column metric (reductions), nor "
        "those of measured kernels (time_s with m, n, k, or batch, seq_len, ..., or num_gpus, message_bytes); its "
        f"columns are: {', '.join(header) or 'none'}."
    )


Row = TypeVar("Row", FrontierRow, ReductionRow)


def _filled(rows: list[Row], path: Path) -> list[Row]:
    if not rows:
        raise ArtifactError(f"{path}: has a header and no rows; give a file with data.")
    return rows


def scenario_of(line: Line) -> Scenario:
    """Return the workload of a line."""
    counts = {
        name: line.positive(name, int, 1, most)
        for name, most in (
            ("cp", MOST_GPUS),
            ("tp", MOST_GPUS),
            ("pp", MOST_STAGES),
            ("num_microbatches", MOST_PASSES),
            ("microbatch_size", MOST_TOKENS),
            ("seq_len", MOST_TOKENS),
        )
    }
    return Scenario(model=line.text("model"), **counts)


def _frontier_row(line: Line) -> FrontierRow:
    scenario = scenario_of(line)
    return FrontierRow(
        scenario=scenario,
        method=_method(line),
        point=line.count("point"),
        time_s=line.positive("iteration_time_s", float, LEAST, MOST_S),
        energy_j=line.positive("total_energy_j", float, LEAST, MOST_J),
        clocks=_clocks(line, scenario.pp),
    )


def _method(line: Line) -> str:
    method = line.text("method")
    if method not in PLANNED_METHODS:
        raise ArtifactError(
            f"{line.path}: line {line.number}: method={method!r} is not known; allowed: {', '.join(PLANNED_METHODS)}."
        )
    return method


def _clocks(line: Line, stages: int) -> Clocks | None:
    cells = [(line.cells.get(f"stage{stage}_mhz") or "").strip() for stage in range(stages)]
    if not any(cells):
        return None
    if not all(cells):
        raise ArtifactError(
            f"{line.path}: line {line.number}: stage{cells.index('')}_mhz: missing; list the clocks of all {stages} "
            "stages or of none."
        )
    return tuple(_stage_clocks(cell, line, stage) for stage, cell in enumerate(cells))


def _stage_clocks(cell: str, line: Line, stage: int) -> tuple[tuple[Direction, int], ...]:
    """Parse `F1410;B1380;...`."""
    words = [word.strip() for word in cell.split(";")]
    for word in words:
        if word[:1] not in DIRECTIONS or not word[1:].isdecimal() or not 0 < int(word[1:][:MOST_DIGITS]) <= MOST_MHZ:
            raise ArtifactError(
                f"{line.path}: line {line.number}: stage{stage}_mhz: {word!r} is no instruction; write F or B and its "
                "clock in MHz, such as F1410."
            )
    return tuple((DIRECTIONS[word[0]], int(word[1:])) for word in words)


def _reduction_row(line: Line) -> ReductionRow:
    metric = line.text("metric")
    if metric not in METRICS:
        raise ArtifactError(
            f"{line.path}: line {line.number}: metric={metric!r} is not known; allowed: {', '.join(METRICS)}."
        )
    table = line.text("table")
    if (table in ABLATIONS) != metric.endswith("increase_pct"):
        raise ArtifactError(
            f"{line.path}: line {line.number}: table={table!r} with metric={metric!r}: increases belong to the tables "
            f"{', '.join(ABLATIONS)}, and these have no other metric."
        )
    given = {method: line.percent(method) for method in METHODS if line.text(method)}
    if table in ABLATIONS and not set(given) <= {"kareus"}:
        raise ArtifactError(f"{line.path}: line {line.number}: {table}: only the column kareus may have a value.")
    return ReductionRow(scenario=scenario_of(line), table=table, metric=metric, given_percent=given)
