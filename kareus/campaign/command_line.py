"""Keys of `--config` and the profile, as a user gives them to the workflow on Snakemake's command line."""

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from kareus.artifacts.records import suggest
from kareus.errors import ConfigError
from kareus.workload.config import Workload

OPTION = "--workflow-profile"
NO_PROFILE = "none"
TEXT, LISTS = "campaign", ("overrides", "select")
"""Keys of the workflow's configuration: one text, and lists of texts or one text of them."""
WHERE = "--config or config/workflow.yaml"


def workflow_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the workflow with lists for what may be one text.

    Raises:
        ConfigError: a key is unknown or missing, or has a value of another type.
    """
    keys = (TEXT, *LISTS)
    for key in config:
        if key not in keys:
            raise ConfigError(f"{WHERE}: {key}: unknown key; {_meant(str(key), keys)}.")
    for key in keys:
        if key not in config:
            raise ConfigError(f"{WHERE}: {key}: missing; give it a value.")
    if not isinstance(config[TEXT], str):
        raise ConfigError(f"{WHERE}: {TEXT}={config[TEXT]}: must be the name of a file of config/campaign/.")
    return {TEXT: config[TEXT]} | {key: _texts(key, config[key]) for key in LISTS}


def missing_profile(arguments: Sequence[str], folder: Path) -> str | None:
    """Return the profile that a command line names and that is not there; Snakemake then runs without any, unasked.

    Args:
        arguments: of Snakemake, without its name.
        folder: of the Snakefile.
    """
    given = [text.partition("=")[2] for text in arguments if text.startswith(f"{OPTION}=")]
    given += [text for option, text in itertools.pairwise(arguments) if option == OPTION]
    for name in given:
        places = (Path(name), Path("profiles") / name, folder / "profiles" / name)
        if name != NO_PROFILE and not any(place.exists() for place in places):
            return name
    return None


def _texts(key: str, value: Any) -> list[str]:
    """Return a list of texts, given as one or as one text with spaces between them."""
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ConfigError(f'--config {key}={value}: {error}; write a list, as \'{key}=["...","..."]\'.') from None
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise ConfigError(f'{WHERE}: {key}={value}: must be a text or a list of texts, as \'{key}=["...","..."]\'.')


def _meant(key: str, keys: Sequence[str]) -> str:
    """Return what was meant by an unknown key: one of those, or a key of a workload, which goes into `overrides`."""
    if key.partition(".")[0] in {field.name for field in fields(Workload)}:
        return f"it is a key of workloads, so write 'overrides=[\"{key}=...\"]'"
    return suggest(key, keys)
