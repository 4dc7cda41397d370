"""Errors of predicted iterations, by GPU and software, where the row's model had been left out of the fit.

An error belongs to the numbers that it was measured with: those of the GPU and of the software. With others it is not
known. `kareus fit --software ... --errors ...` measures the errors of a software again and writes the table that ships.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kareus.arrays import Array
from kareus.artifacts.records import content_hash, leaves, to_plain
from kareus.errors import ConfigError
from kareus.gpu_model.trust import known_uncertainty, time_numbers_of, time_values, trust
from kareus.graph.number_formats import Precision
from kareus.interchange.table import table_of
from kareus.interchange.writing import settings_apart
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.training_options import PLAIN
from kareus.prediction.lines import read_lines, table_text
from kareus.software.record import MeasuredRuns, Reduction, Software, TensorOverlap, of_times
from kareus.software.trainers import ObeyingTrainer, software_words, trainer_of
from kareus.workload.compose import KEYS_OF_SOFTWARE, compose
from kareus.workload.config import Workload

TABLE = Path(__file__).parent / "data/iteration_errors.csv"
SHARE = 0.9
"""Share of iterations that an interval holds."""
DENSE, EXPERTS = "dense", "experts"
"""Models whose errors stand apart."""
MOST_NAMED = 4
"""Settings that a sentence names."""
LEAST_ROWS = 10
"""Rows from which on a pair has a quantile of its own; of fewer the largest error counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairError:
    """Errors of time of a software on a GPU, each row predicted by a fit that had not seen its model."""

    gpu: str
    software: str
    models: str
    """What they are of: `dense` models, or those with `experts`."""
    precision: str
    """Number format of their products."""
    percent_90: float
    """Error that 90 % of the rows do not exceed; of fewer than ten rows the largest."""
    mean_percent: float
    """Mean absolute error."""
    median_percent: float
    """Median of predicted less measured time."""
    coverage_percent: float
    """Share of the rows that are within the 90 % of the rows of all other models."""
    rows: int
    groups: int
    """Models; of a software that was measured with one, widths of it. 0 where each row was left out by itself."""
    block_exchange_rows: int
    """Those whose replicas exchanged weights or gradients beside every block (`sharding` of gradients, or full)."""
    made_for: str
    """Name of the numbers that the errors are of (`numbers_for`)."""

    def covers(self, workload: Workload) -> bool:
        """Return whether enough rows, or all, had replicas that exchange beside blocks, or after them, as a workload's.

        Of what a single replica does all rows tell.
        """
        blockwise = workload.parallelism.shards_gradients
        like_it = self.block_exchange_rows if blockwise else self.rows - self.block_exchange_rows
        return workload.parallelism.dp == 1 or like_it >= min(self.rows, LEAST_ROWS)


def numbers_for(workload: Workload) -> str:
    """Return the name of the numbers of a GPU and a software that times depend on, of whatever model and job.

    Numbers of experts count where the workload's model has some.
    """
    coefficients = replace(workload.gpu.coefficients, host_rank_s=workload.software.host_rank_s)  # of pipelines or not
    gpu = replace(workload.gpu, job_gpus=1, coefficients=coefficients)
    software = of_times(workload.software, experts=workload.model.experts is not None)
    return content_hash((time_numbers_of(gpu), replace(software, measured=None)))


def idle_settings(workload: Workload) -> dict[str, tuple[Any, ...]]:
    """Return the settings of a software, with all their values, that change no time of a workload.

    They say when GPUs exchange what these do not exchange, or when replicas exchange what they do beside each block.
    """
    layout, idle = workload.parallelism, dict[str, tuple[Any, ...]]()
    of_experts = 1 if workload.model.experts is None else layout.expert_replicas
    if layout.dp * layout.cp == of_experts == 1 or (layout.shards_gradients and layout.copies == 1):
        idle["reduction"] = tuple(Reduction)
    if not layout.shards_states or layout.shards_weights:
        idle["gather_beside_forward"] = (False, True)
    # with `nothing`, collectives of context parallelism wait, too
    overlaps = tuple(TensorOverlap) if layout.cp == 1 else (TensorOverlap.NONE, TensorOverlap.USERBUFFERS)
    if layout.tp == layout.etp == 1 and workload.software.tensor_overlap in overlaps:
        idle["tensor_overlap"] = overlaps
    if layout.cp == 1:
        idle["context_overlap"] = (False, True)
    return idle


