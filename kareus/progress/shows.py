"""Displays of a run: lines, JSON, or errors only. The live view of a terminal is in `live`."""

import datetime
import json
from dataclasses import asdict
from typing import Any, TextIO

from kareus.errors import KareusError, printable_lines
from kareus.progress import wording
from kareus.progress.events import (
    Failed,
    Finished,
    Interrupted,
    JobsPlanned,
    NothingToDo,
    RunEvent,
    Said,
    Started,
    answer_lines,
)
from kareus.progress.journal import Standing
from kareus.progress.run_state import RunState, standing_of

WORTH_A_LINE_S = 1.0
"""Jobs that took less are only counted."""


class Show:
    """Display of a run on a stream. This one has nothing but warnings and errors; others say what they have instead."""

    every_s = 3600.0
    """Interval between calls of `tick`."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        self._stream = stream

    def tell(self, event: RunEvent, state: RunState) -> None:
        """Show an event. `state` includes it, except that a job that ended is still listed as running."""
        if isinstance(event, Failed) or (isinstance(event, Said) and event.level != "info"):
            self._write(*lines_of(event, state))

    def tick(self, state: RunState, now_s: float) -> None:
        """Time has passed."""

    def end(self, state: RunState, now_s: float) -> None:
        """The run is over."""

    def _write(self, *lines: str, style: str = "") -> None:
        """Write lines that a reader gets at once; a terminal has them in a style."""
        for line in lines:
            print(line, file=self._stream, flush=True)


class Lines(Show):
    """A line for each job that took a while, and now and then one on what is running: for logs and pipes."""

    every_s = 30.0

    def tell(self, event: RunEvent, state: RunState) -> None:
        """Write what happened."""
        self._write(*lines_of(event, state), style=style_of(event))

    def tick(self, state: RunState, now_s: float) -> None:
        """Write what is running."""
        if state.running:
            lines = [f"  {line}" for job in running(state, now_s) for line in job]
            self._write(wording.tally(state, now_s), *lines)

    def end(self, state: RunState, now_s: float) -> None:
        """Write how it ended."""
        if state.has_begun:
            self._write(wording.ending(state, now_s), style="bold")
        self._write(*ending_lines(state))


class DryRun(Show):
    """What a run would do, for `-n`: the jobs of each rule in one line."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        super().__init__(stream)
        self._jobs: dict[str, list[Started]] = {}

    def tell(self, event: RunEvent, state: RunState) -> None:
        """Keep jobs for the end; write what Snakemake says."""
        if isinstance(event, Started):
            self._jobs.setdefault(event.rule, []).append(event)
        elif isinstance(event, Said | NothingToDo):
            self._write(*lines_of(event, state))

    def end(self, state: RunState, now_s: float) -> None:
        """Write what would be done, rule by rule; Snakemake numbers a job before those that it depends on."""
        if not self._jobs:
            return
        counts = {rule: len(jobs) for rule, jobs in self._jobs.items()}
        self._write(f"{wording.jobs(sum(counts.values()))} would be done; nothing was")
        self._write(wording.work(counts, state.usual_s))
        for jobs in sorted(self._jobs.values(), key=lambda jobs: -min(job.job for job in jobs)):
            more = f", and {len(jobs) - 1} more like it" if len(jobs) > 1 else ""
            self._write(f"{len(jobs):>5}  {printable_lines(jobs[0].what)}{more}")


