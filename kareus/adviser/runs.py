"""Runs of layouts: the file that has them, and what they are predicted to take for other numbers of the trainer.

A file of runs is CSV with a row for each layout. A row without a time is a layout that has not run yet.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path

import numpy as np

from kareus.adviser.feasible import Candidate, sort_layouts
from kareus.adviser.layouts import Layout
from kareus.adviser.predictions import LayoutPredictor
from kareus.adviser.prices import InstructionPrices, KnownGraphs
from kareus.arrays import Array
from kareus.artifacts.records import suggest
from kareus.errors import ArtifactError
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import MOST_GPUS, Sharding
from kareus.pipeline.config import PipelineSchedule
from kareus.prediction.lines import Line, LineValueError, check_filled, read_lines
from kareus.prediction.rows import LEAST_S, MOST_S
from kareus.software.record import driven, with_numbers
from kareus.workload.config import Workload

TIME = "iteration_time_s"
PREDICTED = "predicted_s"
"""Column of predicted times, beside which those that are measured are written."""
DEGREES = ("dp", "pp", "tp", "microbatch_size", "num_microbatches")
"""Columns that every file of runs has; others have usual values."""
USUAL: Mapping[str, str] = {
    "cp": "1",
    "ep": "1",
    "schedule": PipelineSchedule.ONE_FORWARD_ONE_BACKWARD,
    "chunks": "1",
    "recomputation": Recomputation.NONE,
    "sharding": Sharding.NONE,
    "sequence_parallel": "",  # with tensor parallelism
    "shards": "",  # all replicas
    "layers_per_stage": "",  # as usual
    PREDICTED: "",
    TIME: "",
}
OF_UPDATE = frozenset({"hidden_reduction", "hidden_gather", "block_messages"})
"""Numbers of a trainer that passes through the model do not depend on."""
MOST_MEMORY_GIB = 1e6
KEPT_PRICES = 32
"""Sets of numbers whose prices of passes are kept: those of one fit and its slopes."""


class RunFailure(StrEnum):
    """What stands for the time of a run that has none, in letters of any case."""

    FAILED = "failed"
    OUT_OF_MEMORY = "oom"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRun:
    """One layout as the user's trainer ran it, or has yet to."""

    layout: Layout
    time_s: float | None = None
    """Of an iteration; None where it did not run, or failed."""
    failure: RunFailure | None = None
    predicted_s: float | None = None
    """What it was predicted to take when it was listed to be measured; None where it was not."""


def read_runs(path: Path) -> list[LayoutRun]:
    """Return the runs of a file.

    Raises:
        ArtifactError: a column is missing or not known, there are no rows, or a value cannot be used; with its line.
    """
    header, lines = read_lines(path)
    check_filled(lines, path)
    for column in map(str.strip, header):
        if column not in (*DEGREES, *USUAL):  # one that is misspelt would count as not there
            raise ArtifactError(f"{path}: column {column!r}: not known; {suggest(column, (*DEGREES, *USUAL))}.")
    return [_run(line) for line in lines]


def _run(line: Line) -> LayoutRun:
    cells = {**USUAL, **{name.strip(): text.strip() for name, text in line.cells.items() if text and text.strip()}}
    cells["sequence_parallel"] = cells["sequence_parallel"] or str(cells.get("tp") != "1").lower()
    line = replace(line, cells=cells)
    numbers = {name: line.positive(name, int, 1, MOST_GPUS) for name in (*DEGREES, "cp", "ep", "chunks")}
    layout = Layout(
        **numbers,
        schedule=PipelineSchedule(line.choice("schedule", [str(value) for value in PipelineSchedule])),
        recomputation=Recomputation(line.choice("recomputation", [str(value) for value in Recomputation])),
        sharding=Sharding(line.choice("sharding", [str(value) for value in Sharding])),
        sequence_parallel=line.switch("sequence_parallel"),
        shards=line.positive("shards", int, 2, MOST_GPUS) if cells["shards"] else None,
        layers_per_stage=_blocks(line),
    )
    time = line.text(TIME)
    predicted_s = line.positive(PREDICTED, float, LEAST_S, MOST_S) if line.text(PREDICTED) else None
    if not time:
        return LayoutRun(layout=layout, predicted_s=predicted_s)
    if time.lower() in set(RunFailure):
        return LayoutRun(layout=layout, failure=RunFailure(time.lower()), predicted_s=predicted_s)
    try:
        time_s = line.positive(TIME, float, LEAST_S, MOST_S)
    except LineValueError as error:
        words = (
            f"{RunFailure.OUT_OF_MEMORY} where the run was out of memory, {RunFailure.FAILED} where it failed otherwise"
        )
        raise LineValueError(f"{str(error).rstrip('.')}; or write {words}.") from None
    return LayoutRun(layout=layout, time_s=time_s, predicted_s=predicted_s)


