"""Composing: Hydra merges the groups of `config/` with overrides into a `Workload` for each combination of a sweep."""

import copy
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import hydra
import omegaconf
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from kareus.artifacts.cache import keep, kept
from kareus.artifacts.configuration import DUMPER, check_aliases, parse_yaml
from kareus.artifacts.names import check_name
from kareus.artifacts.records import content_hash, differences, from_plain, to_plain
from kareus.artifacts.shipped import config_folder
from kareus.errors import ConfigError
from kareus.model.config import Model
from kareus.model.parallelism import HYBRID
from kareus.software.record import GROUP, SET_BY_SOFTWARE, USUAL_SOFTWARE, Software, gpu_values
from kareus.workload.config import Workload, run_by
from kareus.workload.documents import KEY as DOCUMENT_LENGTHS
from kareus.workload.documents import read_lengths
from kareus.workload.huggingface import read_architecture
from kareus.workload.overrides import Setting, expand, groups, is_file, is_record, may_be_null
from kareus.workload.words import DEGREES, DP, MICROBATCH, MICROBATCHES, SHARDING, WORDS, followed, shared_in_node

PRIMARY = "config"
USUAL = f"gpu.{USUAL_SOFTWARE}"
"""Key of the software that is planned for on a GPU."""
NODE = "gpu.gpus_per_node"
ENGINE = "kareus"
"""Option of Kareus' own engine."""
KEYS_OF_SOFTWARE = frozenset(
    {"gpu.launches_ahead", "gpu.job_gpus", *(f"gpu.coefficients.{name}" for name in SET_BY_SOFTWARE)}
)
"""Keys of the GPU that its software sets."""
logger = logging.getLogger(__name__)

FROM_ELSEWHERE = (b"searchpath", b"${oc.", b"pkg://", b"file://")
"""What files have that read more than the folder: then what was made of them is not kept for other processes."""
KIND = "compositions"

Merger = Callable[[tuple[str, ...]], tuple[dict[str, str], DictConfig]]
"""Composes chosen options, as `_merged` does."""

KEPT = 256
"""Number of Hydra's results that are kept, of each kind."""


