"""The question that the adviser answers, read from a command line, from Python or from the texts of a campaign."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kareus.adviser.goals import Goals, goals_of
from kareus.adviser.layouts import Constraints, Layout
from kareus.artifacts.records import closest, suggest
from kareus.errors import ConfigError
from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import MOST_GPUS, Sharding
from kareus.model.training_options import check_options
from kareus.pipeline.config import PipelineSchedule
from kareus.software.trainers import ObeyingTrainer, trainer_by_name, trainer_of
from kareus.workload.combinations import formats_of
from kareus.workload.compose import compose
from kareus.workload.config import Workload

GOALS = (
    "least", "tokens", "deadline", "max_power", "max_node_power", "max_gpu_power", "price", "gpu_price", "carbon",
)  # fmt: skip
KEYS = ("gpus", "global_batch", "sequence_length", "trainer", *GOALS)
"""Options of `kareus advise` as keys; all other keys are overrides and constraints of layouts."""
MOST_BATCH = 10_000_000
"""Sequences of an iteration."""
MOST_GPU_COUNTS = 16
"""Numbers of GPUs that one question may compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is trained on which GPUs, and what is wanted of it."""

    base: Workload
    """Model, GPU and testbed; its layout means nothing."""
    overrides: tuple[str, ...]
    """Hydra overrides that give `base`, the layout apart."""
    gpus: tuple[int, ...]
    """Numbers of GPUs to compare."""
    global_batch: int
    """Sequences of an iteration."""
    constraints: Constraints
    """What layouts may be."""
    goals: Goals
    """What is wanted of a plan."""
    config_dir: Path
    """Folder of the Hydra groups."""
    trainer: ObeyingTrainer
    """What runs the plan: layouts are ranked by what it can run of theirs."""
    job: Layout | None = None
    """Layout of the job whose files were given, with which answers are compared."""
    files: tuple[Path, ...] = ()
    """Those files, by which commands name the job."""
    given: tuple[str, ...] = ()
    """Overrides beside these."""
    unfit: tuple[Layout, ...] = ()
    """Layouts, with the blocks on their stages, that ran out of memory when they were measured."""
    timed: tuple[Layout, ...] = ()
    """The same of those whose time was measured."""
    precisions: tuple[Precision, ...] = ()
    """Number formats to compare, that of `base` first; empty where one was asked for."""


def _whole(text: str) -> int:
    return int(text)


def _switch(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_PARTS: dict[str, tuple[Callable[[str], Any], str]] = {
    **dict.fromkeys(
        ("dp", "pp", "tp", "cp", "ep", "shards", "chunks", "microbatch_size"), (_whole, "whole numbers, such as 1,2")
    ),
    "recomputation": (Recomputation, ", ".join(Recomputation)),
    "sharding": (Sharding, ", ".join(Sharding)),
    "sequence_parallel": (_switch, "true, false"),
    "schedule": (PipelineSchedule, ", ".join(PipelineSchedule)),
}
"""How the values of each constraint are read, and what they may be."""
EVERY_FORMAT = tuple(Precision)
"""What `precision=all` asks for: of these, those that the GPU has."""
SYNONYMS = {
    **{
        f"parallelism.{name}": name
        for name in ("dp", "pp", "tp", "cp", "ep", "shards", "sharding", "sequence_parallel")
    },
    "pipeline.chunks": "chunks",
    "pipeline.schedule": "schedule",
    "pipeline": "schedule",
    "recompute": "recomputation",
    "microbatch": "microbatch_size",
}
"""Other names of the constraints: the keys of a workload, and short ones."""
FOLLOWS = {
    "num_microbatches": "follows from --global-batch, dp and microbatch_size",
    "parallelism": "is what is asked for; give tp=8 or the like to narrow it",
    "parallelism.layers_per_stage": "is searched for the fastest layouts",
    "sequence_length": "is given by --sequence-length",
}
"""Keys of a workload that cannot be given here, and why."""


def ask(
    overrides: Sequence[str],
    *,
    gpus: str | int | Sequence[int],
    global_batch: int,
    sequence_length: int | None = None,
    goals: Goals | None = None,
    config_dir: Path,
    trainer: str | None = None,
    job: Layout | None = None,
    files: Sequence[Path] = (),
    given: Sequence[str] = (),
) -> Question:
    """Return a question whose values have been checked.

    Args:
        overrides: `model=...`, `gpu=...` and other overrides of a workload, and constraints such as `tp=8`, `pp=2,4`.
        gpus: a number of GPUs, several of them, or a range such as `16..256`, which stands for its powers of two.
        global_batch: sequences of an iteration.
        sequence_length: tokens of a sequence; None as configured.
        goals: what is wanted of a plan; None: the fastest.
        config_dir: Hydra groups.
        trainer: name of what runs the plan (`kareus.software.trainers`); None: that of the software.
        job: layout of the job whose files were given.
        files: these files, for commands that go on from the answer.
        given: overrides beside them.

    Raises:
        ConfigError: a value that cannot be used, in one line.
    """
    chosen = None if trainer is None else trainer_by_name(trainer)
    constraints, others = split_overrides(overrides)
    formats, others = _split_formats(others)
    if sequence_length is not None:
        others = [*others, f"sequence_length={sequence_length}"]
    if not 1 <= global_batch <= MOST_BATCH:
        raise ConfigError(f"--global-batch {global_batch}: must be from 1 to {MOST_BATCH:,} sequences.")
    counts = gpu_counts(gpus)
    composition, *more = compose(others, config_dir)
    if more:
        instead = "give one value for each key, and ask once for each"
        raise ConfigError(f"{' '.join(others)}: is {1 + len(more)} workloads; {instead}.")
    base = composition.workload
    check_options(base.training)
    if formats == EVERY_FORMAT:
        formats = formats_of(composition.workload.gpu)
    return Question(
        base=replace(base, training=replace(base.training, batch_ramp=())),  # layouts are of whole batches
        overrides=tuple(others),
        gpus=counts,
        global_batch=global_batch,
        constraints=constraints,
        goals=goals or Goals(),
        config_dir=config_dir,
        trainer=chosen or trainer_of(composition.workload.software.name),
        job=job,
        files=tuple(files),
        given=tuple(given),
        precisions=formats if len(formats) > 1 else (),
    )


def _split_formats(overrides: Sequence[str]) -> tuple[tuple[Precision, ...], list[str]]:
    """Return the number formats that are to be compared, and overrides with the first of them alone.

    Raises:
        ConfigError: one does not exist, or they are given twice.
    """
    given = [text for text in overrides if text.startswith("precision=") and ("," in text or text.endswith("=all"))]
    if not given:
        return (), list(overrides)
    (text, *more), others = given, [override for override in overrides if override not in given]
    if more or any(override.startswith("precision=") for override in others):
        raise ConfigError(f"{text}: 'precision' is given twice; write its values once: precision=bf16,fp8.")
    if text == "precision=all":
        return EVERY_FORMAT, [*others, f"precision={EVERY_FORMAT[0]}"]
    formats = _values(text, "precision", text.partition("=")[2])
    return formats, [*others, f"precision={formats[0]}"]


def split_overrides(overrides: Sequence[str]) -> tuple[Constraints, list[str]]:
    """Split overrides into constraints of layouts and what describes the workload otherwise.

    Raises:
        ConfigError: a constraint has a value that it cannot have, or is given twice.
    """
    given: dict[str, tuple[Any, ...]] = {}
    others: list[str] = []
    for text in overrides:
        key, _, value = text.partition("=")
        name = SYNONYMS.get(key, key)
        if key in FOLLOWS:
            raise ConfigError(f"{text}: {key} {FOLLOWS[key]}; leave it out.")
        if name not in _PARTS or not value:
            others.append(_meant(text, key))
            continue
        if name in given:
            raise ConfigError(f"{text}: '{name}' is given twice; write its values once: {name}=a,b.")
        given[name] = _values(text, name, value)
    return Constraints(**given), others


def _meant(text: str, key: str) -> str:
    """Return an override that is no constraint.

    Raises:
        ConfigError: it is one with a slip, such as `tpp=8`.
    """
    meant = closest(key, _PARTS)
    if "=" in text and "." not in key and meant is not None and key not in ("pipeline",):
        raise ConfigError(f"{text}: unknown key; perhaps you meant {meant}=.")
    return text


def _values(text: str, name: str, value: str) -> tuple[Any, ...]:
    read, allowed = {**_PARTS, "precision": (Precision, ", ".join(Precision))}[name]
    values = []
    for part in value.strip("[]").split(","):
        try:
            part_value = read(part.strip())
        except (ValueError, KeyError):
            hint = suggest(part, allowed.split(", ")) if read is not _whole else f"give {allowed}"
            raise ConfigError(f"{text}: '{part}' is no value of {name}; {hint}.") from None
        if read is _whole and part_value < 1:
            raise ConfigError(f"{text}: {name} must be 1 or more.")
        values.append(part_value)
    return tuple(dict.fromkeys(values))


def gpu_counts(gpus: str | int | Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of GPUs to compare, rising.

    Raises:
        ConfigError: it is not one, a list of them, or a range such as `16..256`.
    """
    if isinstance(gpus, str):
        spread = re.fullmatch(r"(\d{1,7})\.\.(\d{1,7})", gpus.strip())
        if spread:
            return _checked(gpus, _doublings(gpus, int(spread[1]), int(spread[2])))
        parts = gpus.split(",")
        if not all(re.fullmatch(r"\d{1,7}", part.strip()) for part in parts):
            raise ConfigError(f"--gpus {gpus}: not understood; write a number, 16,64, or a range such as 16..256.")
        return _checked(gpus, [int(part) for part in parts])
    return _checked(gpus, [gpus] if isinstance(gpus, int) else list(gpus))


