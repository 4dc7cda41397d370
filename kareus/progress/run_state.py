"""The state of a run: which jobs wait, run, are finished or have failed, and about how long the rest will take."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kareus.progress.events import Failed, Finished, JobsPlanned, RunEvent, Started
from kareus.progress.journal import SUFFIX, Standing, read_standing

DEFAULT_TARGET = "all"
"""The rule that only collects; it takes no time, so that its missing estimate does not matter."""


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """An estimate, and what it leaves out."""

    known_s: float
    """Time of the jobs whose rule is timed."""
    untimed: int
    """Number of jobs of rules of which none has finished or reported progress."""


@dataclass(slots=True)
class RunState:
    """The state of a run, changed by events."""

    began_s: float
    first_job_s: float | None = None
    """Start of the first job; the time before went into finding out what is to be done."""
    planned: Counter[str] = field(default_factory=Counter)
    running: dict[int, Started] = field(default_factory=dict)
    failed: dict[int, Failed] = field(default_factory=dict)
    durations_s: dict[str, list[float]] = field(default_factory=dict)
    """Durations of finished jobs, by rule."""

    @property
    def total(self) -> int:
        """Number of jobs."""
        return self.planned.total()

    @property
    def done(self) -> int:
        """Number of jobs that have finished."""
        return sum(len(durations) for durations in self.durations_s.values())

    @property
    def has_begun(self) -> bool:
        """Whether any job has begun."""
        return bool(self.running or self.failed or self.durations_s)

    def apply(self, event: RunEvent) -> None:
        """Change the state by an event."""
        match event:
            case JobsPlanned(jobs=jobs):
                self.planned = Counter(jobs)
            case Started(at_s=at_s):
                self.first_job_s = at_s if self.first_job_s is None else self.first_job_s
                self.running[event.job] = event
                self.failed.pop(event.job, None)
            case Finished(at_s=at_s, job=job) if job in self.running:
                started = self.running.pop(job)
                self.durations_s.setdefault(started.rule, []).append(at_s - started.at_s)
            case Failed():
                self.running.pop(event.job, None)
                self.failed[event.job] = event
            case _:
                pass

    def waiting(self) -> Counter[str]:
        """Return the number of jobs that have not begun, by rule."""
        begun = Counter({rule: len(durations) for rule, durations in self.durations_s.items()})
        begun.update(job.rule for job in self.running.values())
        begun.update(job.rule for job in self.failed.values())
        return self.planned - begun

    def time_left(self, now_s: float) -> TimeLeft:
        """Estimate the time left.

        A job is expected to take the mean of the finished ones of its rule; where there are none, as long as a running
        one of that rule will if it spends its budget at the pace so far. Their sum is divided by the mean number of
        jobs that ran at once up to now.
        """
        finished_s = sum(map(sum, self.durations_s.values()))
        busy_s = finished_s + sum(now_s - job.at_s for job in self.running.values())
        waiting = self.waiting()
        known_s, untimed = 0.0, 0
        for rule in waiting.keys() | {job.rule for job in self.running.values()}:
            running = [job for job in self.running.values() if job.rule == rule]
            expected_s = self._expected_s(rule, running, now_s)
            if expected_s is not None:
                known_s += waiting[rule] * expected_s
                known_s += sum(max(expected_s - (now_s - job.at_s), 0.0) for job in running)
            elif rule != DEFAULT_TARGET:
                untimed += waiting[rule] + len(running)
        working_s = 0.0 if self.first_job_s is None else now_s - self.first_job_s
        at_once = busy_s / working_s if working_s > 0 else 0.0
        return TimeLeft(known_s / at_once if at_once else 0.0, untimed)

    def _expected_s(self, rule: str, running: Iterable[Started], now_s: float) -> float | None:
        durations_s = self.durations_s.get(rule)
        if not durations_s:
            standings = [(now_s - job.at_s, standing_of(job)) for job in running]
            durations_s = [elapsed_s / at.share for elapsed_s, at in standings if at is not None and at.share]
        return sum(durations_s) / len(durations_s) if durations_s else None


def journal_of(job: Started) -> Path | None:
    """Return the journal of a job, if its rule has one among its logs."""
    return next((path for path in job.logs if path.name.endswith(SUFFIX)), None)


def standing_of(job: Started) -> Standing | None:
    """Return the progress of a job, if its rule keeps a journal."""
    journal = journal_of(job)
    return None if journal is None else read_standing(journal, job.at_s)