def _blocks(line: Line) -> tuple[int, ...] | None:
    """Return the blocks on each stage that a line has, such as `8-8-7`; None where it has none."""
    text = line.text("layers_per_stage")
    if not text:
        return None
    if not re.fullmatch(r"\d{1,5}(-\d{1,5})*", text):
        raise ArtifactError(
            f"{line.path}: line {line.number}: layers_per_stage={text!r}: must be blocks of each stage, such as 8-8-7."
        )
    return tuple(map(int, text.split("-")))


def runs_text(runs: Sequence[LayoutRun]) -> str:
    """Return the text of a file of runs."""
    text = io.StringIO()
    unused = {"ep"} if all(run.layout.ep == 1 for run in runs) else set()
    unused |= set() if any(run.layout.layers_per_stage for run in runs) else {"layers_per_stage"}
    names = [field.name for field in fields(Layout) if field.name not in unused]
    predicted = [PREDICTED] if any(run.predicted_s for run in runs) else []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, *predicted, TIME])
    for run in runs:
        values = [*(getattr(run.layout, name) for name in names), *(run.predicted_s for _ in predicted)]
        writer.writerow([*map(_cell, values), run.failure or _cell(run.time_s)])
    return text.getvalue()


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def runnable(base: Workload, layouts: Sequence[Layout], path: Path) -> list[Candidate]:
    """Return the layouts of runs with their workloads, whatever memory they are estimated to need.

    Raises:
        ArtifactError: one cannot be predicted; with the reason.
    """
    sorted_layouts = sort_layouts(roomy(base), layouts)
    if sorted_layouts.refusals:
        first = sorted_layouts.refusals[0]
        raise ArtifactError(f"{path}: {first.layout.words}: {first.message}")
    return sorted_layouts.candidates


def roomy(base: Workload) -> Workload:
    """Return a workload on GPUs with so much memory that no layout is refused for it: what has run has fitted."""
    return replace(base, gpu=replace(base.gpu, memory_gib=MOST_MEMORY_GIB))


class LayoutTimes:
    """Predicted times of layouts of one training, run as their software does, by numbers of that software.

    Passes are priced anew only where their numbers change, and operator graphs never.
    """

    def __init__(self, base: Workload, workloads: Sequence[Workload]) -> None:
        """Prepare for some layouts of `base`."""
        self._base, self._workloads = base, workloads
        self._graphs: KnownGraphs = {}
        self._prices: dict[tuple[tuple[str, float], ...], InstructionPrices] = {}

    def of(self, values: Mapping[str, float], places: Sequence[int] | None = None) -> Array:
        """Return times of the layouts, or of those at some places, in s, shape (layouts,)."""
        software = with_numbers(self._base.software, values)
        base = replace(self._base, software=software, gpu=driven(self._base.gpu, software, 1))
        predictor = LayoutPredictor(base, self._prices_for(base, values))
        some = self._workloads if places is None else [self._workloads[n] for n in places]
        return np.array([predictor.sequential(_run_by(base, workload))[0].time_s for workload in some])

    def _prices_for(self, base: Workload, values: Mapping[str, float]) -> InstructionPrices:
        key = tuple(sorted((name, value) for name, value in values.items() if name not in OF_UPDATE))
        if key not in self._prices:
            if len(self._prices) >= KEPT_PRICES:
                del self._prices[next(iter(self._prices))]
            self._prices[key] = InstructionPrices(base, self._graphs)
        return self._prices[key]


def _run_by(base: Workload, workload: Workload) -> Workload:
    degrees = workload.parallelism
    return replace(workload, software=base.software, gpu=driven(base.gpu, base.software, degrees.gpus, degrees.pp))