@dataclass(frozen=True, slots=True)
class Content:
    """All files that Hydra may read in a folder, by which what it made of them is kept."""

    digest: str
    is_whole: bool
    """Whether they read nothing from elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedWorkload:
    """One workload of a sweep, with the overrides that give it alone."""

    overrides: tuple[str, ...]
    """Overrides that a user would write for this combination alone."""
    workload: Workload
    options: dict[str, str]
    """The chosen option of every group."""
    changes: dict[str, Any]
    """Values, by dotted key, that differ from those of the chosen options and the primary file."""


def compose(
    overrides: Sequence[str], config_dir: Path | None, record: type[Workload] = Workload, primary: str = PRIMARY
) -> list[ComposedWorkload]:
    """Expand `overrides` and compose each combination, in the order of the sweep.

    Args:
        overrides: Hydra overrides and sweeps; `model=path/to/config.json` reads a Hugging Face model.
        config_dir: folder of the groups and of the primary file; None: that of `config_folder`.
        record: what is composed: a workload, or what extends it.
        primary: name of the primary file, which has the default of everything.

    Raises:
        ConfigError: an override or a file under `config_dir` that cannot be used, in one line.
    """
    config_dir = config_dir or config_folder()
    if not (config_dir / f"{primary}.yaml").is_file():
        raise ConfigError(
            f"{config_dir}: not a configuration folder (no {primary}.yaml); pass another --config-dir, or none for the "
            "configuration that comes with Kareus."
        )
    combinations = expand(overrides, config_dir, record)
    content = _content(config_dir)
    merged, usual = partial(_merged, content, primary, groups(record)), partial(_usual_software, content, config_dir)
    folder = os.path.abspath(config_dir)  # noqa: PTH100 - Hydra wants an absolute path, symbolic links may stay
    with (
        initialize_config_dir(version_base="1.3", config_dir=folder),
        _stored_models(combinations) as stored,
        _one_line(config_dir),
    ):
        return [_named(combination, stored, merged, usual, record, len(combinations)) for combination in combinations]


def usual_option(group: str, config_dir: Path) -> str:
    """Return the option of a group that the primary file of a folder chooses; what is wrong with it `compose` says."""
    try:
        chosen = parse_yaml((config_dir / f"{PRIMARY}.yaml").read_text(encoding="utf-8"))["defaults"]
        return next(str(entry[group]) for entry in chosen if group in entry)
    except (OSError, UnicodeDecodeError, ConfigError, LookupError, TypeError, StopIteration):
        return "the default one"


def with_engine(overrides: Sequence[str]) -> list[str]:
    """Return overrides of what benchmarks launch, with nothing of another trainer, unless they name software."""
    named = any(text.partition("=")[0] == GROUP for text in overrides)
    return [*overrides] if named else [*overrides, f"{GROUP}={ENGINE}"]


def compose_file(name: str, config_dir: Path) -> dict[str, Any]:
    """Compose one file of a group by itself, such as `campaign/paper`; returns its values below the group's name.

    Raises:
        ConfigError: the file cannot be used, in one line.
    """
    folder = os.path.abspath(config_dir)  # noqa: PTH100 - as above
    with initialize_config_dir(version_base="1.3", config_dir=folder), _one_line(config_dir):
        return copy.deepcopy(_file(_content(config_dir), name))


@lru_cache(maxsize=KEPT)
def _file(content: Content, name: str) -> dict[str, Any]:
    """The values of a file of a group, of the folder that Hydra has been given; change only copies."""
    values = OmegaConf.to_container(hydra_compose(name), resolve=True, throw_on_missing=True)
    return {str(key): value for key, value in values.items()} if isinstance(values, dict) else {}


def _content(config_dir: Path) -> Content:
    """Return the content of all files that Hydra may read in a folder."""
    digest, is_whole = hashlib.sha256(), True
    for path in _files(config_dir):
        if path.exists() and not path.is_file():  # Hydra would wait for a pipe
            raise ConfigError(f"{path}: no regular file; replace it by a YAML file.")
        try:
            content = path.read_bytes()
        except OSError:  # Hydra says so, if it needs the file
            continue
        _check_aliases(path, content)
        digest.update(f"{path.relative_to(config_dir)}\0{len(content)}\0".encode(errors="surrogateescape") + content)
        is_whole = is_whole and not any(sign in content for sign in FROM_ELSEWHERE)
    return Content(digest.hexdigest(), is_whole)


def _files(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the YAML files of a folder, those behind links to folders too; `above` has the real ones that it is in."""
    here = os.path.realpath(folder)
    try:
        paths = [] if here in above else sorted(folder.iterdir())
    except OSError:  # Hydra says so, if it needs the folder
        return
    for path in paths:
        if path.is_dir():
            yield from _files(path, above | {here})
        elif path.suffix == ".yaml":
            yield path


