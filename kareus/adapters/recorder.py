"""Recorder of a rank's iterations beside the training, written as the tables `MICROBATCHES` and `STEPS`.

Nothing here waits for the GPU. Times come from events that are read once the GPU has passed them, energies from the
counter that a thread reads; both are known an iteration or more later.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import polars as pl

from kareus.adapters.records import DRIVER, InstructionRecord, IterationRecord
from kareus.adapters.sampler import Sampler
from kareus.adapters.stopwatch import Mark, Stopwatch
from kareus.adapters.tables import MICROBATCHES, STEPS
from kareus.artifacts.files import set_aside
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import TableSchema, read_table, write_table
from kareus.device.held_clock import ClockReading
from kareus.errors import ArtifactError, KareusError, refused_by_system
from kareus.graph.instruction import InstructionKey

logger = logging.getLogger(__name__)

WRITE_EVERY_S = 60.0
"""Between two writings of the tables, whose thread takes the interpreter for tenths of a second in all."""
MOST_ROWS = 10_000
"""Iterations that are kept as rows before they are made columns."""
MOST_ITERATIONS = 500
"""Iterations whose microbatches are kept, the last ones: with 64 instructions each they take 5 MB."""


@dataclass(slots=True)
class _Open:
    """An iteration whose times are not known yet."""

    iteration: int
    selector: str
    frequency_mhz: int | None
    start: Mark
    tokens: int | None = None
    end: Mark | None = None
    spans: list[tuple[InstructionKey, int | None, Mark, Mark]] = field(default_factory=list)
    """Instructions that ended, with the clock that was asked for, and their marks."""
    begun: dict[InstructionKey, tuple[int | None, Mark]] = field(default_factory=dict)
    times_s: list[float] | None = None
    """Of the marks of start, spans and end, once the device has reached all of them."""


class RankRecorder:
    """Records the iterations of one rank. All calls come from the thread that trains."""

    def __init__(
        self,
        stopwatch: Stopwatch,
        sampler: Sampler | None,
        tables: "RankTables | None",
        take_note: Callable[[IterationRecord], None],
    ) -> None:
        """Record what a rank does.

        Args:
            stopwatch: of the rank's device.
            sampler: of its GPU; None where there is no energy to read.
            tables: what is written; None to write nothing.
            take_note: called with each iteration once what it took is known, in order.
        """
        self._stopwatch = stopwatch
        self._sampler = sampler
        self._tables = tables
        self._take_note = take_note
        self._open: _Open | None = None
        """None between iterations."""
        self._ended: deque[_Open] = deque()
        self.last: IterationRecord | None = None
        """The last iteration of which everything is known."""

    def begin_iteration(self, iteration: int, selector: str, frequency_mhz: int | None = None) -> None:
        """Note that an iteration begins; `frequency_mhz` is the clock of the whole of it, if it has one."""
        self._open = _Open(iteration, selector, frequency_mhz, self._stopwatch.mark())

    def begin(self, key: InstructionKey, frequency_mhz: int | None) -> None:
        """Note that an instruction of the iteration begins, and the clock that was asked for."""
        assert self._open is not None, "no iteration was begun"
        self._open.begun[key] = frequency_mhz, self._stopwatch.mark()

    def end(self, key: InstructionKey) -> None:
        """Note that all of an instruction was launched."""
        assert self._open is not None, "no iteration was begun"
        frequency_mhz, start = self._open.begun.pop(key)
        self._open.spans.append((key, frequency_mhz, start, self._stopwatch.mark()))

    def leave_to_driver(self) -> None:
        """Note that the iteration ran at the driver's own clock, or a part of it did."""
        assert self._open is not None, "no iteration was begun"
        self._open.selector, self._open.frequency_mhz = DRIVER, None

    def end_iteration(self, tokens: int | None = None) -> None:
        """Note that all of the iteration was launched; hand on those before that are known by now."""
        assert self._open is not None, "no iteration was begun"
        self._open.tokens, self._open.end = tokens, self._stopwatch.mark()
        self._ended.append(self._open)
        self._open = None
        self._hand_on()

    def close(self) -> None:
        """Hand on what is known and write the tables; an iteration that the GPU has not ended is left out."""
        if self._sampler is not None:
            self._sampler.close()
        self._hand_on()
        if self._tables is not None:
            self._tables.write_or_say("What it recorded last is lost.")

    def _hand_on(self) -> None:
        while self._ended:
            record = self._known(self._ended[0])
            if record is None:
                return
            self._ended.popleft()
            self.last = record
            if self._tables is not None:
                self._tables.add(record)
            self._take_note(record)
        if self._tables is not None:
            self._tables.write_beside()

    def _known(self, ended: _Open) -> IterationRecord | None:
        """Return what an iteration took, or None while that is not known."""
        assert ended.end is not None, "it has ended"
        if ended.times_s is None:
            inner = [mark for span in ended.spans for mark in span[2:]]
            ended.times_s = self._stopwatch.times_s([ended.start, *inner, ended.end])
        if ended.times_s is None:
            return None
        start_s, *inner_s, end_s = ended.times_s
        if self._sampler is not None and not self._sampler.covers(end_s):
            return None
        starts_s, ends_s = [start_s, *inner_s[::2]], [end_s, *inner_s[1::2]]
        energies_j: list[float | None] = [None] * len(starts_s)
        clocks_mhz: list[int | None] = [None] * len(starts_s)
        counter: tuple[tuple[float, float], ...] = ()
        readings: tuple[ClockReading, ...] = ()
        if self._sampler is not None:
            energies_j = self._sampler.energies_j(starts_s, ends_s)
            counter = self._sampler.movements(start_s, end_s)
            readings = self._sampler.readings(start_s, end_s)
            whole_mhz = self._sampler.median_clock_mhz(start_s, end_s)
            own_mhz = map(self._sampler.last_clock_mhz, starts_s[1:], ends_s[1:])
            clocks_mhz = [whole_mhz, *own_mhz]
            self._sampler.forget(end_s)
        spans = zip(ended.spans, starts_s[1:], ends_s[1:], energies_j[1:], clocks_mhz[1:], strict=True)
        return IterationRecord(
            iteration=ended.iteration,
            selector=ended.selector,
            time_s=end_s - start_s,
            energy_j=energies_j[0],
            tokens=ended.tokens,
            frequency_mhz=ended.frequency_mhz,
            observed_mhz=clocks_mhz[0],
            counter=counter,
            readings=readings,
            instructions=tuple(
                InstructionRecord(
                    key=key,
                    start_s=begun_s - start_s,
                    time_s=done_s - begun_s,
                    energy_j=energy_j,
                    frequency_mhz=frequency_mhz,
                    observed_mhz=observed_mhz,
                )
                for (key, frequency_mhz, _, _), begun_s, done_s, energy_j, observed_mhz in spans
            ),
        )