def same_numbers(workload: Workload) -> Iterator[str]:
    """Yield `numbers_for` a workload, and then with other values of its idle settings: its times are the same."""
    software, idle = workload.software, idle_settings(workload)
    yield numbers_for(workload)
    for values in itertools.product(*idle.values()):
        other = replace(software, **dict(zip(idle, values, strict=True)))
        if other != software:
            yield numbers_for(replace(workload, software=other))


def models_of(workload: Workload) -> str:
    """Return what errors of a workload's time are of: dense models, or those with experts."""
    return DENSE if workload.model.experts is None else EXPERTS


def pair_error(
    workload: Workload, logarithms: Array, groups: Sequence[str], layouts: Sequence[Parallelism]
) -> PairError:
    """Return the errors of a pair.

    Args:
        workload: any of its GPU, software and precision, with experts or without.
        logarithms: of predicted over measured times, each left out, shape (rows,).
        groups: what was left out together, by row.
        layouts: of the models over GPUs, by row.
    """
    of_group = np.array(groups)
    sizes = np.abs(logarithms)
    inside = [
        sizes[of_group == group] <= _quantile(sizes[of_group != group])
        for group in dict.fromkeys(groups)
        if (of_group != group).any()
    ]
    covered = float(np.concatenate(inside).mean()) if inside else math.nan
    return PairError(
        gpu=workload.gpu.name,
        software=workload.software.name,
        models=models_of(workload),
        precision=str(workload.precision),
        **percentages(logarithms),
        coverage_percent=round(100 * covered, 1) if inside else 0.0,
        rows=len(logarithms),
        groups=len(set(groups)),
        block_exchange_rows=sum(layout.shards_gradients for layout in layouts),
        made_for=numbers_for(workload),
    )


def percentages(logarithms: Array) -> dict[str, float]:
    """Return the error that 90 % do not exceed, the mean absolute one, and the median, by name, in percent."""
    return {
        "percent_90": round(100 * math.expm1(_quantile(np.abs(logarithms))), 1),
        "mean_percent": round(100 * float(np.abs(np.expm1(logarithms)).mean()), 1),
        "median_percent": round(100 * float(np.median(np.expm1(logarithms))), 1),
    }


def _quantile(sizes: Array) -> float:
    """Return the size that 90 % do not exceed, of which the next row is within with that chance; else the largest."""
    place = math.ceil(SHARE * (len(sizes) + 1))
    return float(np.sort(sizes)[min(place, len(sizes)) - 1])


@cache
def pair_errors(path: Path = TABLE) -> tuple[PairError, ...]:
    """Return the errors of all pairs that were measured; errors as of `read_lines`."""
    _, lines = read_lines(path)
    return tuple(
        PairError(
            gpu=line.text("gpu"),
            software=line.text("software"),
            models=line.text("models"),
            precision=line.text("precision"),
            percent_90=line.percent("percent_90"),
            mean_percent=line.percent("mean_percent"),
            median_percent=line.percent("median_percent"),
            coverage_percent=line.percent("coverage_percent"),
            rows=line.count("rows"),
            groups=line.count("groups"),
            block_exchange_rows=line.count("block_exchange_rows"),
            made_for=line.text("made_for"),
        )
        for line in lines
    )


def with_errors(pairs: Iterable[PairError], others: Iterable[PairError]) -> str:
    """Return the text of the table with the errors of pairs in place of those that it had of the same ones."""
    measured = {(pair.gpu, pair.software, pair.models, pair.precision): pair for pair in (*others, *pairs)}
    return table_text(PairError, [measured[key] for key in sorted(measured)])


def error_of(workload: Workload) -> PairError | None:
    """Return the errors of a workload's pair, where that was measured with layouts whose replicas exchange as its own.

    Errors of a user's own runs are of whatever layouts these had.
    """
    pair, runs = pair_of(workload), workload.software.measured
    if pair is None or (runs is not None and runs.made_for == pair.made_for):
        return pair
    return pair if pair.covers(workload) else None


