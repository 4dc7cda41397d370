"""Command `validate`: predict what a reference file gives, and print how far off that is."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kareus.artifacts.records import to_plain
from kareus.errors import printable
from kareus.fidelity.iterations import answer as iterations
from kareus.fidelity.iterations import power
from kareus.fidelity.iterations.rows import has_iterations, read_usable_iterations
from kareus.fidelity.kernels.answer import answer_kernels, lines_of, plain_answer
from kareus.fidelity.kernels.rows import kind_of, read_usable_kernels
from kareus.fidelity.kernels.shipped import shipped_files
from kareus.fidelity.lines import Line, read_lines
from kareus.fidelity.reference import FrontierRow, ReductionRow, rows_of
from kareus.fidelity.score import FrontierScore, ReductionScore, score_frontiers, score_reductions
from kareus.fidelity.subject import Subjects, subjects_of
from kareus.fidelity.trivial import TrivialErrors, trivial_errors
from kareus.gpu_model.trust import trust
from kareus.workload.arguments import add_overrides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the reference and the configuration."""
    add_overrides(parser, "Hydra overrides, such as gpu=h200 (default: the A100)")
    parser.add_argument(
        "--reference",
        type=Path,
        help="planned frontiers, reductions, kernels or iterations (CSV, or .csv.gz; default: all that ship with it)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(arguments: argparse.Namespace) -> None:
    """Read, predict, print."""
    if arguments.reference is None:
        _validate_shipped(arguments)
        return
    header, lines = read_lines(arguments.reference)
    found = _measured(header, lines, arguments.reference, arguments)
    if found is None:
        _validate_tables(header, lines, arguments)
        return
    plain, shown = found
    title = f"simulated GPUs against {arguments.reference}"
    _print({"testbed": "simulated", **plain()}, [title, "", *shown], arguments)


def _validate_shipped(arguments: argparse.Namespace) -> None:
    """Compare with all measurements that ship with the package."""
    answers: dict[str, Any] = {}
    shown: list[str] = []
    for name, path in shipped_files().items():
        header, lines = read_lines(path)
        found = _measured(header, lines, path, arguments)
        if found is not None:
            answers[name] = found[0]() if arguments.json else None
            shown += [f"simulated GPUs against {name}", "", *found[1], ""]
    _print({"testbed": "simulated", "references": answers}, shown, arguments)


def _measured(
    header: Sequence[str], lines: Sequence[Line], path: Path, arguments: argparse.Namespace
) -> tuple[Callable[[], dict[str, Any]], list[str]] | None:
    """Compare with measured kernels, iterations or power; None if the columns are those of none.

    Returns:
        What makes the answer as plain data, and the answer for people.
    """
    overrides, config_dir = arguments.overrides, arguments.config_dir
    if has_iterations(header):
        runs, unusable = read_usable_iterations(lines, path)
        ran = iterations.answer_iterations(runs, overrides, config_dir, unusable)
        return partial(iterations.plain_answer, ran), iterations.lines_of(ran)
    if power.has_power(header):
        drew = power.answer_power(lines, overrides, config_dir)
        return partial(power.plain_answer, drew), power.lines_of(drew)
    kind = kind_of(header)
    if kind is None:
        return None
    kernels, unusable = read_usable_kernels(kind, lines, path)
    answer = answer_kernels(kernels, overrides, config_dir, unusable)
    return partial(plain_answer, answer), lines_of(answer)


def _print(answer: Mapping[str, Any], lines: Sequence[str], arguments: argparse.Namespace) -> None:
    text = json.dumps(answer, allow_nan=False) if arguments.json else "\n".join(printable(line) for line in lines)
    print(text)  # noqa: T201 - the answer of the command


def _validate_tables(header: Sequence[str], lines: Sequence[Line], arguments: argparse.Namespace) -> None:
    rows = rows_of(header, lines, arguments.reference)
    subjects = subjects_of(rows, tuple(arguments.overrides), arguments.config_dir)
    gpu = next(iter(subjects.values())).workload.gpu
    frontiers = [row for row in rows if isinstance(row, FrontierRow)]
    reductions = [row for row in rows if isinstance(row, ReductionRow)]
    if frontiers:
        answer, shown = _frontiers(frontiers, subjects)
    else:
        answer, shown = _reductions(reductions, subjects)
    title = f"simulated {gpu.name} against {arguments.reference}"
    plain = {"testbed": "simulated", "gpu": gpu.name, "trust": trust(gpu), **answer}
    _print(plain, [title, trust(gpu), "", *shown], arguments)


def _frontiers(rows: Sequence[FrontierRow], subjects: Subjects) -> tuple[dict[str, Any], list[str]]:
    score, trivial = score_frontiers(rows, subjects), trivial_errors(rows, subjects)
    return to_plain(score) | {"trivial": to_plain(trivial)}, _frontier_lines(score, trivial)


def _reductions(rows: Sequence[ReductionRow], subjects: Subjects) -> tuple[dict[str, Any], list[str]]:
    score = score_reductions(rows, subjects)
    return to_plain(score), _reduction_lines(score)


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
