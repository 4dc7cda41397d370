"""How a run is shown: as lines, as JSON, as errors only. The live view of a terminal is in `live`."""

import datetime
import json
from dataclasses import asdict
from typing import Any, Protocol, TextIO

from kareus.errors import printable_lines
from kareus.progress import wording
from kareus.progress.campaign import Campaign, standing_of
from kareus.progress.events import Event, Failed, Finished, Planned, Said, Started
from kareus.progress.journal import Standing

WORTH_A_LINE_S = 1.0
"""Jobs that took less are only counted."""


class Show(Protocol):
    """One way of showing."""

    every_s: float
    """How often `tick` wants to be called."""

    def tell(self, event: Event, campaign: Campaign) -> None:
        """Something happened; `campaign` knows of it, except that a job that has ended is still among the running."""

    def tick(self, campaign: Campaign, now_s: float) -> None:
        """Time has passed."""

    def end(self, campaign: Campaign, now_s: float) -> None:
        """The run is over."""


class Errors:
    """Nothing but warnings and errors."""

    every_s = 3600.0

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        self._stream = stream

    def tell(self, event: Event, campaign: Campaign) -> None:
        """Write what went wrong."""
        for line in lines_of(event, campaign):
            if isinstance(event, Failed) or (isinstance(event, Said) and event.level != "info"):
                print(line, file=self._stream, flush=True)

    def tick(self, campaign: Campaign, now_s: float) -> None:
        """Say nothing."""

    def end(self, campaign: Campaign, now_s: float) -> None:
        """Say nothing; the exit code does."""


class Lines:
    """A line for each job that took a while, and now and then one on what is running: for logs and pipes."""

    every_s = 30.0

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        self._stream = stream

    def tell(self, event: Event, campaign: Campaign) -> None:
        """Write what happened."""
        self._write(*lines_of(event, campaign))

    def tick(self, campaign: Campaign, now_s: float) -> None:
        """Write what is running."""
        if campaign.running:
            lines = [f"  {line}" for job in running(campaign, now_s) for line in job]
            self._write(wording.tally(campaign, now_s), *lines)

    def end(self, campaign: Campaign, now_s: float) -> None:
        """Write how it ended."""
        if campaign.has_begun:
            self._write(wording.ending(campaign, now_s))

    def _write(self, *lines: str) -> None:
        for line in lines:
            print(line, file=self._stream, flush=True)


class JsonLines:
    """One JSON object a line: for programs."""

    every_s = 1.0

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        self._stream = stream
        self._told: dict[int, Standing] = {}

    def tell(self, event: Event, campaign: Campaign) -> None:
        """Write the event."""
        match event:
            case Planned(jobs=jobs):
                self._write("planned", jobs=dict(jobs), total=campaign.total)
            case Started(job=job, rule=rule, what=what):
                self._write("started", event.at_s, job=job, rule=rule, what=what, wildcards=dict(event.wildcards))
            case Finished(at_s=at_s, job=job) if job in campaign.running:
                started = campaign.running[job]
                self._write("finished", at_s, job=job, rule=started.rule, duration_s=round(at_s - started.at_s, 3))
            case Failed(at_s=at_s, job=job, rule=rule):
                self._write("failed", at_s, job=job, rule=rule, why=wording.why(event))
            case Said(level=level, text=text):
                self._write("said", level=level, text=text)
            case _:
                pass

    def tick(self, campaign: Campaign, now_s: float) -> None:
        """Write what running jobs have come to since, and the estimate."""
        for job in campaign.running.values():
            at = standing_of(job)
            if at is not None and at != self._told.get(job.job):
                self._told[job.job] = at
                self._write("progress", now_s, job=job.job, rule=job.rule, wildcards=dict(job.wildcards), **asdict(at))
        if campaign.running:
            self._write("state", now_s, **_counts(campaign, now_s))

    def end(self, campaign: Campaign, now_s: float) -> None:
        """Write the last counts."""
        self._write("ended", now_s, **_counts(campaign, now_s))

    def _write(self, event: str, at_s: float | None = None, **fields: Any) -> None:
        when = (
            datetime.datetime.now(datetime.UTC) if at_s is None else datetime.datetime.fromtimestamp(at_s, datetime.UTC)
        )
        line = {"event": event, "at": when.isoformat(timespec="milliseconds"), **fields}
        print(json.dumps(line), file=self._stream, flush=True)


def _counts(campaign: Campaign, now_s: float) -> dict[str, Any]:
    left = campaign.time_left(now_s)
    return {
        "done": campaign.done,
        "running": len(campaign.running),
        "failed": len(campaign.failed),
        "total": campaign.total,
        "elapsed_s": round(now_s - campaign.began_s, 3),
        "left_s": round(left.known_s, 3),
        "untimed": left.untimed,
    }


def lines_of(event: Event, campaign: Campaign) -> list[str]:
    """Return the lines that people are shown of an event, escaped for a terminal; none of most."""
    return [printable_lines(line) for line in _lines_of(event, campaign)]


def _lines_of(event: Event, campaign: Campaign) -> list[str]:
    match event:
        case Planned():
            return [f"{campaign.total} jobs to do"]
        case Finished(at_s=at_s, job=job) if job in campaign.running:
            started = campaign.running[job]
            took_s = at_s - started.at_s
            return [f"{wording.duration(took_s):>7}  {started.what}"] if took_s >= WORTH_A_LINE_S else []
        case Failed():
            what = campaign.running[event.job].what if event.job in campaign.running else f"rule {event.rule}"
            return [f" failed  {what}", *(f"         {line}" for line in wording.why(event))]
        case Said(level=level, text=text):
            return [text if level == "info" else f"{level}: {text}"]
        case _:
            return []


def running(campaign: Campaign, now_s: float) -> list[list[str]]:
    """What is running, the longest first: a line for each job, and one below it for those that say how far they are."""
    shown = []
    for job in campaign.running.values():
        at = standing_of(job)
        detail = [f"{'':9}{wording.standing(at)}"] if at else []
        shown.append([f"{wording.duration(now_s - job.at_s):>7}  {printable_lines(job.what)}", *detail])
    return shown
