"""Command `calibrate`: the numbers of one's own GPU, or by a few short runs those of one's own trainer."""

import argparse
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kareus.adviser.feasible import Candidate, sort_layouts
from kareus.adviser.layouts import Constraints, Layout, layouts_of
from kareus.adviser.question import MOST_BATCH, gpu_counts, split_overrides
from kareus.adviser.runs import LayoutRun, LayoutTimes, RunFailure, read_runs, runnable, runs_text
from kareus.artifacts.files import read_text, write_text
from kareus.artifacts.names import check_product
from kareus.artifacts.outputs import OutputKind, check_files
from kareus.calibrate import stage as gpu_stage
from kareus.calibrate.software_fit import PRIORS, trainer_numbers
from kareus.calibrate.software_output import calibrated_document, calibrated_software
from kareus.calibrate.trainer import TrainerCalibration, calibrate_trainer
from kareus.errors import ArtifactError, ConfigError, RefusedWorkloadError, printable
from kareus.software.record import driven, is_software
from kareus.workload.compose import compose
from kareus.workload.config import Workload

logger = logging.getLogger(__name__)

RUNS = Path("trainer-runs.csv")
LENGTH = "sequence_length="
LEAST_ROWS, USUAL_ROWS, MOST_ROWS = 3, 15, 100
MOST_CANDIDATES = 150
"""Layouts that a calibration chooses from; of more, as many are taken that are spread evenly."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what both calibrations take, and what each has."""
    gpu_stage.add_arguments(parser)
    group = parser.add_argument_group("calibrating a trainer")
    group.add_argument("--trainer", action="store_true", help="calibrate the trainer of software=... instead of a GPU")
    text = "CSV file of runs: those with a time are read, others are asked for, and what you type is kept in it"
    group.add_argument("--runs", type=Path, metavar="FILE", help=f"{text} (default: {RUNS})")
    group.add_argument("--rows", type=int, default=USUAL_ROWS, help=f"runs to choose (default: {USUAL_ROWS})")
    group.add_argument("--gpus", help="GPUs of runs to choose from, such as 16,64; none where the file has all runs")
    group.add_argument("--global-batch", type=int, metavar="N", help="sequences of an iteration of these runs")


def run(arguments: argparse.Namespace) -> None:
    """Calibrate the GPU, or the trainer."""
    (_run_trainer if arguments.trainer else gpu_stage.run)(arguments)


def _run_trainer(arguments: argparse.Namespace) -> None:
    """Choose, read or ask, fit, write the software file, and print errors and what to type next."""
    if not LEAST_ROWS <= arguments.rows <= MOST_ROWS:
        raise ConfigError(f"--rows {arguments.rows}: must be from {LEAST_ROWS} to {MOST_ROWS}.")
    if arguments.global_batch is not None and not 1 <= arguments.global_batch <= MOST_BATCH:
        raise ConfigError(f"--global-batch {arguments.global_batch}: must be from 1 to {MOST_BATCH:,} sequences.")
    path = arguments.runs or RUNS
    runs = read_runs(path) if path.exists() or arguments.gpus is None else []
    base, option, candidates = _candidates(arguments, path, runs)
    output = arguments.output or arguments.config_dir / "software" / f"{option}-calibrated.yaml"
    source = arguments.config_dir / "software" / f"{option}.yaml"
    check_product(output.stem, "--output")
    if output.exists() and not arguments.force:
        raise ArtifactError(f"{output}: there is a software file of this name; give another --output, or --force.")
    check_files(arguments, [(output, OutputKind("a profile of software", is_software))], [source])
    logger.info("%d layouts to choose from; what each would tell takes a minute at first", len(candidates))
    times = LayoutTimes(base, [entry.workload for entry in candidates])
    priors = {name: PRIORS[name] for name in trainer_numbers(base.software)}
    asked = AskedRuns(
        path, [entry.layout for entry in candidates], {entry.layout: entry for entry in runs}, arguments.rows
    )
    calibration = calibrate_trainer(priors, times.of, len(candidates), asked.measure, arguments.rows)
    software = calibrated_software(base, output.stem, calibration)
    write_text(output, calibrated_document(read_text(source), software, calibration))
    for line in (*answer_lines(calibration, [candidates[n].layout for n in calibration.chosen]), f"{output}: written"):
        print(printable(line))  # noqa: T201 - the answer of the command
    print(printable(_next_line(output, arguments.config_dir)))  # noqa: T201


