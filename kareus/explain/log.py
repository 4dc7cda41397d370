"""Logs of trainers: the steps that they tell of, by the table `formats.yaml`."""

import io
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kareus.artifacts.configuration import parse_yaml
from kareus.artifacts.files import open_regular, read_text
from kareus.errors import ArtifactError, ConfigError

TABLE = Path(__file__).parent / "formats.yaml"
"""Formats of the trainers' logs."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = r"\s*([0-9][0-9,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)([KMGBT](?![A-Za-z]))?"
"""A number, and the letter of its magnitude."""
MAGNITUDES = {None: 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
"""By such a letter."""
WARM_UP_STEPS, WARM_UP_SHARE = 10, 0.2
"""Steps at the beginning that are left out: so many, but of a short log no more than this share of its lines."""
SLOW = 1.5
"""A step of so many medians was held up by something else than its computation."""
LONGEST_LINE = 100_000
"""Characters of a line that are read: more are no line of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedNumber:
    """Where a number stands in a line, and what brings it to its unit."""

    pattern: re.Pattern[str]
    times: float

    def of(self, line: str) -> float | None:
        """Return the number in a line; None where there is none."""
        match = self.pattern.search(line)
        if match is None:
            return None
        return float(match[1].replace(",", "")) * MAGNITUDES[match[2]] * self.times


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """How the log of a trainer is read, line by line."""

    trainer: str
    step: re.Pattern[str]
    numbers: Mapping[str, LoggedNumber]
    """Of lines of a step, by name."""
    elsewhere: Mapping[str, LoggedNumber]
    """Of any line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """What logs say of a run, but for its first steps."""

    trainer: str
    first_step: int
    last_step: int
    left_out: int
    """Lines of steps at the beginning that are left out."""
    times_s: Sequence[float]
    """Times of the steps; empty where the log has rates alone."""
    numbers: Mapping[str, float]
    """Other numbers by name, the median over steps; of memory the largest of all."""

    @property
    def time_s(self) -> float | None:
        """The median time of a step."""
        return statistics.median(self.times_s) if self.times_s else None

    @property
    def delays_s(self) -> list[float]:
        """What each step that took much longer than the median took more than it."""
        usual_s = self.time_s or 0.0
        return [time_s - usual_s for time_s in self.times_s if time_s > SLOW * usual_s]

    @property
    def slow_percent(self) -> float:
        """What slow steps add to the time of the run."""
        return 100 * sum(self.delays_s) / (self.time_s * len(self.times_s)) if self.time_s else 0.0


@cache
def formats() -> tuple[LogFormat, ...]:
    """Return the formats of all trainers."""
    content = parse_yaml(read_text(TABLE))
    return tuple(
        LogFormat(
            trainer=trainer,
            step=re.compile(row["step"]),
            numbers=_numbers(row["numbers"]),
            elsewhere=_numbers(row.get("elsewhere", {})),
        )
        for trainer, row in content.items()
    )


def _numbers(rows: Mapping[str, Mapping[str, str]]) -> dict[str, LoggedNumber]:
    return {
        name: LoggedNumber(
            pattern=re.compile(row["after"] + NUMBER + row.get("before", "")), times=float(row.get("times", 1.0))
        )
        for name, row in rows.items()
    }


@dataclass(slots=True)
class _Lines:
    """What is read of one format: numbers of steps by step, and those of other lines."""

    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    elsewhere: dict[str, list[float]] = field(default_factory=dict)

    def read(self, kind: LogFormat, line: str) -> None:
        for name, number in kind.elsewhere.items():
            if (value := number.of(line)) is not None:
                self.elsewhere.setdefault(name, []).append(value)
        if (match := kind.step.search(line)) is not None:
            values = {name: number.of(line) for name, number in kind.numbers.items()}
            # A run that was started again tells of steps again: the later ones count.
            self.steps[int(match[1])] = {name: value for name, value in values.items() if value is not None}


def read_logs(paths: Sequence[Path]) -> LoggedRun:
    """Read the logs of one run.

    Args:
        paths: one file, or several whose lines belong together, such as those of nodes.

    Returns:
        What the trainer says whose lines there are most of.

    Raises:
        ArtifactError: a file cannot be read.
        ConfigError: no line is one of a step.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "train.log"
        >>> line = "[titan] step: {n}  loss: 7.1  memory: 47.57GiB(60.05%)  tps: 5,762  tflops: 333.69  mfu: 33.74%"
        >>> _ = path.write_text("".join(line.replace("{n}", str(n)) + chr(10) for n in range(1, 21)))
        >>> run = read_logs([path])
        >>> run.trainer, run.numbers["tokens_per_s_per_gpu"], run.left_out
        ('torchtitan', 5762.0, 4)
    """
    read = {kind.trainer: _Lines() for kind in formats()}
    for line in _lines(paths):
        for kind in formats():
            read[kind.trainer].read(kind, line)
    trainer = max(read, key=lambda name: len(read[name].steps))
    if not read[trainer].steps:
        raise ConfigError(
            f"{' '.join(map(str, paths))}: no line of a training step; logs of {', '.join(read)} are read, as they "
            "print them."
        )
    return _run(trainer, read[trainer])


def _lines(paths: Iterable[Path]) -> Iterator[str]:
    """Yield lines without colours; a progress bar's are separated by carriage returns, which are line ends here."""
    for path in paths:
        try:
            with open_regular(path) as file, io.TextIOWrapper(file, encoding="utf-8", errors="replace") as log:
                while line := log.readline(LONGEST_LINE):
                    yield COLOURS.sub("", line.rstrip("\n"))
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read ({error.strerror}).") from error


def _run(trainer: str, read: _Lines) -> LoggedRun:
    steps = dict(sorted(read.steps.items()))
    if bars := [values["bar_steps"] for values in steps.values() if "bar_steps" in values]:
        longest = max(bars)  # the training's; downloads and evaluations have bars, too
        steps = {step: values for step, values in steps.items() if values.get("bar_steps") == longest}
    left_out = min(WARM_UP_STEPS, int(WARM_UP_SHARE * len(steps)))
    kept = dict(list(steps.items())[left_out:])
    for name in ("batch_sequences", "batch_tokens"):  # of a batch that grows, what it grew to
        last = next(reversed(kept.values())).get(name)
        kept = {step: values for step, values in kept.items() if values.get(name) == last}
    of_steps: dict[str, list[float]] = {}
    for values in kept.values():
        for name, value in values.items():
            of_steps.setdefault(name, []).append(value)
    times_s = of_steps.pop("time_s", []) + [1 / rate for rate in of_steps.pop("steps_per_s", []) if rate > 0]
    collected = read.elsewhere | of_steps
    numbers = {
        name: max(values) if name.endswith("_gib") else statistics.median(values) for name, values in collected.items()
    }
    return LoggedRun(
        trainer=trainer,
        first_step=min(kept),
        last_step=max(kept),
        left_out=left_out,
        times_s=tuple(times_s),
        numbers=numbers,
    )
