"""The command line: a command for each thing that people do, a stage for each that only the workflow does.

Modules of commands are imported only when they are called. Whatever a user can act on ends in one line on standard
error, the notes of the error below it, and exit code 2.
"""

import importlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import TextIO

import kareus
from kareus.artifacts.records import suggest
from kareus.cli.commands import BUILT_IN, COMMANDS, EVERY, GO_ON, STAGE, STAGES
from kareus.errors import ConfigError, KareusError, one_line, printable_lines, refused_by_system
from kareus.processes import STANDARD_STREAMS, collect_rarely

__all__ = ["COMMANDS", "EVERY", "STAGES", "main", "words_of"]

NO_READER, REFUSED, INTERRUPTED = 1, 2, 130
"""Exit codes beside 0; a command may have others of its own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    _open_streams()
    if argv is None:  # the process is the command's
        collect_rarely()
    argv = sys.argv[1:] if argv is None else list(argv)
    called = f"kareus {words_of(argv)}".rstrip()
    try:
        try:
            code = _run(argv)
        finally:  # after `--help` as well, which ends by itself
            sys.stdout.flush()  # here, where a reader that is gone is no traceback
    except KareusError as error:
        return _refused(f"{called}: {error}", getattr(error, "__notes__", ()))
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        _drop_unwritten()
        return NO_READER
    except OSError as error:
        _drop_unwritten()
        return _refused(f"{called}: {refused_by_system(error)}")
    except KeyboardInterrupt as interrupt:  # a command may say what is kept
        again = f"run it again {'to go on' if words_of(argv) in GO_ON else 'from the start'}"
        print(f"{called}: interrupted; {str(interrupt) or again}.", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    return code


def _drop_unwritten() -> None:
    """Drop what standard output still has and cannot take, of which Python would complain when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    """Have standard streams that take any text, also where they are closed (`>&-`) or only take ASCII.

    A closed descriptor would be that of the next file that is opened, into which other libraries then print.
    """
    for number in STANDARD_STREAMS:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(argv: Sequence[str]) -> int:
    """Run what the words ask for.

    Raises:
        ConfigError: there is no such command.
    """
    if "_ARGCOMPLETE" in os.environ:
        from kareus.cli.completion import complete  # noqa: PLC0415 - only a shell that asks for completions needs it

        complete(os.environ.get("COMP_LINE", ""))
    match argv:
        case [] | ["-h" | "--help"] | ["help"]:
            from kareus.cli.overview import overview  # noqa: PLC0415 - commands do without

            print(overview())  # noqa: T201 - the command line speaks to people
            return 0 if argv else REFUSED
        case ["--version"]:
            print(f"kareus {kareus.__version__}")  # noqa: T201
            return 0
        case ["stage"] | ["stage", "-h" | "--help"] | ["help", "stage"]:
            from kareus.cli.overview import stages  # noqa: PLC0415 - as above

            print(stages())  # noqa: T201
            return 0 if len(argv) > 1 else REFUSED
        case ["help", *words]:
            return _run([*words, "--help"])
        case ["completion", *words]:
            from kareus.cli.completion import shell_code  # noqa: PLC0415 - as above

            print(shell_code(words))  # noqa: T201
            return 0
    called = words_of(argv)
    if not called:
        raise ConfigError(_unknown(argv))
    return _command(called, argv[len(called.split()) :])


def words_of(argv: Sequence[str]) -> str:
    """Return the words that name a command, such as `select` or `stage search`; no words where there is none."""
    match argv:
        case ["stage", name, *_] if name in STAGES:
            return f"{STAGE} {name}"
        case [name, *_] if name in COMMANDS or (name in BUILT_IN and name != STAGE):
            return name
    return ""


def _unknown(argv: Sequence[str]) -> str:
    """Return why no command is called so."""
    match argv:
        case ["stage", name, *_]:
            return f"unknown stage '{name}'; {suggest(name, STAGES)}."
        case [name, *_] if name in STAGES:
            return f"'{name}' is a stage of the workflow; run snakemake, or write kareus {STAGE} {name}."
        case [name, *_]:
            return f"unknown command '{name}'; {suggest(name, (*COMMANDS, *BUILT_IN))}; see kareus help."
    raise AssertionError(argv)


def _command(words: str, arguments: Sequence[str]) -> int:
    """Parse the arguments of a command, and run it."""
    from kareus.cli.parser import parser_of  # noqa: PLC0415 - the overview does without

    speaker = _Speaker(sys.stdout)
    speaker.setFormatter(_Printable("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[speaker])
    # Zeus imports the libraries of all makers of GPUs, and warns on each start that those of AMD are not there.
    logging.getLogger("zeus.device.gpu.amd").setLevel(logging.ERROR)
    parsed = parser_of(words).parse_intermixed_args(arguments)
    code: int | None = importlib.import_module(EVERY[words].module).run(parsed)
    return code or 0


def _refused(line: str, notes: Sequence[str] = ()) -> int:
    """Print why, and what is said below it, each in a line."""
    for text in (line, *(f"  {note}" for note in notes)):
        print(one_line(text), file=sys.stderr)  # noqa: T201
    return REFUSED


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