def _check_aliases(path: Path, content: bytes) -> None:
    try:
        check_aliases(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; write the values themselves.") from error
    except yaml.YAMLError:  # Hydra says so, if it needs the file
        pass


def _named(
    combination: Sequence[Setting],
    stored: Mapping[str, str],
    merged: Merger,
    usual: Callable[[str], str | None],
    record: type[Workload],
    combinations: int,
) -> ComposedWorkload:
    """Compose a combination; errors name it where there are several, since each may be of another GPU."""
    try:
        return _composed(combination, stored, merged, usual, record)
    except ConfigError as error:
        if combinations == 1:
            raise
        raise type(error)(f"{' '.join(setting.text for setting in combination)}: {error}") from error


def _composed(
    combination: Sequence[Setting],
    stored: Mapping[str, str],
    merged: Merger,
    usual: Callable[[str], str | None],
    record: type[Workload],
) -> ComposedWorkload:
    choices, values = list[str](), dict[str, Any]()
    for setting in combination:
        if setting.key not in groups(record):
            values[setting.key] = setting.value
        elif is_file(setting.key, setting.value) or is_record(setting.key, setting.value):
            choices.append(f"model={stored[setting.text]}")
        else:
            choices.append(setting.text)
    if isinstance(path := values.get(DOCUMENT_LENGTHS), str):
        values[DOCUMENT_LENGTHS] = read_lengths(Path(path).expanduser())
    options, before = _with_usual_software(merged, usual, choices)
    values = _without_words(values, before)
    after = copy.deepcopy(before)
    for key, value in values.items():
        OmegaConf.update(after, key, value, force_add=True)  # as Hydra does; that the key exists is known by now
    try:
        workload = from_plain(
            record, _with_software(OmegaConf.to_container(after, resolve=True, throw_on_missing=True))
        )
    except InterpolationKeyError as error:
        text = next((setting.text for setting in combination if "${" in str(setting.value)), None)
        if text is None:
            raise
        raise ConfigError(f"{text}: there is no such key to take the value of; write the value itself.") from error
    except ConfigError as error:
        _check_parents(values, before, options, record, str(error))
        raise
    unchanged = _with_software(OmegaConf.to_container(before, resolve=True)) if values else {}
    changes = differences(unchanged, to_plain(workload)) if values else {}
    return ComposedWorkload(
        overrides=tuple(setting.text for setting in combination),
        workload=run_by(workload, workload.software),
        options=options,
        changes={key: value for key, value in changes.items() if key not in KEYS_OF_SOFTWARE},
    )


def _without_words(values: Mapping[str, Any], before: DictConfig) -> dict[str, Any]:
    """Return values by key with what words stand for in their place; `before` has those that are not overridden."""
    words = {word: values[word] for word in WORDS if word in values}
    values = {key: value for key, value in values.items() if key not in words}
    usual = {key: OmegaConf.select(before, key) for key in (DP, *DEGREES, MICROBATCH, MICROBATCHES)}
    if words:
        values |= followed(words, values, usual)
    if values.get(SHARDING) == HYBRID:
        node = values.get(NODE, OmegaConf.select(before, NODE))
        values |= shared_in_node(values, usual, node if isinstance(node, int) else 1)
    return values


def _with_usual_software(
    merged: Merger, usual: Callable[[str], str | None], choices: Sequence[str]
) -> tuple[dict[str, str], DictConfig]:
    """Compose options; where no software is chosen, with that which the GPU's file names.

    Real GPUs run programs of Kareus' engine, so that they are measured for it.
    """
    chosen = dict(choice.split("=", 1) for choice in choices)
    guess = usual(chosen["gpu"]) if "gpu" in chosen and GROUP not in chosen else None  # mostly spares a composition
    options, values = merged((*choices, f"{GROUP}={guess}") if guess else tuple(choices))
    if GROUP in chosen:
        return options, values
    wanted = ENGINE if OmegaConf.select(values, "testbed.cuda") is not None else OmegaConf.select(values, USUAL)
    if wanted in (None, options[GROUP]):
        return options, values
    return merged((*choices, f"{GROUP}={wanted}"))


@lru_cache(maxsize=KEPT)
def _usual_software(
    content: Content,  # of the folder
    config_dir: Path,
    gpu: str,
) -> str | None:
    """Return the software that the file of a GPU names, as it is written there; Hydra says what is wrong with it."""
    try:
        values = parse_yaml((config_dir / "gpu" / f"{gpu}.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ConfigError):
        return None
    return values.get(USUAL_SOFTWARE) if isinstance(values, dict) else None


def _with_software(plain: Any) -> Any:
    """Return plain values whose GPU has the numbers of their software, as its record wants them."""
    gpu, software = plain.get("gpu"), plain.get(GROUP)
    if not isinstance(gpu, dict) or not isinstance(software, dict):
        return plain  # reading the records says what is wrong
    from_plain(Software, software, GROUP)  # names the key that is wrong as a user writes it
    return plain | {"gpu": gpu_values(gpu, software)}


def _check_parents(
    values: Mapping[str, Any],
    before: DictConfig,
    options: Mapping[str, str],
    record: type[Workload],
    problem: str,
) -> None:
    """Check that the chosen options have the records whose keys are overridden, where `problem` is about such a record.

    Raises:
        ConfigError: an option leaves the record out, as `testbed=simulated` does `testbed.cuda`.
    """
    for key, value in values.items():
        parent, group = key.rpartition(".")[0], key.partition(".")[0]
        is_concerned = parent and group in options and problem.startswith(parent)
        if is_concerned and may_be_null(parent, record) and OmegaConf.select(before, parent) is None:
            raise ConfigError(
                f"{key}={value}: {group}={options[group]} has no {parent.partition('.')[2]}; choose an option of "
                f"{group} that has it."
            )


@lru_cache(maxsize=KEPT)  # most combinations choose the same options
def _merged(
    content: Content,  # of the folder that Hydra has been given
    primary: str,
    asked_groups: tuple[str, ...],
    choices: tuple[str, ...],
) -> tuple[dict[str, str], DictConfig]:
    """The chosen option of every group, and the values that they and the primary file give; change only copies.

    Hydra takes 0.1 s, so they are kept for other processes. A model that is no option is in no file of the folder.
    """
    stored = {f"model={name.removesuffix('.yaml')}" for name in ConfigStore.instance().repo.get("model", {})}
    lasts = content.is_whole and stored.isdisjoint(choices)
    versions = hydra.__version__, omegaconf.__version__
    key = content_hash([content.digest, primary, asked_groups, choices, versions])
    merged = _kept(key) if lasts else None
    if merged is None:
        merged = _merged_by_hydra(primary, asked_groups, choices)
        plain = OmegaConf.to_container(merged[1], resolve=False)
        text = yaml.dump(plain, Dumper=DUMPER)
        if lasts and parse_yaml(text) == plain:
            keep(KIND, key, {"options": merged[0], "values": text})
    return merged


def _kept(key: str) -> tuple[dict[str, str], DictConfig] | None:
    """What another process has kept under a key; None where nothing sound is."""
    content = kept(KIND, key) or {}
    try:
        return content["options"], OmegaConf.create(parse_yaml(content["values"]))
    except (KeyError, ConfigError):
        return None


def _merged_by_hydra(
    primary: str, asked_groups: tuple[str, ...], choices: tuple[str, ...]
) -> tuple[dict[str, str], DictConfig]:
    config = hydra_compose(primary, overrides=list(choices), return_hydra_config=True)
    options: dict[str, str] = dict(config.hydra.runtime.choices)
    for group in asked_groups:
        if group not in options:
            raise ConfigError(f"{primary}.yaml: has no option of {group} among its defaults; add '- {group}: NAME'.")
        check_name(str(options[group]), f"option of {group}")
    values = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    return {group: options[group] for group in asked_groups}, values


@contextmanager
def _one_line(config_dir: Path) -> Iterator[None]:
    """Raise an error of Hydra's as one line. Overrides have been checked, so that it concerns a file."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"{config_dir}: cannot be composed: {_reason(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{config_dir}: cannot be composed: lists in lists too deep; write flat ones.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{_not_text(config_dir)}: not a text file; save it as UTF-8.") from error
    except ValueError as error:  # a number of thousands of digits, which Python does not read
        raise ConfigError(f"{config_dir}: cannot be composed: {error}.") from error


def _reason(error: BaseException) -> str:
    """What an error says, else what its cause says, else of what kind it is."""
    said = " ".join(str(error).split())
    cause = error.__cause__ or error.__context__
    return said or (_reason(cause) if cause else type(error).__name__)


def _not_text(config_dir: Path) -> Path:
    """The first file of the configuration that is not text; the folder where none is found any more."""
    for path in _files(config_dir):
        try:
            path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return path
    return config_dir


@contextmanager
def _stored_models(combinations: Sequence[Sequence[Setting]]) -> Iterator[dict[str, str]]:
    """Offer the models of `combinations` that are no options to Hydra as ones, by override."""
    settings = {
        setting.text: setting.value for combination in combinations for setting in combination if setting.key == "model"
    }
    read = {
        text: read_architecture(Path(value).expanduser())
        for text, value in sorted(settings.items())
        if is_file("model", value)
    }
    for text, stored in read.items():
        for note in stored.notes:
            _say(settings[text], note)
    models = {text: stored.model for text, stored in read.items()}
    models |= {text: from_plain(Model, value, "model") for text, value in settings.items() if is_record("model", value)}
    names = {text: f"{model.name}-{content_hash(model)[:8]}" for text, model in models.items()}
    store = ConfigStore.instance()
    for text, model in models.items():
        store.store(group="model", name=names[text], node=to_plain(model))
    try:
        yield names
    finally:
        for name in set(names.values()):
            del store.repo["model"][f"{name}.yaml"]


@cache
def _say(path: str, note: str) -> None:
    """Say once what of a file was left out, however often it is read."""
    logger.info("%s: %s", path, note)