class RankTables:
    """The two tables of one rank, which all starts of a training that name the same folder go on with.

    No training fails for them: what cannot be read is set aside, and what cannot be written is said.
    """

    def __init__(self, folder: Path, rank: int, provenance: Provenance) -> None:
        """Write below `folder`; nothing is read or written yet."""
        self._rank = rank
        self._provenance = provenance
        self._paths = {schema: table_path(folder, schema, rank) for schema in (STEPS, MICROBATCHES)}
        self._steps: list[dict[str, Any]] = []
        self._microbatches: deque[IterationRecord] = deque(maxlen=MOST_ITERATIONS)
        self._before = {schema: schema.frame([]) for schema in self._paths}
        """Rows of earlier starts."""
        self._writing = threading.Lock()
        self._written_s = time.monotonic()
        self.first = 0
        """Number of this start's first iteration."""

    def resume(self) -> Self:
        """Read the rows of earlier starts, after which this one's are numbered."""
        self._before = {schema: _rows_before(path, schema) for schema, path in self._paths.items()}
        self.first = _after(self._before[STEPS])
        return self

    def add(self, record: IterationRecord) -> None:
        """Keep one iteration."""
        self._microbatches.append(replace(record, counter=(), readings=()))  # no table has them
        self._steps.append(
            {
                "rank": self._rank,
                "iteration": self.first + record.iteration,
                "selector": record.selector,
                "time_s": record.time_s,
                "energy_j": record.energy_j,
                "tokens": record.tokens,
                "frequency_mhz": record.frequency_mhz,
                "observed_mhz": record.observed_mhz,
            }
        )
        if len(self._steps) == MOST_ROWS:
            self._fold()

    def _fold(self) -> None:
        """Keep steps as columns, which take a tenth of the memory of rows."""
        with self._writing:
            self._before[STEPS] = pl.concat([self._before[STEPS], STEPS.frame(self._steps)])
            self._steps.clear()

    def write_beside(self) -> None:
        """Write the tables from a thread if that was `WRITE_EVERY_S` ago, so that a kill loses little."""
        if time.monotonic() - self._written_s >= WRITE_EVERY_S:
            self._written_s = time.monotonic()
            later = ("They are written again later.",)
            threading.Thread(target=self.write_or_say, args=later, name="tables", daemon=True).start()

    def write(self) -> None:
        """Write both tables; one without rows is not written."""
        with self._writing:
            for schema, rows in ((STEPS, self._steps.copy()), (MICROBATCHES, self._instruction_rows())):
                frame = pl.concat([self._before[schema], schema.frame(rows)])
                if schema is MICROBATCHES:
                    frame = frame.filter(pl.col("iteration") > pl.col("iteration").max() - MOST_ITERATIONS)
                if len(frame):
                    self._paths[schema].parent.mkdir(parents=True, exist_ok=True)
                    write_table(self._paths[schema], frame, schema, self._provenance)

    def write_or_say(self, consequence: str) -> None:
        """Write both tables, or warn why they cannot be written, and what follows from it."""
        try:
            self.write()
        except KareusError as error:
            logger.warning("%s The training goes on without its tables. %s", error, consequence)
        except OSError as error:
            logger.warning("%s The training goes on without its tables. %s", refused_by_system(error), consequence)

    def _instruction_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "rank": self._rank,
                "iteration": self.first + record.iteration,
                "stage": i.key.stage,
                "chunk": i.key.chunk,
                "microbatch": i.key.microbatch,
                "direction": str(i.key.direction),
                "start_s": i.start_s,
                "time_s": i.time_s,
                "energy_j": i.energy_j,
                "frequency_mhz": i.frequency_mhz,
                "observed_mhz": i.observed_mhz,
            }
            for record in self._microbatches.copy()
            for i in record.instructions
        ]


def next_iteration(folder: Path, rank: int) -> int:
    """Return the number of the first iteration of a start that goes on with a rank's tables below `folder`."""
    return _after(_rows_before(table_path(folder, STEPS, rank), STEPS))


def _rows_before(path: Path, schema: TableSchema) -> pl.DataFrame:
    """Return the rows of a table of earlier starts; one that cannot be read is set aside, and has none."""
    if not path.exists():
        return schema.frame([])
    try:
        return read_table(path, schema)
    except (ArtifactError, OSError) as error:
        reason = refused_by_system(error) if isinstance(error, OSError) else str(error)
    try:
        kept = f"kept as {set_aside(path).name}"
    except OSError as error:
        kept = refused_by_system(error)
    logger.warning("%s The training goes on with a new table; %s.", reason, kept.rstrip("."))
    return schema.frame([])


def _after(steps: pl.DataFrame) -> int:
    return 1 + max(steps["iteration"].to_list(), default=-1)


def table_path(folder: Path, schema: TableSchema, rank: int) -> Path:
    """Return the path of a rank's table in the output folder of an adapter."""
    return folder / schema.name / f"rank-{rank:05d}.parquet"
