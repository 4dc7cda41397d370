"""A campaign as `config/campaign/<name>.yaml` gives it, the campaigns that it names, and its table."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from kareus.artifacts.names import check_name
from kareus.artifacts.records import from_plain, suggest
from kareus.artifacts.shipped import is_shipped
from kareus.artifacts.tables import Column, TableSchema
from kareus.errors import ConfigError
from kareus.workload.compose import compose_file
from kareus.workload.overrides import key_of, options

GROUP = "campaign"
OVERRIDES_FOLLOW = "+"
"""Separator of a campaign's name and its overrides in the name of its results folder; no campaign's name has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """Parts that are planned together; a text has Hydra overrides, such as `model=qwen3-1.7b microbatch_size=8,16`."""

    workloads: tuple[str, ...] = ()
    """Overrides of `config/config.yaml`; an empty text overrides nothing."""
    fleets: tuple[str, ...] = ()
    """Overrides of `config/emulation.yaml`."""
    sweeps: tuple[str, ...] = ()
    """Overrides of `config/sweep.yaml`."""
    question: str = ""
    """What the adviser is asked, as texts `key=value`; empty where it is asked nothing."""
    campaigns: tuple[str, ...] = ()
    """Names of other campaigns, all of whose parts belong to this one."""

    def __post_init__(self) -> None:
        if not (self.workloads or self.fleets or self.sweeps or self.question or self.campaigns):
            raise ConfigError("nothing to plan; give workloads, fleets, sweeps, a question or campaigns.")


def read_parts(name: str, config_dir: Path) -> dict[str, Campaign]:
    """Read the campaign `name` and those that it names, each once, those without anything of their own left out.

    Raises:
        ConfigError: a campaign is not known, its file cannot be used, or it names itself.
    """
    parts = dict[str, Campaign]()
    _collect(name, (), parts, config_dir)
    return {name: part for name, part in parts.items() if part.workloads or part.fleets or part.sweeps or part.question}


def _collect(name: str, above: tuple[str, ...], parts: dict[str, Campaign], config_dir: Path) -> None:
    if name in above:
        raise ConfigError(
            f"campaign {name}: names itself ({' > '.join((*above, name))}); take it out of {above[-1]}.yaml."
        )
    if name not in parts:
        parts[name] = _read(name, config_dir)
        for other in parts[name].campaigns:
            _collect(other, (*above, name), parts, config_dir)


def _read(name: str, config_dir: Path) -> Campaign:
    check_name(name, "campaign")
    if OVERRIDES_FOLLOW in name:
        raise ConfigError(
            f"campaign {name}: its name must not contain '{OVERRIDES_FOLLOW}', which separates name and overrides in "
            "the name of a results folder; rename its file."
        )
    names = options(GROUP, config_dir)
    if name not in names:
        raise ConfigError(
            f"campaign {name}: not known; {suggest(name, names)}; or {_where_to_write(name, config_dir)}."
        )
    try:
        return from_plain(Campaign, compose_file(f"{GROUP}/{name}", config_dir).get(GROUP))
    except ConfigError as error:
        raise ConfigError(f"{config_dir}/{GROUP}/{name}.yaml: {error}") from error


def _where_to_write(name: str, config_dir: Path) -> str:
    """What to do for a campaign that is not there yet."""
    if is_shipped(config_dir):
        return f"lay out a folder with kareus init FOLDER and write its config/{GROUP}/{name}.yaml"
    return f"write {config_dir}/{GROUP}/{name}.yaml"


def merged(text: str, overrides: Sequence[str]) -> list[str]:
    """The overrides of `text` and, in the place of those of the same key, `overrides`; others follow.

    Places are kept since the order is part of what a job is run with: a member that overrides narrow down to is the
    same job.

    Raises:
        ConfigError: a quote in `text` does not end.
    """
    try:
        given = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{text}: {error}; write overrides as on a command line: 'key=value key=value'.") from error
    replaced = {key_of(override) for override in overrides}
    merged_overrides = [*(override for override in given if key_of(override) not in replaced), *overrides]
    places = [key_of(override) for override in (*given, *overrides)]
    return sorted(merged_overrides, key=lambda override: places.index(key_of(override)))


CAMPAIGN = TableSchema(
    name="campaign",
    version=1,
    meaning="What belongs to a campaign, planned or refused, in the order of its files.",
    columns=(
        Column("part", pl.String, "campaign that lists it: this one, or one that it names"),
        Column("kind", pl.String, "`workload`, `fleet` or `sweep` (of the profiler)"),
        Column("workload", pl.String, "readable name; its folder under `results/`"),
        Column(
            "name",
            pl.String,
            "of a fleet: its folder below the workload's `emulate/`; of a sweep: below its `profile/`",
            nullable=True,
        ),
        Column("refusal", pl.String, "why it cannot run", nullable=True),
        Column("overrides", pl.List(pl.String), "overrides that give it"),
        Column("model", pl.String, "name of the model"),
        Column("gpu", pl.String, "name of the GPU"),
        Column("parallelism", pl.String, "degrees, such as `pp2-cp2-tp4`; those of 1 are left out, but for pp and tp"),
        Column("microbatch_size", pl.Int64, "sequences of a microbatch", positive=True),
        Column("sequence_length", pl.Int64, "tokens of a sequence", positive=True),
        Column("num_microbatches", pl.Int64, "of one pipeline in one iteration; of a fleet its own", positive=True),
        Column("gpus", pl.Int64, "GPUs of the whole job", positive=True),
    ),
    key=("part", "kind", "workload", "name"),
)
