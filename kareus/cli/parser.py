"""Parsers of commands: argparse, with errors in one line; and where commands say what they are doing."""

import argparse
import contextlib
import importlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kareus.artifacts.records import closest, suggest
from kareus.cli.commands import EVERY
from kareus.errors import one_line

_MISSING = "the following arguments are required: "
_UNKNOWN = "unrecognized arguments: "
_REWORDED = (
    (r"^(--tokens: )invalid float value: '(.*)'$", r"\1'\2' is not a number; write one such as 1e12"),
    (r"invalid float value: '(.*)'$", r"'\1' is not a number; write one such as 2.5"),
    (r"invalid int value: '(.*)'$", r"'\1' is not a whole number"),
    (r"expected one argument$", "needs a value, which does not begin with '-'"),
    (r"not allowed with argument ", "cannot be given together with "),
)
"""What argparse says, and what people read."""
_KEYS = "KEY=VALUE"
"""Has the name of arguments that are overrides."""
_ASKED = {
    "gpu": "gpu=NAME, such as gpu=h100-sxm5-80gb, says which GPU it is, and {} how many there are",
    "from": "kareus from FILE prints what to give here of a file",
}
"""Options that people try where there are none, and what says it; `{}` is how the number of GPUs is given."""


def parser_of(words: str) -> argparse.ArgumentParser:
    """Return the parser of a command, such as `select` or `stage search`; imports the command's module."""
    command = EVERY[words]
    purpose = f"{command.purpose[0].upper()}{command.purpose[1:]}."
    parser = _Parser(prog=f"kareus {words}", description=purpose, allow_abbrev=False)
    importlib.import_module(command.module).add_arguments(parser)
    return parser


class _Parser(argparse.ArgumentParser):
    """Speaks once on each machine, where torchrun starts several ranks with the same arguments."""

    given: Sequence[str] = ()
    """Words that are parsed."""

    def parse_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, and keep the words for what is said of them."""
        self.given = [*(args or ())]
        return super().parse_intermixed_args(args, namespace)

    def print_help(self, file: Any = None) -> None:
        """Print how the command is used."""
        if _speaks():
            super().print_help(file)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is none of the choices of an argument, and name the one that is probably meant."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"'{value}': not known; {suggest(value, action.choices)}")

    def error(self, message: str) -> NoReturn:
        """Print in one line what is wrong with the arguments, and exit with 2."""
        if _speaks():
            said = self._in_our_words(message)
            print(one_line(f"{self.prog}: {said}; see {self.prog} --help."), file=sys.stderr)  # noqa: T201
        raise SystemExit(2)

    def _in_our_words(self, message: str) -> str:
        """Return a message of argparse as the other refusals are written: the argument, what is wrong, what to do."""
        if message.startswith(_MISSING):
            unknown = [word for word in self.given if word.startswith("--") and not self._takes(word)]
            return self._unknown(unknown[0]) if unknown else f"{message.removeprefix(_MISSING)}: missing"
        if message.startswith(_UNKNOWN):
            return self._unknown(message.removeprefix(_UNKNOWN).split()[0])
        said = re.sub(r"^argument ([^:]+): ", r"\1: ", message)
        for pattern, words in _REWORDED:
            said = re.sub(pattern, words, said)
        return said

    def _takes(self, word: str) -> bool:
        """Whether a word is an option, or ends them."""
        return word.partition("=")[0] in self._option_string_actions or word == "--"

    def _unknown(self, word: str) -> str:
        """Return that no option is called so, and the option or the override that is probably meant."""
        if Path(word).is_dir() and any(each != word and Path(each).is_dir() for each in self.given):
            return f"{word}: one of several folders; name one"
        name, equals, value = word.partition("=")
        key = name.lstrip("-").replace("-", "_")
        meant = closest(name, [option for option in self._option_string_actions if option.startswith("--")])
        hint = f"perhaps you meant {meant}" if meant else ""
        if any(_KEYS in str(action.metavar) for action in self._actions):
            from kareus.workload.overrides import key_named  # noqa: PLC0415 - Hydra, which is slow to import

            after = [*self.given[self.given.index(word) + 1 :], ""][0] if word in self.given else ""
            value = value if equals else after if not after.startswith("-") else ""
            if key in _ASKED:
                hint = _ASKED[key].format("--gpus N" if self._takes("--gpus") else "gpus=N")
            elif not self._takes(f"--{key.replace('_', '-')}") and (path := key_named(key)):
                hint = f"it is given without dashes: {path}={value or 'VALUE'}"
        return f"{word}: unknown argument{'; ' if hint else ''}{hint}"


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
