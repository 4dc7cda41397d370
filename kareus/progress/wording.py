"""The run in words: durations, what a job is at, why one failed."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from kareus.artifacts.files import read_bytes
from kareus.progress.events import Failed
from kareus.progress.history import ELSEWHERE_S
from kareus.progress.journal import SUFFIX, Standing
from kareus.progress.run_state import RunState, TimeLeft

_MOST_LINES_OF_A_LOG = 10
_PLACE = re.compile(r"^(\w*Exception|WorkflowError)( in (file|rule) .*)?:$|^Error:$")
_TRACE = re.compile(r'^\s*(File ".*|Traceback:|Wildcards:|Traceback \(most recent call last\):)')


SECONDS_PER_MINUTE, SECONDS_PER_HOUR = 60, 3600


def duration(seconds: float) -> str:
    """`0:07`, `12:34` or `1:02:03`."""
    minutes, whole_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole_s:02}" if hours else f"{minutes}:{whole_s:02}"


def jobs(number: int) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} job{'' if number == 1 else 's'}"


def work(counts: Mapping[str, int], usual_s: Mapping[str, float]) -> str:
    """Return in words how long jobs take one after the other, by earlier runs where a rule has any.

    Args:
        counts: of jobs, by rule.
        usual_s: durations in earlier runs of this folder, by rule.

    Example:
        >>> work({"search_partition": 132, "all": 1}, {})
        'about 1:32 minutes on one quiet core, less on more (simulated testbed; no run here yet to tell)'
    """
    seconds = sum(count * usual_s.get(rule, ELSEWHERE_S.get(rule, 0.0)) for rule, count in counts.items())
    source = "by earlier runs here" if usual_s else "simulated testbed; no run here yet to tell"
    whole_s = round(seconds)
    unit = "hours" if whole_s >= SECONDS_PER_HOUR else "minutes"
    took = f"{whole_s} seconds" if whole_s < SECONDS_PER_MINUTE else f"{duration(seconds)} {unit}"
    return f"about {took} on one quiet core, less on more ({source})"


def time_left(left: TimeLeft) -> str:
    """Return the estimate in words, after a semicolon; nothing where some jobs cannot be estimated."""
    return f"; about {duration(left.known_s)} left" if left.is_known else ""


def tally(state: RunState, now_s: float) -> str:
    """Return how much of the run is done, in one line."""
    failed = f", {len(state.failed)} failed" if state.failed else ""
    elapsed = duration(now_s - state.began_s)
    return f"{state.done} of {jobs(state.total)}{failed} in {elapsed}{time_left(state.time_left(now_s))}"


def ending(state: RunState, now_s: float) -> str:
    """Return how the run ended, in one line."""
    elapsed = duration(now_s - state.began_s)
    done = f"{state.done} of {jobs(state.total)} done in {elapsed}"
    if state.is_interrupted:
        return f"interrupted: {done}; run it again to go on from there."
    if state.done >= state.total:
        return f"{done}."
    failed = f", {len(state.failed)} failed" if state.failed else ""
    return f"{done}{failed}; run it again to go on from there."


def standing(at: Standing) -> str:
    """Return the progress of a job that measures, in words."""
    parts = [f"round {at.round}"] if at.round is not None else []
    parts.append(f"{at.measured} of {at.space:,} measured")
    if at.looked:
        parts.append(f"{at.looked} time-only")
    if at.hypervolume is not None:
        parts.append(f"hypervolume {at.hypervolume:.4f}")
    return ", ".join(parts)


def why(failed: Failed) -> list[str]:
    """Return why a job failed: the one line of its command, or the end of its log, and where that is."""
    return _reason(failed) + [f"log: {path}" for path in _logs(failed)]


def is_repeated(failed: Failed, state: RunState) -> bool:
    """Return whether another job has failed for the very same reason, such as a machine without a GPU."""
    reason = [_without_command(line) for line in _reason(failed)]
    others = (other for other in state.failed.values() if other is not failed)
    return bool(reason) and any([_without_command(line) for line in _reason(other)] == reason for other in others)


def _reason(failed: Failed) -> list[str]:
    lines = [line for path in _logs(failed) for line in _lines(path)]
    complaint = [line for line in lines if line.startswith("kareus ")][-1:]
    said = [failed.said] if failed.said else []
    return said + (complaint or lines[-_MOST_LINES_OF_A_LOG:])


def _logs(failed: Failed) -> list[Path]:
    return [path for path in failed.logs if not path.name.endswith(SUFFIX)]


def _without_command(line: str) -> str:
    return re.sub(r"^kareus (stage )?[\w-]+: ", "", line)


def message(text: str) -> str:
    """Return Snakemake's text of an exception, without the place in the workflow where it was raised."""
    if text.startswith("Traceback"):  # of what a user has typed, Snakemake raises these errors as they are
        last = text.strip().splitlines()[-1]
        missing = re.fullmatch(r"FileNotFoundError: \[Errno 2\] (.*): '(.*)'", last)
        if missing:
            return f"{missing[2]}: {missing[1]}; check the path."
        if "Config entries have to be defined as name=value pairs" in last:
            return f"--config: {last.rpartition(': ')[2].rstrip(')')} is not KEY=VALUE; write it as select=fastest."
        if "Config entry must start with a valid identifier" in last:
            return "--config: a key that is none; allowed: campaign, overrides, select."
    said: list[str] = []
    for line in text.splitlines():
        if _TRACE.match(line):
            break
        if line.strip() and not _PLACE.match(line.strip()):
            said.append(line.strip())
    return " ".join(said) or text.strip()


def _lines(path: Path) -> Iterable[str]:
    try:
        return [line for line in read_bytes(path).decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return []
