"""Arguments of all commands that describe workloads: overrides, files that give some, and the folder of the groups."""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kareus.artifacts.shipped import config_folder
from kareus.errors import ConfigError
from kareus.workload.overrides import check_given_once, key_of, replaced
from kareus.workload.words import GPUS

if TYPE_CHECKING:
    from kareus.interchange.reading import Training

SWEEPS = (
    "Hydra overrides and sweeps, such as gpu=h200 software=megatron-core precision=fp8 microbatch_size=8,16 (default: "
    "the default workload)"
)
"""What the overrides of most commands are."""
MODEL = "model."
"""Begins overrides that complete a model whose sizes a file gives."""
STAGES, BLOCKS = "parallelism.pp", "parallelism.layers_per_stage"
"""Keys of stages, and of their blocks, which follow from them in a trainer."""


def add_overrides(parser: argparse.ArgumentParser, text: str = SWEEPS) -> None:
    """Declare `overrides` and `--config-dir`; `text` is the help of the overrides."""
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=text)
    add_config_dir(parser)


def add_from(parser: argparse.ArgumentParser) -> None:
    """Declare `--from` and `--trainer`."""
    text = "file of your trainer, or workload file, that gives overrides (see kareus help from); give it again for more"
    parser.add_argument("--from", dest="files", action="append", type=Path, metavar="FILE", help=text)
    parser.add_argument("--trainer", metavar="NAME", help="whose files they are (default: as their keys tell)")


