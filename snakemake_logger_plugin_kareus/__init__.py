"""Snakemake's logger plugin `kareus`: hands Snakemake's events to `kareus.progress`.

Chosen in `profiles/default`. What a run does is shown by it; what others ask Snakemake for (`--verbose`,
`--printshellcmds`) is left to Snakemake.
"""

import atexit
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from logging import ERROR, WARNING, LogRecord
from pathlib import Path
from types import FrameType, TracebackType

from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase, OutputSettingsLoggerInterface

from kareus.progress import events
from kareus.progress.history import HISTORY
from kareus.progress.shows import DryRun, JsonLines, Lines, Show
from kareus.progress.watch import Watch
from kareus.progress.wording import message

_CHATTER = re.compile(
    r"Building DAG of jobs|Using shell|Conda environments: |Singularity containers: |Select jobs to execute"
    r"|Complete log\(s\)|Elapsed time|Config file .* is extended|Assuming unrestricted|Exiting because a job"
    r"|Shutting down|Group jobs: |Removing output files|Touching output file|Execute \d+ jobs"
    r"|Restored previous version|Cannot restore|SLURM run ID|Job \d+ has been submitted|Cleaning up SLURM"
    r"|WorkflowError:\s+At least one job|RuleException:\s+CalledProcessError"
    r"|Reasons:|Rules with provenance triggered jobs|This was a dry-run|The code used to generate"
    r"|Some jobs were triggered by|Job stats:"
)
"""What Snakemake says in passing, and what we say in other words; anything else it says is shown."""
_INTERRUPTED = re.compile(r"(Terminating processes|Cancelling snakemake) on user request")
_NOTHING = re.compile(r"Nothing to be done")
INTERRUPTED = 130
"""Exit code of a run that the user has interrupted, as of any command that Ctrl-C ends; Snakemake's own is 1."""


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """Options of the command line: `--logger-kareus-show`."""

    show: str = field(
        default="auto",
        metadata={
            "help": "How a run is shown: live (a terminal), lines, json (one object a line, on standard output), "
            "snakemake (as Snakemake would), or auto: live on a terminal, otherwise lines.",
            "choices": ["auto", "live", "lines", "json", "snakemake"],
            "env_var": True,
            "required": False,
        },
    )


class LogHandler(LogHandlerBase):
    """What Snakemake's events go to."""

    def __post_init__(self) -> None:
        """Choose how to show; nothing is shown yet."""
        show = _show(self.common_settings, self.settings.show if self.settings else "auto")
        sys.excepthook = _hook
        self._watch = None if show is None else Watch(show, HISTORY)
        if self._watch is not None and threading.current_thread() is threading.main_thread():
            _tell_interruptions(self._watch)

    def emit(self, record: LogRecord) -> None:
        """Hand on what is worth it."""
        if self._watch is None:
            return
        try:
            for event in events_of(record):
                if isinstance(event, events.Interrupted):
                    atexit.register(_end_interrupted, self._watch)
                self._watch.tell(event)
        except Exception:  # noqa: BLE001 - as every handler of logging does: a run does not end because of its display
            self.handleError(record)

    def close(self) -> None:
        """The run is over."""
        if self._watch is not None:
            self._watch.close()
        super().close()

    @property
    def writes_to_stream(self) -> bool:
        """Whether Snakemake keeps its own display away."""
        return self._watch is not None

    @property
    def writes_to_file(self) -> bool:
        """Never; Snakemake's own log file is written as ever."""
        return False

    @property
    def has_filter(self) -> bool:
        """Yes: what is chatter is decided here."""
        return True

    @property
    def has_formatter(self) -> bool:
        """Yes: events are formatted here."""
        return True

    @property
    def needs_rulegraph(self) -> bool:
        """No."""
        return False


def events_of(record: LogRecord) -> Iterator[events.RunEvent]:
    """What a record of Snakemake's says."""
    said = record.__dict__
    match said.get("event"):
        case LogEvent.RUN_INFO:
            yield events.JobsPlanned(jobs={rule: count for rule, count in said["stats"].items() if rule != "total"})
        case LogEvent.JOB_INFO:
            yield events.Started(
                at_s=record.created,
                job=said["jobid"],
                rule=said["rule_name"],
                what=said["rule_msg"] or f"rule {said['rule_name']}",
                wildcards={name: str(value) for name, value in (said["wildcards"] or {}).items()},
                logs=tuple(map(Path, said["log"])),
            )
        case LogEvent.JOB_FINISHED:
            yield events.Finished(at_s=record.created, job=said["job_id"])
        case LogEvent.JOB_ERROR:
            logs, what = tuple(map(Path, said["log"])), " ".join((said["rule_msg"] or "").split())
            yield events.Failed(at_s=record.created, job=said["jobid"], rule=said["rule_name"], said=what, logs=logs)
        case None | LogEvent.ERROR:
            text = record.getMessage()
            if _INTERRUPTED.match(text):
                yield events.Interrupted()
            elif _NOTHING.match(text):
                yield events.NothingToDo()
            elif record.msg and not _CHATTER.match(text.strip()):
                level = "error" if record.levelno >= ERROR else "warning" if record.levelno >= WARNING else "info"
                yield events.Said(level=level, text=message(text))


def _tell_interruptions(watch: Watch) -> None:
    """Tell the watch of Ctrl-C at once: jobs get it too, and may end before Snakemake says so."""
    before = signal.getsignal(signal.SIGINT)

    def interrupted(number: int, frame: FrameType | None) -> None:
        watch.interrupt()
        if callable(before):
            before(number, frame)

    if callable(before):  # not where it is ignored, as of a command in the background
        signal.signal(signal.SIGINT, interrupted)


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught interruption, which comes while the workflow is read, in one line."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted before anything was run", file=sys.stderr)  # noqa: T201 - no logger is left
    else:
        sys.__excepthook__(kind, error, trace)


def _end_interrupted(watch: Watch) -> None:
    """End the process with the exit code of an interruption; called at its end."""
    watch.close()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(INTERRUPTED)


def _show(common: OutputSettingsLoggerInterface, wanted: str) -> Show | None:
    """How to show, or None to leave it to Snakemake."""
    if wanted == "snakemake" or common.verbose or common.debug_dag or common.printshellcmds:
        return None
    if common.dryrun:
        return DryRun(sys.stderr)
    if set(common.quiet or ()) & {Quietness.ALL, Quietness.PROGRESS, Quietness.RULES}:
        return Show(sys.stderr)
    if wanted == "json":
        return JsonLines(sys.stdout)
    if wanted == "live" or (wanted == "auto" and sys.stderr.isatty()):
        from kareus.progress.live import LiveView  # noqa: PLC0415 - only terminals need it

        return LiveView(sys.stderr, colour=not common.nocolor)
    return Lines(sys.stderr)