class JsonLines(Show):
    """One JSON object a line: for programs."""

    every_s = 1.0

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        super().__init__(stream)
        self._written: dict[int, Standing] = {}

    def tell(self, event: RunEvent, state: RunState) -> None:
        """Write one JSON object for an event; events without a meaning for programs are left out."""
        match event:
            case JobsPlanned(jobs=jobs):
                self._put("planned", jobs=dict(jobs), total=state.total)
            case Started(job=job, rule=rule, what=what):
                self._put("started", event.at_s, job=job, rule=rule, what=what, wildcards=dict(event.wildcards))
            case Finished(at_s=at_s, job=job) if job in state.running:
                started = state.running[job]
                self._put("finished", at_s, job=job, rule=started.rule, duration_s=round(at_s - started.at_s, 3))
            case Failed(at_s=at_s, job=job, rule=rule):
                self._put("failed", at_s, job=job, rule=rule, why=wording.why(event))
            case Said(level=level, text=text):
                self._put("said", level=level, text=text)
            case _:
                pass

    def tick(self, state: RunState, now_s: float) -> None:
        """Write what running jobs have come to since, and the estimate."""
        for job in state.running.values():
            at = standing_of(job)
            if at is not None and at != self._written.get(job.job):
                self._written[job.job] = at
                self._put("progress", now_s, job=job.job, rule=job.rule, wildcards=dict(job.wildcards), **asdict(at))
        if state.running:
            self._put("state", now_s, **_counts(state, now_s))

    def end(self, state: RunState, now_s: float) -> None:
        """Write the last counts."""
        lines = ending_lines(state)
        if lines:
            self._put("answer", now_s, lines=lines)
        self._put("ended", now_s, **_counts(state, now_s), interrupted=state.is_interrupted)

    def _put(self, event: str, at_s: float | None = None, **fields: Any) -> None:
        when = (
            datetime.datetime.now(datetime.UTC) if at_s is None else datetime.datetime.fromtimestamp(at_s, datetime.UTC)
        )
        line = {"event": event, "at": when.isoformat(timespec="milliseconds"), **fields}
        self._write(json.dumps(line))


def _counts(state: RunState, now_s: float) -> dict[str, Any]:
    left = state.time_left(now_s)
    return {
        "done": state.done,
        "running": len(state.running),
        "failed": len(state.failed),
        "total": state.total,
        "elapsed_s": round(now_s - state.began_s, 3),
        "left_s": round(left.known_s, 3) if left.is_known else None,
        "untimed": left.untimed,
    }


def ending_lines(state: RunState) -> list[str]:
    """Return what a run that has succeeded ends with, escaped for a terminal."""
    if not state.has_succeeded:
        return []
    try:
        return [printable_lines(line) for line in answer_lines()]
    except (KareusError, OSError) as error:
        return [f"warning: {printable_lines(str(error))}"]


def lines_of(event: RunEvent, state: RunState) -> list[str]:
    """Return the lines that people are shown of an event, escaped for a terminal; none of most."""
    return [printable_lines(line) for line in _lines_of(event, state)]


_IN_WORDS = {
    Interrupted: "interrupted: ending the running jobs; what was measured is kept",
    NothingToDo: "Nothing to be done: all that was asked for is there, and up to date.",
}


def _lines_of(event: RunEvent, state: RunState) -> list[str]:
    match event:
        case JobsPlanned():
            return [f"{wording.jobs(state.total)} to do"]
        case Finished(at_s=at_s, job=job) if job in state.running:
            started = state.running[job]
            took_s = at_s - started.at_s
            return [f"{wording.duration(took_s):>7}  {started.what}"] if took_s >= WORTH_A_LINE_S else []
        case Failed():
            what = state.running[event.job].what if event.job in state.running else f"rule {event.rule}"
            is_repeated = wording.is_repeated(event, state)
            why = [] if is_repeated else [f"         {line}" for line in wording.why(event)]
            return [f" failed  {what}{', for the same reason' if is_repeated else ''}", *why]
        case Said(level=level, text=text):
            return [text if level == "info" else f"{level}: {text}"]
        case Interrupted() | NothingToDo():
            return [_IN_WORDS[type(event)]]
        case _:
            return []


def style_of(event: RunEvent) -> str:
    """Return the style that a terminal has lines of an event in."""
    match event:
        case Failed() | Said(level="error"):
            return "red"
        case Said(level="warning"):
            return "yellow"
        case _:
            return ""


def running(state: RunState, now_s: float) -> list[list[str]]:
    """Return lines on running jobs, the longest first: one for each, and a second one with its progress if known."""
    shown = []
    for job in state.running.values():
        at = standing_of(job)
        detail = [f"{'':9}{wording.standing(at)}"] if at else []
        shown.append([f"{wording.duration(now_s - job.at_s):>7}  {printable_lines(job.what)}", *detail])
    return shown