def pair_of(workload: Workload) -> PairError | None:
    """Return the errors of a workload's pair, of models as its own in its precision; None where none were measured.

    Errors of a user's own runs are of dense models in bf16.
    """
    if workload.training.unmeasured:
        return None
    kind = models_of(workload), str(workload.precision)
    runs = workload.software.measured if kind == (DENSE, Precision.BF16) else None
    measured = {pair.made_for: pair for pair in pair_errors() if (pair.models, pair.precision) == kind}
    if runs is not None:
        measured[runs.made_for] = _of_runs(workload.software.name, runs)
    return next((measured[name] for name in same_numbers(workload) if name in measured), None)


def _of_runs(software: str, runs: MeasuredRuns) -> PairError:
    """Return the errors of a user's own runs as those of a pair."""
    return PairError(
        gpu=runs.gpu,
        software=software,
        models=DENSE,
        precision=str(Precision.BF16),
        percent_90=runs.percent_90,
        mean_percent=runs.mean_percent,
        median_percent=runs.median_percent,
        coverage_percent=0.0,
        rows=runs.runs,
        groups=0,
        block_exchange_rows=0,
        made_for=runs.made_for,
    )


def spread_percent(models: str = DENSE) -> tuple[float, float]:
    """Return the least and the largest of the errors that 90 % do not exceed, over the pairs that were measured.

    Those are of such models in bf16, with ten rows or more.
    """
    pairs = [pair for pair in pair_errors() if (pair.models, pair.precision) == (models, Precision.BF16)]
    measured = [pair.percent_90 for pair in pairs if pair.rows >= LEAST_ROWS]
    return min(measured), max(measured)


def time_percent(workload: Workload) -> float:
    """Return the error of time that 90 % of predictions do not exceed; where it was not measured, the largest known."""
    planned, pair = known_uncertainty(workload.gpu), error_of(workload)
    if planned is not None and not workload.training.unmeasured:
        return planned.time_percent
    return spread_percent(models_of(workload))[1] if pair is None else pair.percent_90


def error_words(workload: Workload) -> str:
    """Return in one sentence how far predictions of a workload's time and energy are off: the number, then of what."""
    if known_uncertainty(workload.gpu) is not None and not workload.training.unmeasured:
        return trust(workload.gpu)
    if (pair := error_of(workload)) is not None:
        return f"{_within(pair)}; energy was never measured"
    energy = "" if known_uncertainty(workload.gpu) is not None else "; energy was never measured"
    return f"take {time_percent(workload):g} % of time ({_never_measured(workload)}){energy}"


def _never_measured(workload: Workload) -> str:
    """Return what of a workload was never measured, and the error of what is nearest to it and was."""
    models, precision, settings = models_of(workload), str(workload.precision), _unusual(workload)
    usual = "with the usual settings " if settings else ""
    if known_uncertainty(workload.gpu) is not None:
        return f"never measured {settings}; {usual}{trust(workload.gpu)}"
    shipped = _nearest_pair(workload)
    if shipped is not None and (shipped.models, shipped.precision) == (models, precision):
        return f"never measured {settings or 'with your settings'}; {usual}{_share(shipped)}"
    of = f"{software_words(workload.software.name)} in {precision}{_with(models)} on this GPU"
    never = f"never measured: {of}" + f", {settings}" * bool(settings)
    if shipped is not None:
        return f"{never}; {usual}in {shipped.precision}{_with(shipped.models)} {_share(shipped)}"
    least, most = spread_percent(models)
    spread = f"{least:g} to {most:g} %" if least < most else f"{most:g} %"
    return f"{never}; elsewhere 9 of 10 measured iterations{_with(models)} are within {spread}"


