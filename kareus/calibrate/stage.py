"""Command `calibrate`: measure what a fit of the GPU model needs on one GPU, fit it, and write the GPU's file."""

import argparse
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kareus.artifacts.files import write_text
from kareus.artifacts.names import check_name
from kareus.artifacts.outputs import OutputKind, add_force, check_files, check_folder
from kareus.artifacts.shipped import is_shipped
from kareus.calibrate.answer import error_lines, errors_by_kind, missed_lines, notes, untold_line
from kareus.calibrate.coefficients import OF_LINKS, expectations
from kareus.calibrate.design import clocks_of, ordered_trials
from kareus.calibrate.document import Origin, document, origin_lines
from kareus.calibrate.fit import calibrate, errors_of, left_out_errors
from kareus.calibrate.gpu_file import is_gpu
from kareus.calibrate.heat import heat_of
from kareus.calibrate.measure import Measured, measure_trials, shelves_of, short
from kareus.calibrate.probes import probes
from kareus.calibrate.rehearsal import hidden_gpu, missed, unmeasured
from kareus.device.claims import claim
from kareus.device.held_clock import IDLE
from kareus.device.protocol import Device
from kareus.errors import ArtifactError, ConfigError, DeviceError, printable
from kareus.gpu_model.gpu import Gpu
from kareus.profile.bench import Bench, open_bench
from kareus.profile.config import MeasurementProtocol
from kareus.testbed.config import ClockPolicy, CudaCollectives, TestbedConfig, TestbedKind
from kareus.workload.arguments import add_overrides
from kareus.workload.compose import compose, with_engine

logger = logging.getLogger(__name__)