def _candidates(
    arguments: argparse.Namespace, path: Path, runs: Sequence[LayoutRun]
) -> tuple[Workload, str, list[Candidate]]:
    """Return what is trained, the option of its software, and the layouts to choose from."""
    if (arguments.gpus is None) != (arguments.global_batch is None):
        raise ConfigError("--gpus and --global-batch: belong together; give both, or only --runs FILE.")
    if arguments.gpus is None:
        base, option = _composed(arguments.overrides, arguments.config_dir)
        return base, option, _thinned(runnable(base, [run.layout for run in runs], path))
    lengths = [text for text in arguments.overrides if text.startswith(LENGTH)]
    constraints, others = split_overrides([text for text in arguments.overrides if text not in lengths])
    base, option = _composed([*others, *lengths], arguments.config_dir)
    done = [run.layout for run in runs if run.time_s is not None or run.failure]
    every = _enumerated(base, gpu_counts(arguments.gpus), arguments.global_batch, constraints)
    enumerated = _thinned([run for run in every if run.layout not in done])
    if not enumerated and not done:
        raise RefusedWorkloadError(f"--gpus {arguments.gpus}: no layout can run; give other numbers of GPUs.")
    return base, option, [*runnable(base, done, path), *enumerated]


def _composed(overrides: Sequence[str], config_dir: Path) -> tuple[Workload, str]:
    composed, *more = compose([*overrides, "iteration.include_update=true"], config_dir)
    if more:
        raise ConfigError(
            f"{1 + len(more)} combinations: a calibration is of one trainer; give one value for each key."
        )
    return composed.workload, composed.options["software"]


def _enumerated(base: Workload, counts: Sequence[int], batch: int, constraints: Constraints) -> Iterator[Candidate]:
    for gpus in counts:
        sized = replace(base, gpu=driven(base.gpu, base.software, gpus))
        yield from sort_layouts(sized, layouts_of(sized, gpus, batch, constraints)).candidates


def _thinned(candidates: Sequence[Candidate]) -> list[Candidate]:
    stride = max(1, -(-len(candidates) // MOST_CANDIDATES))
    return list(candidates[::stride])


@dataclass(slots=True)
class AskedRuns:
    """Measured times of layouts: those of a file, and those that the user types, which are kept in it."""

    path: Path
    layouts: Sequence[Layout]
    done: dict[Layout, LayoutRun]
    most: int
    _count: int = field(default=0)

    def measure(self, index: int) -> float | None:
        """Return the time of a run; None where it failed.

        Raises:
            ConfigError: nobody answers; what was typed is kept.
        """
        layout = self.layouts[index]
        self._count += 1
        run = self.done.get(layout)
        if run is None or (run.time_s is None and run.failure is None):
            run = self.done[layout] = self._asked(layout)
            write_text(self.path, runs_text(list(self.done.values())))
        taken = run.failure or f"{run.time_s:.4g} s"
        logger.info("run %d: %s: %s", self._count, layout.words, taken)
        return run.time_s

    def _asked(self, layout: Layout) -> LayoutRun:
        question = f"run {self._count}: {layout.words}; {layout.num_microbatches} microbatches"
        while True:
            try:
                text = input(f"{question}\n  seconds of an iteration, or {' or '.join(RunFailure)}: ").strip()
            except EOFError:
                raise ConfigError(
                    f"{self.path}: no time for run {self._count}; run the layout and call the command again."
                ) from None
            if text.lower() in set(RunFailure):
                return LayoutRun(layout=layout, failure=RunFailure(text.lower()))
            try:
                time_s = float(text)
            except ValueError:
                time_s = 0.0
            if 0 < time_s < float("inf"):
                return LayoutRun(layout=layout, time_s=time_s)
            logger.info("%r: not a number of seconds above 0, nor %s", text, " or ".join(RunFailure))


def answer_lines(calibration: TrainerCalibration, layouts: Sequence[Layout]) -> Iterator[str]:
    """Yield the answer for a terminal: runs, numbers with their intervals, errors, and whether to rank by them."""
    yield f"{'measured s':>10}  {'left out':>8}  layout"
    for layout, time_s, error in zip(layouts, calibration.measured_s, calibration.left_out, strict=True):
        yield f"{time_s:>10.4g}  {100 * np.expm1(error):>+7.1f}%  {layout.words}"
    yield ""
    for name, value in calibration.posterior.values.items():
        yield f"{name:<22} {value:<10.3g} {calibration.posterior.note(name)}"
    yield ""
    yield (
        f"time of {len(calibration.chosen)} runs: mean absolute error "
        f"{100 * np.abs(np.expm1(calibration.inside)).mean():.1f} %, each left out "
        f"{100 * calibration.error:.1f} %; order of runs left out: Kendall's tau {calibration.tau:.2f}"
    )
    yield f"rank by it: no, {' and '.join(calibration.doubts)}" if calibration.doubts else "rank by it: yes"


def _next_line(output: Path, config_dir: Path) -> str:
    if output.parent.resolve() == (config_dir / "software").resolve():
        return f"next: kareus advise software={output.stem} --gpus N --global-batch N"
    return f"next: move it to {config_dir / 'software'}, then kareus advise software={output.stem}"