def _nearest_pair(workload: Workload) -> PairError | None:
    """Return the errors of a workload's software on its GPU with whatever settings, of models most like its own."""
    models, precision = models_of(workload), str(workload.precision)
    pairs = [row for row in pair_errors() if (row.gpu, row.software) == (workload.gpu.name, workload.software.name)]
    kinds = ((models, precision), (models, str(Precision.BF16)), (DENSE, str(Precision.BF16)))
    return next((row for kind in kinds for row in pairs if (row.models, row.precision) == kind), None)


def plan_error_words(workload: Workload, runner: ObeyingTrainer) -> str:
    """Return `error_words` of a plan: what was measured in a trainer says nothing of what another one runs."""
    words, is_usual = error_words(workload), runner == trainer_of(workload.software.name)
    if is_usual or error_of(workload) is None or known_uncertainty(workload.gpu) is not None:
        return words
    most = spread_percent(models_of(workload))[1]
    return f"{words}; plans in {runner.title} were never measured on this GPU: take {most:g} % for them"


def _unusual(workload: Workload) -> str:
    """Return which settings are others than those that errors were measured with, as the trainer says them."""
    table = table_of(workload.software.name)
    added, missing = list[str](), list[str]()
    for key, (value, usual) in _apart(workload).items():
        ours, others = ([], []) if table is None else settings_apart(table, key, value, usual)
        added += ours if ours or others else [f"{key}={value}" + f" (usual: {usual})" * (usual is not None)]
        missing += others
    words = {"with": added, "without": missing}
    return ", ".join(f"{word} {_first(dict.fromkeys(named))}" for word, named in words.items() if named)


def _first(named: Collection[str]) -> str:
    more = f" and {len(named) - MOST_NAMED} more" * (len(named) > MOST_NAMED)
    return ", ".join(list(named)[:MOST_NAMED]) + more


def _apart(workload: Workload) -> dict[str, tuple[Any, Any]]:
    """Return the values of settings that are not the usual ones, and those, by the key that sets them."""
    training, plain = to_plain(workload.training), to_plain(PLAIN)
    names = workload.training.unmeasured
    apart = {f"training.{name}": (training.get(name), plain.get(name)) for name in names}
    nearest = _nearest_pair(workload)
    if nearest is not None and not nearest.covers(workload):
        usual_sharding = Sharding.OPTIMIZER if workload.parallelism.shards_gradients else Sharding.FULL
        apart["parallelism.sharding"] = str(workload.parallelism.sharding), str(usual_sharding)
    overrides = [f"gpu={workload.gpu.name.lower()}", f"software={workload.software.name}"]
    try:
        (usual,) = compose(overrides, None)
    except ConfigError:  # of a configuration of one's own, with other names
        return apart
    left_out = {f"software.{f.name}": f.default for f in fields(Software)}
    values, others = ({**left_out, **_settings(side, models_of(workload))} for side in (workload, usual.workload))
    idle = {f"software.{name}" for name in idle_settings(workload)}
    differ = sorted(key for key in {*values, *others} - idle if values.get(key) != others.get(key))
    return apart | {key: (values.get(key), others.get(key)) for key in differ}


def _settings(workload: Workload, models: str) -> dict[str, Any]:
    """Return the values of a GPU and a software that times of such models depend on, by the key that sets them."""
    software = of_times(workload.software, experts=models == EXPERTS)
    values = dict(leaves(to_plain({"gpu": time_values(workload.gpu), "software": replace(software, measured=None)})))
    return {key: value for key, value in values.items() if key not in KEYS_OF_SOFTWARE}


def _with(models: str) -> str:
    return "" if models == DENSE else f" with {models}"


def _share(pair: PairError) -> str:
    """Return the error of a pair in words; of few rows it is the largest."""
    return f"{'9 of 10' if pair.rows >= LEAST_ROWS else 'all'} measured iterations are within {pair.percent_90:g} %"


def _within(pair: PairError) -> str:
    """Return the error of a pair and what it is of."""
    is_usual = (pair.models, pair.precision) == (DENSE, Precision.BF16)
    of = software_words(pair.software) + ("" if is_usual else f" in {pair.precision}{_with(pair.models)}")
    unseen = "their models" if pair.groups else "each"
    return f"{_share(pair)} of time ({pair.rows} of {of} on this GPU, {unseen} left out of the fit)"