def sorted_inputs(inputs: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the files among positional arguments, and the overrides: what has a `=` and is no file that is there."""
    overrides = [text for text in inputs if "=" in text and not Path(text).exists()]
    return [Path(text) for text in inputs if text not in overrides], overrides


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The workloads that the arguments of a command describe."""

    overrides: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """What of its files is lost or missing, as lines for people."""
    without_gpu: str = ""
    """What to say where nothing runs on the default GPU, since neither files nor overrides name one; else nothing."""


def described(arguments: argparse.Namespace) -> Described:
    """Return the overrides of a command: those of its files, and in their place those that are given.

    Raises:
        ConfigError: a file cannot be read or names no model, or `--trainer` is given without a file.
    """
    given: list[str] = arguments.overrides
    if not arguments.files:
        if arguments.trainer is not None:
            raise ConfigError(f"--trainer {arguments.trainer}: tells whose files --from gives; give --from FILE.")
        return Described(overrides=tuple(given))
    training, overrides = brought(arguments.files, arguments.trainer, given)
    check_has_model(arguments.files, training, overrides)
    has_gpu = any(key_of(text) == "gpu" for text in overrides)
    place = " ".join(map(str, arguments.files))
    asked = "does not say which GPU it is, and the default one cannot run it; give gpu=NAME, such as gpu=h200."
    return Described(
        overrides=tuple(overrides),
        left_out=(
            *left_out(arguments.files, training, given, arguments.config_dir),
            *blocks_lost(arguments.files, training.overrides, given),
        ),
        without_gpu="" if has_gpu else f"{place}: {asked}",
    )


def left_out(files: Sequence[Path], training: "Training", given: Sequence[str], config_dir: Path) -> tuple[str, ...]:
    """Return what of files is lost, and what neither they nor the keys of `given` say, as lines for people."""
    from kareus.interchange.reading import NO_GPU  # noqa: PLC0415 - most commands are given no file
    from kareus.workload.compose import usual_option  # noqa: PLC0415 - Hydra, which is slow to import

    taken = f"which GPU it is: {usual_option('gpu', config_dir)} is taken; give gpu=NAME, such as gpu=h200"
    lines = [
        *(feature.lost_words for feature in training.lost),
        *(f"not said: {taken if text == NO_GPU else text}" for text in unsaid(training, given)),
    ]
    return tuple(f"{' '.join(map(str, files))}: {line}" for line in lines)


def unsaid(training: "Training", given: Sequence[str]) -> list[str]:
    """Return what files do not say and what no override of `given` says either."""
    keys = {key_of(text) for text in given}
    return [missing.words for missing in training.missing if keys.isdisjoint(missing.keys)]


def blocks_lost(files: Sequence[Path], overrides: Sequence[str], given: Sequence[str]) -> Iterator[str]:
    """Yield a line for people where `overrides` of files give blocks to stages of which `given` decides the number.

    What else a trainer derives from the number stays as files have it.
    """
    of_stages = next((text for text in overrides if key_of(text) == BLOCKS), None)
    are_given = any(key_of(text) == BLOCKS for text in given)
    decided = " ".join(text for text in given if key_of(text) in {STAGES, BLOCKS.partition(".")[0]})
    is_swept = decided.startswith(STAGES) and not given_stages(given)
    place, alone = " ".join(map(str, files)), f"give {STAGES}=N for all that the trainer derives from it"
    if of_stages is not None and not are_given and of_stages not in replaced(overrides, _undecided(overrides, given)):
        yield f"{place}: {of_stages} is dropped; blocks are balanced with {decided}; {alone}, or {BLOCKS}=[...]"
    elif is_swept and not are_given:
        yield f"{place}: {decided}: all else is as for the file's number; {alone}"


def check_has_model(files: Sequence[Path], training: "Training", overrides: Sequence[str]) -> None:
    """Check that files, or overrides beside them, say which model is trained.

    Raises:
        ConfigError: they do not; that of the default workload would be another.
    """
    if not any(key_of(text) == "model" for text in overrides):
        (why,) = [missing.words for missing in training.missing if "model" in missing.keys]
        raise ConfigError(f"{' '.join(map(str, files))}: does not say {why}.")


def brought(files: list[Path], trainer: str | None, given: list[str]) -> tuple["Training", list[str]]:
    """Return what files say, and the overrides of the workload that they and `given` describe.

    Raises:
        ConfigError: a file cannot be read.
    """
    from kareus.interchange.reading import read_training  # noqa: PLC0415 - most commands are given no file
    from kareus.interchange.syntax import scalar  # noqa: PLC0415 - as above

    check_given_once(given)
    fields: dict[str, Any] = {}
    if not any(key_of(text) == "model" for text in given):
        fields = {key_of(text): scalar(text.partition("=")[2]) for text in given if text.startswith(MODEL)}
    fields |= {key: scalar(text.partition("=")[2]) for text in given if (key := key_of(text)) == GPUS}
    fields |= given_stages(given)
    training = read_training(files, trainer, fields)
    has_sizes = any(text.startswith("model={") for text in training.overrides)
    kept = [text for text in given if not (has_sizes and text.startswith(MODEL) and key_of(text) in fields)]
    return training, replaced(training.overrides, _undecided(training.overrides, kept))


def _undecided(overrides: Sequence[str], given: Sequence[str]) -> list[str]:
    """Return what is given but for the number of stages that files' overrides have, with blocks that follow from it."""
    return [text for text in given if key_of(text) != STAGES or text not in overrides]


def given_stages(given: Sequence[str]) -> dict[str, int]:
    """Return the number of stages that overrides give, by its key: a trainer derives the blocks of each from it.

    Nothing where they give none, or several, of which each has other blocks.

    Example:
        >>> given_stages(["parallelism.pp=2"]), given_stages(["parallelism.pp=2,4"])
        ({'parallelism.pp': 2}, {})
    """
    numbers = [text.partition("=")[2] for text in given if key_of(text) == STAGES]
    return {STAGES: int(numbers[0])} if len(numbers) == 1 and re.fullmatch("[1-9][0-9]{0,3}", numbers[0]) else {}


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    """Declare `--config-dir`."""
    parser.add_argument(
        "--config-dir",
        type=Path,
        default=config_folder(),
        help="Hydra groups (default: config/ of the current folder, else those that come with Kareus)",
    )