MINUTES = 10.0
LEAST_MINUTES, MOST_MINUTES = 1.0, 600.0
STORE = Path("results/measurements")
IDLE_LOOKS, LOOK_S = 10, 0.2
"""How often, and how long apart, a GPU is looked at before it counts as busy."""
SAY_EVERY = 50
"""Trials between two lines of progress."""
UNMEASURED_CLOCKS = 3
"""Clocks at which a rehearsal is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationConfig:
    """What decides the measurements of a calibration; a `kareus.profile.bench.MeasuringConfig`."""

    gpu: Gpu
    testbed: TestbedConfig
    protocol: MeasurementProtocol
    seed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the GPU, the testbed, the time and the output."""
    add_overrides(parser, "Hydra overrides of GPU and testbed, such as gpu=h100-sxm5-80gb testbed=cuda")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"time on the testbed's clock (default: {MINUTES:g})"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="GPU's file to write (default: OPTION-calibrated.yaml, -rehearsal.yaml if simulated; in config/gpu/, if "
        "the current folder has it)",
    )
    parser.add_argument("--store", type=Path, default=STORE, help=f"folder of the measurement store (default: {STORE})")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure, fit, write the file, and print errors and what to type next."""
    budget_s = 60 * _minutes(arguments.minutes)
    subject = _subject(arguments.overrides, arguments.config_dir)
    place = Path() if is_shipped(arguments.config_dir) else arguments.config_dir / "gpu"
    output = arguments.output or place / f"{subject.option}-{subject.suffix}.yaml"
    _check_output(arguments, output, subject.option)
    bench = _bench(subject.config)
    measured = _measured(subject, bench, arguments.store, budget_s)
    for line in _write(output, subject, bench, measured):
        print(printable(line))  # noqa: T201 - the answer of the command
    print(_next_line(output, arguments.config_dir))  # noqa: T201


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedSubject:
    """What is calibrated."""

    option: str
    """Option of the group `gpu` that the calibration starts from."""
    start: Gpu
    """GPU of that option."""
    config: CalibrationConfig
    """Its `gpu` is the same, or hidden where the testbed is simulated."""

    @property
    def is_rehearsal(self) -> bool:
        """Whether the testbed is simulated, so that coefficients are hidden."""
        return self.config.testbed.kind is TestbedKind.SIMULATED

    @property
    def suffix(self) -> str:
        """End of the names of the file and of the GPU."""
        return "rehearsal" if self.is_rehearsal else "calibrated"

    @property
    def clocks_settable(self) -> bool:
        """Whether the testbed locks clocks."""
        cuda = self.config.testbed.cuda
        return cuda is None or cuda.clocks is ClockPolicy.LOCKED


def _subject(overrides: Sequence[str], config_dir: Path) -> CalibratedSubject:
    first, *others = compose(with_engine(overrides), config_dir)
    if others:
        raise ConfigError(f"{1 + len(others)} combinations: a calibration is of one GPU; give one value for each key.")
    workload, testbed = first.workload, first.workload.testbed
    if testbed.cuda is not None:  # one GPU, whose collectives go through its own memory
        testbed = replace(testbed, cuda=replace(testbed.cuda, collectives=CudaCollectives.LOOPBACK))
    simulated = testbed.kind is TestbedKind.SIMULATED
    gpu = hidden_gpu(workload.gpu, workload.seed) if simulated else workload.gpu
    config = CalibrationConfig(gpu=gpu, testbed=testbed, protocol=short(workload.protocol), seed=workload.seed)
    return CalibratedSubject(option=first.options["gpu"], start=workload.gpu, config=config)


def _minutes(minutes: float) -> float:
    if not LEAST_MINUTES <= minutes <= MOST_MINUTES:
        raise ConfigError(f"--minutes {minutes:g}: must be between {LEAST_MINUTES:g} and {MOST_MINUTES:g}.")
    return minutes


def _check_output(arguments: argparse.Namespace, output: Path, option: str) -> None:
    """Check that the file may be written, before ten minutes are spent.

    Raises:
        ArtifactError: it exists and there is no `--force`, or it would inherit from itself.
    """
    check_name(output.stem, "--output")
    if output.stem == option:
        raise ArtifactError(f"{output}: the calibration starts from gpu={option}; give --output another name.")
    if output.exists() and not arguments.force:
        raise ArtifactError(f"{output}: there is a GPU's file of this name; give another --output, or --force.")
    check_files(arguments, [(output, OutputKind("a GPU's configuration", is_gpu))])
    check_folder(arguments.store, force=arguments.force)


def _bench(config: CalibrationConfig) -> Bench:
    """Open the testbed, whose GPU must be idle.

    Raises:
        DeviceError: there is no such GPU, another process has claimed it, or it is busy.
    """
    if config.testbed.kind is TestbedKind.CUDA:
        from kareus.device import nvml  # noqa: PLC0415 - Zeus takes seconds to import

        check_idle(nvml.open_devices()[0])
    return open_bench(config)


def check_idle(device: Device) -> None:
    """Check that nobody uses a GPU.

    Raises:
        DeviceError: another process has claimed it, or something runs on it.
    """
    with claim(device.uuid):
        for _ in range(IDLE_LOOKS):
            if IDLE in device.throttle_reasons():
                return
            time.sleep(LOOK_S)
    raise DeviceError(f"{device.uuid}: something runs on {device.name}; measure once it is idle.")


def _measured(subject: CalibratedSubject, bench: Bench, store: Path, budget_s: float) -> Measured:
    """Choose trials, and measure those that the store does not have.

    Raises:
        ConfigError: idle and sustained power took all the time.
    """
    start, protocol = subject.start, subject.config.protocol
    clocks_mhz = clocks_of(start, settable=subject.clocks_settable)
    every = probes(start.gpus_per_node)
    trials = ordered_trials(every, clocks_mhz, start, expectations(start), protocol, budget_s)
    with shelves_of(bench, store) as shelves:
        measured = measure_trials(bench.testbed, protocol, shelves, trials, budget_s, _say)
    if not measured.observations:
        raise ConfigError(
            f"--minutes {budget_s / 60:g}: idle and sustained power took {measured.spent_s:.0f} s of it; give more."
        )
    logger.info("%d measurements, %d of them from the store", len(measured.observations), measured.reused)
    return measured


def _say(done: int, spent_s: float) -> None:
    if done % SAY_EVERY == 0:
        logger.info("%d measurements, %.1f minutes on the testbed's clock", done, spent_s / 60)


def _write(output: Path, subject: CalibratedSubject, bench: Bench, measured: Measured) -> list[str]:
    """Fit, write the file, and return the answer."""
    start, observations, expected = subject.start, measured.observations, expectations(subject.start)
    fitted = calibrate(observations, heat_of(measured.heat, start).applied(start), expected)
    inside, outside = errors_of(observations, fitted.gpu), left_out_errors(observations, fitted, expected)
    errors = errors_by_kind(observations, inside, outside)
    kept = () if subject.is_rehearsal else tuple(sorted(OF_LINKS & fitted.spreads.keys()))
    origin = Origin(
        option=subject.option,
        name=f"{start.name}-{subject.suffix}",
        lines=origin_lines(bench, measured, heat_of(measured.heat, start), clocks_settable=subject.clocks_settable),
    )
    write_text(output, document(origin, fitted, kept, notes(errors), start))
    lines = [*origin.lines, "", *error_lines(errors)]
    if subject.is_rehearsal:
        clocks_mhz = start.search_frequencies.clocks_mhz
        between = [clocks_mhz[place * len(clocks_mhz) // UNMEASURED_CLOCKS] for place in range(1, UNMEASURED_CLOCKS)]
        others = unmeasured(start.gpus_per_node)
        lines += missed_lines(missed(fitted.gpu, subject.config.gpu, others, [*between, start.maximum_clock_mhz]))
    return [*lines, "", untold_line(fitted, kept, subject.option), f"{output}: written"]


def _next_line(output: Path, config_dir: Path) -> str:
    if output.parent.resolve() == (config_dir / "gpu").resolve():
        return f"next: kareus predict gpu={output.stem}"
    if is_shipped(config_dir):
        return f"next: kareus init ., move it to config/gpu, then kareus predict gpu={output.stem}"
    return f"next: move it to {config_dir / 'gpu'}, then kareus predict gpu={output.stem}"
