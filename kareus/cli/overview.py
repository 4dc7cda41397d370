"""The text of `kareus help`: what to type first, the commands in groups, and exit codes."""

from collections.abc import Mapping

from kareus.cli.commands import BUILT_IN, GROUPS, STAGES

FIRST = """\
usage: kareus COMMAND [ARGUMENTS]

Kareus plans the training of a large model for time and energy. Type first:

  kareus plan gpu=h200 --output look plan a workload in one process, for a first look
  kareus init plans && cd plans      lay out a folder for campaigns; a checkout is one
  snakemake                          there: plan the default workload; the run ends with what it saves
  kareus results                     list what was planned; pages and plans are named
"""
EXIT_CODES = """\
Exit codes: 0 done; 1 `verify` has found something, or the reader of the output is gone; 2 refused,
with one line on standard error that says why and what to do; 3 and 4 `doctor` has found something
limited or broken; 130 interrupted. `snakemake` exits with 1 if a job failed. `kareus help COMMAND`
prints the arguments of a command."""


def overview() -> str:
    """Return the help on all commands."""
    groups = {
        heading: {name: command.purpose for name, command in commands.items()} for heading, commands in GROUPS.items()
    }
    blocks = [_block(heading, purposes) for heading, purposes in (groups | {"Other": BUILT_IN}).items()]
    return "\n\n".join([FIRST.rstrip(), *blocks, EXIT_CODES])


def stages() -> str:
    """Return the help on the stages of the workflow."""
    purposes = {name: stage.purpose for name, stage in STAGES.items()}
    return _block("usage: kareus stage NAME [ARGUMENTS]\n\nStages, as the rules of the workflow call them", purposes)


def _block(heading: str, purposes: Mapping[str, str]) -> str:
    width = max(map(len, (*purposes, *STAGES)))
    return "\n".join([f"{heading}:", *(f"  {name:<{width}}  {purpose}" for name, purpose in purposes.items())])