def _doublings(text: str, least: int, most: int) -> list[int]:
    """Return `least`, doubled as long as it is at most `most`, and `most` itself."""
    if not 1 <= least <= most:
        raise ConfigError(
            f"--gpus {text}: a range goes from its least to its most, such as {max(1, min(least, most))}.."
            f"{max(1, least, most)}."
        )
    steps = math.floor(math.log2(most / least) + 1e-9)
    return sorted({*(least * 2**n for n in range(steps + 1)), most})


def _checked(text: Any, counts: Sequence[int]) -> tuple[int, ...]:
    for count in counts:
        if not 1 <= count <= MOST_GPUS:
            raise ConfigError(f"--gpus {text}: must be from 1 to {MOST_GPUS:,} GPUs.")
    if not counts or len(set(counts)) > MOST_GPU_COUNTS:
        raise ConfigError(f"--gpus {text}: gives {len(set(counts))} numbers; give from 1 to {MOST_GPU_COUNTS}.")
    return tuple(sorted(set(counts)))


def question_of(texts: Sequence[str], config_dir: Path) -> Question:
    """Return the question of a campaign, which its stage takes as texts: `model=llama3.1-8b`, `gpus=8`, `tp=1,2`.

    Raises:
        ConfigError: a key is missing or given twice, or a value cannot be used.
    """
    given: dict[str, str] = {}
    overrides = list[str]()
    for text in texts:
        key, _, value = text.partition("=")
        if key not in KEYS:
            overrides.append(text)
        elif key in given:
            raise ConfigError(f"{text}: {key} is given twice; give it once.")
        else:
            given[key] = value
    for key in ("gpus", "global_batch"):
        if not given.get(key):
            raise ConfigError(f"question: {key} is missing; give it, such as {key}=64.")
    goals: dict[str, str] = {key: value for key, value in given.items() if key in GOALS}
    tokens, price = goals.pop("tokens", None), goals.pop("price", None)
    length = given.get("sequence_length")
    return ask(
        overrides,
        gpus=given["gpus"],
        global_batch=_number("global_batch", given["global_batch"]),
        sequence_length=None if length is None else _number("sequence_length", length),
        goals=goals_of(tokens=None if tokens is None else _tokens(tokens), price_of_energy=price, **goals),
        config_dir=config_dir,
        trainer=given.get("trainer"),
    )


def _number(key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{key}={value}: must be a whole number.") from None


def _tokens(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"tokens={value}: must be a number, such as 1e11.") from None
