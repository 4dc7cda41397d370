"""Completion of commands, options, overrides and selectors in a shell, by argcomplete.

`kareus completion bash` prints what a shell has to run once; from then on the shell starts `kareus` with the line so
far in its environment, and argcomplete answers from the parser of the command that is being typed.
"""

import argparse
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from kareus.artifacts.records import suggest
from kareus.artifacts.shipped import config_folder
from kareus.cli.commands import BUILT_IN, COMMANDS, COMPLETION, HELP, STAGE, STAGES, Command
from kareus.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")


def shell_code(words: Sequence[str]) -> str:
    """Return what makes a shell complete `kareus`; `words` name the shell.

    Raises:
        ConfigError: they name none, several or an unknown one.
    """
    if len(words) != 1 or words[0] not in SHELLS:
        raise ConfigError(f"shell '{' '.join(words)}': not known; {suggest(' '.join(words), SHELLS)}.")
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - only completion needs it

    return str(shellcode(["kareus"], shell=words[0]))


def complete(line: str) -> None:
    """Print the completions of a command line for the shell that asked, and exit."""
    import argcomplete  # noqa: PLC0415 - as above

    argcomplete.autocomplete(completing_parser(line.split()), always_complete_options="long")


def completing_parser(words: list[str]) -> argparse.ArgumentParser:
    """Return a parser of all commands; only those among `words` have their arguments, since modules take time."""
    parser = argparse.ArgumentParser(prog="kareus")
    commands = parser.add_subparsers()
    _add(commands, COMMANDS, words)
    stages = commands.add_parser(STAGE, help=BUILT_IN[STAGE]).add_subparsers()
    _add(stages, STAGES, words if STAGE in words else [])
    commands.add_parser(HELP, help=BUILT_IN[HELP]).add_argument("command", choices=[*COMMANDS, STAGE])
    commands.add_parser(COMPLETION, help=BUILT_IN[COMPLETION]).add_argument("shell", choices=SHELLS)
    return parser


def overrides(prefix: str, config_dir: Path | None = None) -> Iterator[str]:
    """Yield completions of a Hydra override: groups, and once there is one their options."""
    group, equals, _ = prefix.partition("=")
    for folder in sorted(path for path in (config_dir or config_folder()).glob("*") if path.is_dir()):
        if equals and folder.name == group:
            yield from (f"{group}={option.stem}" for option in sorted(folder.glob("*.yaml")))
        elif not equals and folder.name.startswith(prefix) and folder.name != "campaign":
            yield f"{folder.name}="


def selectors() -> list[str]:
    """Return completions of a selector: all goals, those with a limit or a price up to it."""
    from kareus.plans.selectors import PLAIN, Goal  # noqa: PLC0415 - other completions need not wait for it

    return [goal if goal in PLAIN else f"{goal}=" for goal in Goal]


def _add(
    parsers: "argparse._SubParsersAction[argparse.ArgumentParser]", of: dict[str, Command], words: list[str]
) -> None:
    for name, command in of.items():
        parser = parsers.add_parser(name, help=command.purpose, allow_abbrev=False)
        if name in words:
            importlib.import_module(command.module).add_arguments(parser)
            _attach(parser)


def _attach(parser: argparse.ArgumentParser) -> None:
    """Name the completions of arguments that are neither files nor choices."""
    for action in parser._actions:
        if action.metavar == "KEY=VALUE":
            action.completer = lambda prefix, **_: list(overrides(prefix))  # type: ignore[attr-defined]
        elif action.dest in ("selector", "select"):
            action.completer = lambda **_: selectors()  # type: ignore[attr-defined]
