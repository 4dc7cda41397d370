"""Parsers of commands: argparse, with errors in one line; and where commands say what they are doing."""

import argparse
import contextlib
import importlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from kareus.artifacts.records import closest
from kareus.cli.commands import EVERY
from kareus.errors import one_line

_MISSING = "the following arguments are required: "
_UNKNOWN = "unrecognized arguments: "
_REWORDED = (
    (r"invalid float value: '(.*)'$", r"'\1' is not a number; write one such as 2.5 or 1e12"),
    (r"invalid int value: '(.*)'$", r"'\1' is not a whole number"),
    (r"expected one argument$", "needs a value, which does not begin with '-'"),
    (r"not allowed with argument ", "cannot be given together with "),
)
"""What argparse says, and what people read."""


def parser_of(words: str) -> argparse.ArgumentParser:
    """Return the parser of a command, such as `select` or `stage search`; imports the command's module."""
    command = EVERY[words]
    purpose = f"{command.purpose[0].upper()}{command.purpose[1:]}."
    parser = _Parser(prog=f"kareus {words}", description=purpose, allow_abbrev=False)
    importlib.import_module(command.module).add_arguments(parser)
    return parser


class _Parser(argparse.ArgumentParser):
    """Speaks once on each machine, where torchrun starts several ranks with the same arguments."""

    def print_help(self, file: Any = None) -> None:
        """Print how the command is used."""
        if _speaks():
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        """Print in one line what is wrong with the arguments, and exit with 2."""
        if _speaks():
            said = self._in_our_words(message)
            print(one_line(f"{self.prog}: {said}; see {self.prog} --help."), file=sys.stderr)  # noqa: T201
        raise SystemExit(2)

    def _in_our_words(self, message: str) -> str:
        """Return a message of argparse as the other refusals are written: the argument, what is wrong, what to do."""
        if message.startswith(_MISSING):
            return f"{message.removeprefix(_MISSING)}: missing"
        if message.startswith(_UNKNOWN):
            word = message.removeprefix(_UNKNOWN).split()[0]
            options = [name for name in self._option_string_actions if name.startswith("--")]
            meant = closest(word, options)
            return f"{word}: unknown argument" + (f"; perhaps you meant {meant}" if meant else "")
        said = re.sub(r"^argument ([^:]+): ", r"\1: ", message)
        for pattern, words in _REWORDED:
            said = re.sub(pattern, words, said)
        return said


def _speaks() -> bool:
    """Whether this is the first process of a machine's, or the only one."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


@contextlib.contextmanager
def steps_beside_answer(module: str) -> Iterator[None]:
    """Write what a module logs of its steps to the error stream, since the other has the answer alone."""
    steps, handler = logging.getLogger(module), logging.StreamHandler(sys.stderr)
    level = steps.level
    steps.addHandler(handler)
    steps.setLevel(steps.getEffectiveLevel())  # whatever is kept quiet meanwhile
    steps.propagate = False
    try:
        yield
    finally:
        steps.propagate = True
        steps.setLevel(level)
        steps.removeHandler(handler)
