"""Command `from`: what the files that a job is trained with mean here, and a workload file of it.

A workload file is a campaign of one workload, so that `--from` reads it, and `snakemake` too where it is in
`config/campaign/`.
"""

import argparse
import logging
import shlex
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from kareus.artifacts.configuration import parse_yaml
from kareus.artifacts.files import read_text, write_text
from kareus.artifacts.outputs import OutputKind, add_force, check_files
from kareus.errors import ArtifactError, ConfigError, printable
from kareus.interchange.reading import WORKLOADS, Training
from kareus.workload.arguments import add_config_dir, blocks_lost, brought, check_has_model, sorted_inputs, unsaid
from kareus.workload.overrides import key_of, options
from kareus.workload.resolve import resolve

logger = logging.getLogger(__name__)

GPU = "gpu"
"""Group of what a trainer's files do not say."""
WIDTH, NARROWEST = 110, 40
"""Columns of a list of keys, where nothing says how many there are, and the fewest."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the files, overrides that replace what they say, and the workload file."""
    text = (
        "files of one trainer: a script with arguments of Megatron-LM, or files (YAML, JSON, TOML) of NeMo, "
        "Megatron-Bridge, torchtitan, nanotron, LLM Foundry, DeepSpeed, Hugging Face's Trainer or axolotl; and "
        "overrides, such as gpu=h200"
    )
    parser.add_argument("inputs", nargs="+", metavar="FILE|KEY=VALUE", help=text)
    parser.add_argument("--trainer", metavar="NAME", help="whose files they are (default: as their keys tell)")
    add_config_dir(parser)
    parser.add_argument("--output", type=Path, metavar="FILE", help="workload file to write, for --from")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Read, tell, resolve, and write where there is a file for it."""
    files, given = sorted_inputs(arguments.inputs)
    if not files:
        raise ConfigError(f"{' '.join(given)}: no file; give one of your trainer's, such as train.sh.")
    if arguments.output is not None:
        check_files(arguments, [(arguments.output, OutputKind("a workload file", is_workload_file))], files)
    training, overrides = brought(files, arguments.trainer, given)
    for line in (*lines(files, training, overrides, given), *blocks_lost(files, training.overrides, given)):
        logger.info("%s", printable(line))
    check_has_model(files, training, overrides)
    if arguments.output is not None:
        write_text(arguments.output, workload_file(files, training, overrides))
        needed = "" if names_gpu(overrides) else f" {GPU}=NAME"
        command = f"kareus predict --from {shlex.quote(str(arguments.output))}{needed}"
        logger.info("%s: written; %s", arguments.output, command)
    for line in verdicts(files, overrides, arguments.config_dir):
        logger.info("%s", line)


def verdicts(files: Sequence[Path], overrides: Sequence[str], config_dir: Path) -> Iterator[str]:
    """Yield whether what is trained can run; where no GPU is named, on which: the default one may be another's."""
    if names_gpu(overrides):
        for resolved in resolve(overrides, config_dir):
            yield f"as it is refused: {resolved.refusal}" if resolved.refusal else f"workload: {resolved.name}"
        return
    names = options(GPU, config_dir)
    on_each = resolve([*overrides, f"{GPU}={','.join(names)}"], config_dir)
    fitting = [
        text.partition("=")[2]
        for resolved in on_each
        for text in resolved.overrides
        if not resolved.refusal and names_gpu([text])
    ]
    yield (
        f"GPU: not named in {' '.join(map(str, files))}; add {GPU}=NAME to the command, "
        + (f"which as it is fits {', '.join(fitting)}" if fitting else f"of {', '.join(names)}")
    )
    if not fitting:
        largest = max(on_each, key=lambda resolved: resolved.composed.gpu.memory_gib)
        yield f"as it is refused, on {largest.composed.gpu.name} too: {largest.refusal}"


def names_gpu(overrides: Sequence[str]) -> bool:
    """Return whether overrides choose a GPU."""
    return any(key_of(text) == GPU for text in overrides)


def lines(files: Sequence[Path], training: Training, overrides: Sequence[str], given: Sequence[str]) -> Iterator[str]:
    """Yield what files say, a line for each key that matters; `given` are the overrides beside them."""
    yield f"{' '.join(map(str, files))}: {training.says}"
    if training.understood:
        yield "understood:"
        width = max(len(term.key) for term in training.understood)
        yield from (f"  {term.key:<{width}}  {term.shown} -> {term.words}" for term in training.understood)
    if training.lost:
        yield "matters, and cannot be said:"
        yield from (f"  {term.lost_words}" for term in training.lost)
    if missing := unsaid(training, given):
        yield "not said:"
        yield from (f"  {text}" for text in missing)
    for heading, names in (
        ("given more than once, and the last counts", training.repeated),
        ("could not be followed", training.unknown),
        ("not known to Kareus", training.unread),
        ("matters, and is assumed so, or said by another", training.assumed),
        ("does not matter", training.ignored),
    ):
        if names:
            columns = max(shutil.get_terminal_size((WIDTH, 0)).columns, NARROWEST)
            yield f"{heading}:"
            yield from textwrap.wrap(", ".join(names), columns, initial_indent="  ", subsequent_indent="  ")
    yield f"overrides: {' '.join(shlex.quote(text) for text in overrides)}"


def workload_file(files: Sequence[Path], training: Training, overrides: Sequence[str]) -> str:
    """Return the text of a workload file."""
    names = " ".join(printable(path.name) for path in files)
    head = [
        f"# What {names} trains ({training.says}), by `kareus from`. Use it with",
        "# --from FILE, or as config/campaign/NAME.yaml with snakemake --config campaign=NAME. Left out of it:",
    ]
    notes = [f"# - {printable(term.lost_words)}" for term in training.lost] or ["# - nothing that matters"]
    words = [f"    {shlex.quote(text)}" for text in overrides]
    return "\n".join([*head, *notes, f"{WORKLOADS}:", "  - >-", *words]) + "\n"


def is_workload_file(path: Path) -> bool:
    """Return whether a file is one of `workload_file`, or a campaign."""
    try:
        content = parse_yaml(read_text(path))
    except (ArtifactError, ConfigError):
        return False
    return isinstance(content, dict) and WORKLOADS in content
