"""Composing: Hydra merges the groups of `config/` with overrides into a `Workload` for each combination of a sweep."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kareus.artifacts.records import content_hash, from_plain, to_plain
from kareus.errors import ConfigError
from kareus.workload.config import Workload
from kareus.workload.huggingface import read_model
from kareus.workload.overrides import Setting, expand, groups, is_file

PRIMARY = "config"

Merged = tuple[dict[str, str], dict[str, Any]]
"""The chosen option of every group, and all values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """One combination of a sweep."""

    overrides: tuple[str, ...]
    """As the user would write it alone."""
    workload: Workload
    options: dict[str, str]
    """The chosen option of every group."""
    changes: dict[str, Any]
    """Values, by dotted key, that differ from what the chosen options and the primary file say."""


def compose(overrides: Sequence[str], config_dir: Path) -> list[Composition]:
    """Expand `overrides` and compose each combination, in the order of the sweep.

    Args:
        overrides: Hydra overrides and sweeps; `model=path/to/config.json` reads a Hugging Face model.
        config_dir: folder of the groups and of the primary file `config.yaml`.

    Raises:
        ConfigError: an override or a file under `config_dir` that cannot be used, in one line.
    """
    if not (config_dir / f"{PRIMARY}.yaml").is_file():
        raise ConfigError(
            f"{config_dir}: not a configuration folder (no {PRIMARY}.yaml); run from the top of the repository, or "
            "pass --config-dir."
        )
    combinations = expand(overrides, config_dir)

    @cache  # combinations share what they are compared with, and composing takes 0.07 s
    def merged(overrides: tuple[str, ...]) -> Merged:
        return _merged(overrides, config_dir)

    with _hydra(config_dir), _stored_models(combinations) as stored:
        return [_composed(combination, stored, merged) for combination in combinations]


def _composed(
    combination: Sequence[Setting], stored: Mapping[str, str], merged: Callable[[tuple[str, ...]], Merged]
) -> Composition:
    chosen, changed = list[str](), list[str]()
    for setting in combination:
        if setting.key not in groups():
            changed.append(setting.text)
        elif is_file(setting.key, setting.value):
            chosen.append(f"model={stored[setting.value]}")
        else:
            chosen.append(setting.text)
    options, values = merged((*chosen, *changed))
    workload = from_plain(Workload, values)
    return Composition(
        overrides=tuple(setting.text for setting in combination),
        workload=workload,
        options=options,
        changes=_differences(merged(tuple(chosen))[1], to_plain(workload)),
    )


def _merged(overrides: tuple[str, ...], config_dir: Path) -> Merged:
    """Chosen options and merged values. Every error of Hydra's is about a file, since overrides are checked by now."""
    try:
        config = hydra_compose(PRIMARY, overrides=list(overrides), return_hydra_config=True)
        options: dict[str, str] = dict(config.hydra.runtime.choices)
        values = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        plain: Any = OmegaConf.to_container(values, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{config_dir}: cannot be composed: {reason}") from error
    return {group: options[group] for group in groups()}, plain


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves of `after`, by dotted key, that `before` does not hold."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    return {key: value for key, value in new.items() if key not in old or old[key] != value}


def _leaves(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@contextmanager
def _hydra(config_dir: Path) -> Iterator[None]:
    with initialize_config_dir(version_base="1.3", config_dir=os.path.abspath(config_dir)):  # noqa: PTH100 - no symlinks resolved
        yield


@contextmanager
def _stored_models(combinations: Sequence[Sequence[Setting]]) -> Iterator[dict[str, str]]:
    """Offer the Hugging Face models of `combinations` to Hydra as options of the group `model`, by path."""
    settings = {setting for combination in combinations for setting in combination if setting.key == "model"}
    paths = sorted({setting.value for setting in settings if is_file("model", setting.value)})
    models = {path: read_model(Path(path).expanduser()) for path in paths}
    names = {path: f"{model.name}-{content_hash(model)[:8]}" for path, model in models.items()}
    store = ConfigStore.instance()
    for path, model in models.items():
        store.store(group="model", name=names[path], node=to_plain(model))
    try:
        yield names
    finally:
        for name in set(names.values()):
            del store.repo["model"][f"{name}.yaml"]
