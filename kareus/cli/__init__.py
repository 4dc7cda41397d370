"""The command line: one command for each stage, imported only when it is called.

Whatever a user can act on ends in one line on standard error and exit code 2.
"""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

import kareus
from kareus.artifacts.records import suggest
from kareus.errors import KareusError, one_line, printable_lines, refused_by_system

COMMANDS = {
    "resolve": ("kareus.workload.stage", "expand overrides into resolved workloads"),
    "campaign": ("kareus.campaign.stage", "expand a campaign into what belongs to it"),
    "partition": ("kareus.partition.stage", "extract the operator graph of a block and its partitions"),
    "schedule": ("kareus.schedule.stage", "enumerate the search space of every partition"),
    "profile": ("kareus.profile.stage", "measure components and whole instructions"),
    "sweep": ("kareus.sweep.stage", "measure a partition over and over under windows and cooldowns"),
    "search": ("kareus.search.stage", "search the candidates of one partition"),
    "frontier": ("kareus.frontier.stage", "compose microbatch frontiers"),
    "pipeline": ("kareus.pipeline.stage", "solve iteration frontiers"),
    "select": ("kareus.plans.stage", "choose a point of the frontier and write its plan"),
    "check-plan": ("kareus.plans.check_stage", "validate a plan file"),
    "export": ("kareus.export.stage", "write a plan in the format of another tool"),
    "train": ("kareus.training.stage", "train a workload, by a plan or without"),
    "end-to-end": ("kareus.training.end_to_end_stage", "run the fastest plan of every method"),
    "emulate": ("kareus.emulate.stage", "emulate fleets of pipelines: scaling, stragglers, power caps, hours"),
    "validate": ("kareus.fidelity.stage", "predict what a reference file gives, and say how far off that is"),
    "fit": ("kareus.fidelity.fit_stage", "fit a GPU's coefficients to reference data"),
    "clocks": ("kareus.device.stage", "show the GPUs' clocks, or restore those that a killed run left locked"),
    "report": ("kareus.report.workload.stage", "write the summary and the page"),
    "report-fleets": ("kareus.report.fleet.stage", "write the summary and the page of emulated fleets"),
    "report-campaign": ("kareus.report.campaign.stage", "write the report on a campaign: a folder to hand on"),
    "verify": ("kareus.verify.stage", "recheck everything in a folder, and remove what is damaged"),
    "results": ("kareus.report.listing", "print the summaries and where everything is"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview())  # noqa: T201 - the command line speaks to people
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"kareus {kareus.__version__}")  # noqa: T201
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        print(one_line(f"kareus: unknown command '{name}'; {suggest(name, COMMANDS)}."), file=sys.stderr)  # noqa: T201
        return 2
    return _run(name, rest)


def _run(name: str, argv: Sequence[str]) -> int:
    speaker = _Speaker(sys.stdout)
    speaker.setFormatter(_Printable("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[speaker])
    module, purpose = COMMANDS[name]
    stage = importlib.import_module(module)
    parser = _Parser(prog=f"kareus {name}", description=purpose, allow_abbrev=False)
    stage.add_arguments(parser)
    try:
        code: int | None = stage.run(parser.parse_intermixed_args(argv))
    except KareusError as error:
        print(f"kareus {name}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"kareus {name}: {refused_by_system(error)}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print(f"kareus {name}: interrupted; run it again to go on.", file=sys.stderr)  # noqa: T201
        return 130
    return code or 0


class _Parser(argparse.ArgumentParser):
    """Says what there is to say once on each machine, where torchrun starts several ranks with the same arguments."""

    def print_help(self, file: Any = None) -> None:
        """Say how the command is used."""
        if _speaks():
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments, with the usage, and exit with 2."""
        if not _speaks():
            raise SystemExit(2)
        super().error(one_line(message))


def _speaks() -> bool:
    """Whether this is the first process of a machine's, or the only one."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


class _Speaker(logging.StreamHandler[TextIO]):
    """Writes log lines to a stream, and raises where it is closed, which ends the command."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Raise errors of writing to the caller that logged, instead of printing a traceback for each line."""
        raise  # noqa: PLE0704 - called where the exception is being handled


class _Printable(logging.Formatter):
    """Escapes in what stages log, line by line, what would do something to a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message."""
        return printable_lines(super().format(record))


def _overview() -> str:
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {purpose}" for name, (_, purpose) in COMMANDS.items()]
    return "\n".join(["usage: kareus COMMAND [--help] ...", "", *lines])
