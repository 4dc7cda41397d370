"""The state of a run: which jobs wait, run, are finished or have failed, and about how long the rest will take."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kareus.progress.events import Failed, Finished, Interrupted, JobsPlanned, NothingToDo, RunEvent, Started
from kareus.progress.journal import SUFFIX, Standing, read_standing

DEFAULT_TARGET = "all"
"""The rule that only collects; it takes no time, so that its missing estimate does not matter."""


MOST_PACE = 4.0
"""Largest factor by which this run is taken to be slower, or faster, than earlier ones."""


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """An estimate, and what it leaves out."""

    known_s: float
    """Time of the jobs whose duration can be expected."""
    untimed: int
    """Number of jobs of rules of which none has finished, now or in an earlier run."""

    @property
    def is_known(self) -> bool:
        """Whether nothing is left out."""
        return not self.untimed


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
    usual_s: Mapping[str, float] = field(default_factory=dict)
    """Usual durations in earlier runs, by rule."""
    is_interrupted: bool = False
    has_nothing_to_do: bool = False

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
        return bool(self.running or self.failed or self.durations_s or self.is_interrupted)

    @property
    def has_succeeded(self) -> bool:
        """Whether all is there that was asked for."""
        return self.has_nothing_to_do or (self.total > 0 and self.done >= self.total)

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
                if not self.is_interrupted:
                    self.failed[event.job] = event
            case Interrupted():
                self.is_interrupted = True
            case NothingToDo():
                self.has_nothing_to_do = True
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

        A job is expected to take the mean of the finished ones of its rule; where there are none, what the rule usually
        took in earlier runs, at the pace of this one; else as long as a running one of that rule will at its pace so
        far, if it is known how much it measures. Their sum is divided by the mean number of jobs that ran at once up to
        now.
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
            if rule in self.usual_s:
                return self.usual_s[rule] * self._pace()
            standings = [(now_s - job.at_s, standing_of(job)) for job in running]
            # A search, which has rounds, may end long before its budget is spent.
            durations_s = [
                elapsed_s / at.share for elapsed_s, at in standings if at is not None and at.share and at.round is None
            ]
        return sum(durations_s) / len(durations_s) if durations_s else None

    def _pace(self) -> float:
        """Time of this run's jobs as a multiple of their usual one: for other models, or on a busy machine."""
        timed = [(values, self.usual_s[rule]) for rule, values in self.durations_s.items() if rule in self.usual_s]
        took_s = sum(sum(values) for values, _ in timed)
        expected_s = sum(len(values) * usual for values, usual in timed)
        return min(max(took_s / expected_s, 1 / MOST_PACE), MOST_PACE) if took_s and expected_s else 1.0


def journal_of(job: Started) -> Path | None:
    """Return the path of a job's journal; None if its rule writes none."""
    return next((path for path in job.logs if path.name.endswith(SUFFIX)), None)


def standing_of(job: Started) -> Standing | None:
    """Return the progress of a job, if its rule keeps a journal."""
    journal = journal_of(job)
    return None if journal is None else read_standing(journal, job.at_s)
