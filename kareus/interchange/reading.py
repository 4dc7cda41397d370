"""From files of a trainer to overrides of a workload, with what was understood, what is lost, and what is no matter."""

import fnmatch
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from kareus.artifacts.names import MOST_NAME
from kareus.errors import ConfigError
from kareus.interchange.meaning import SHARDINGS, SIZES, keys_of
from kareus.interchange.syntax import ReadSettings, read_settings, scalar
from kareus.interchange.table import OFF, KeyRow, TrainerTable, model_names, trainer_named, trainers
from kareus.model.config import Model

WORKLOADS = "workloads"
"""Key of a campaign, and of the workload files that `kareus from` writes: texts of overrides."""
LEAST_ROWS = 2
"""Keys of a trainer that a file has at least."""
SHORT = 48
"""Characters of a value that a line shows."""
MARKED = 5
"""Rows that a key counts for which tells a trainer's files from others."""
SHARDING = "parallelism.sharding"
AUTO = "auto"
"""Value of a key that something else decides."""
FIELDS = tuple(each.name for each in fields(Model))
PLAIN_TEXT = re.compile(r"[A-Za-z_][\w.-]*")
"""A text that Hydra takes without quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSetting:
    """A key of a file, and what is said of it."""

    key: str
    value: Any
    words: str
    """The term that it gives, or what is lost of it."""

    @property
    def shown(self) -> str:
        """The value, cut where it is long."""
        text = str(self.value)
        return text if len(text) <= SHORT else f"{text[:SHORT]}..."

    @property
    def lost_words(self) -> str:
        """What is lost, for people, with the setting where it is of one."""
        return f"{self.key}={self.shown}: {self.words}" if self.key else self.words


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What files do not say."""

    keys: tuple[str, ...]
    """Overrides of which each says it."""
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What files of a trainer say."""

    says: str
    """What the files are."""
    overrides: tuple[str, ...]
    """Overrides of the workload that they train, as texts."""
    understood: tuple[ReadSetting, ...] = ()
    lost: tuple[ReadSetting, ...] = ()
    """Keys that matter and that cannot be said; those without a key are of the files as a whole."""
    ignored: tuple[str, ...] = ()
    """Keys that do not matter."""
    unread: tuple[str, ...] = ()
    """Keys of which the table knows nothing."""
    unknown: tuple[str, ...] = ()
    """Variables, conditions and references that could not be followed."""
    missing: tuple[Missing, ...] = ()
    """What the files do not say."""


def read_training(
    paths: Sequence[Path], trainer: str | None = None, given: Mapping[str, Any] | None = None
) -> Training:
    """Return what files say; later files replace settings of earlier ones.

    Args:
        paths: files of one trainer, such as its configuration and the script that starts it; or a workload file.
        trainer: name of its table; None: the one that knows most of the keys.
        given: terms that are known otherwise, such as `model.vocab_size`; they replace those of the files.

    Raises:
        ConfigError: a file cannot be read, or is of no trainer that is known.
    """
    read = [(path, read_settings(path)) for path in paths]
    if len(read) == 1 and WORKLOADS in read[0][1].values:
        return _workload(read[0][0], read[0][1].values[WORKLOADS])
    table = trainer_named(trainer) if trainer else _table([settings for _, settings in read], paths)
    return _understood(table, _together([settings.values for _, settings in read]), read, given or {})


def _together(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of files; one that a file leaves to others (`auto`) replaces none."""
    values: dict[str, Any] = {}
    for settings in files:
        values |= {key: value for key, value in settings.items() if value != AUTO or key not in values}
    return values


def _workload(path: Path, texts: Any) -> Training:
    if not isinstance(texts, list) or len(texts) != 1 or not isinstance(texts[0], str):
        raise ConfigError(f"{path}: {WORKLOADS}: expected a list of one text; a campaign of several is for snakemake.")
    try:
        return Training(says="a workload of Kareus", overrides=tuple(shlex.split(texts[0])))
    except ValueError as error:
        raise ConfigError(f"{path}: {WORKLOADS}: {error}; write overrides as on a command line.") from error


def _table(read: Sequence[ReadSettings], paths: Sequence[Path]) -> TrainerTable:
    """Return the table that knows most of the keys of files.

    Raises:
        ConfigError: none knows any of them.
    """
    keys = [key for settings in read for key in settings.values]
    syntaxes = {settings.syntax for settings in read}
    tables = [table for table in map(trainer_named, trainers()) if syntaxes & set(table.syntaxes)]
    scores = {table.name: _score(table, keys) for table in tables}
    best = max(scores, key=lambda name: scores[name], default=None)
    if best is None or scores[best] < LEAST_ROWS:
        if any(path.suffix == ".py" for path in paths):
            raise ConfigError(
                f"{' '.join(map(str, paths))}: Python, which is not run; give the configuration that a run writes."
            )
        raise ConfigError(
            f"{' '.join(map(str, paths))}: not known as a file of any trainer; read are those of "
            f"{', '.join(trainers())}: give the file with the layout and the batch, or --trainer NAME."
        )
    return trainer_named(best)


def _score(table: TrainerTable, keys: Sequence[str]) -> int:
    marked = sum(any(fnmatch.fnmatchcase(key, pattern) for key in keys) for pattern in table.marks)
    return MARKED * marked + sum(table.row(key) is not None for key in keys) if marked else 0


def terms_said(
    table: TrainerTable, values: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the terms that settings give, and where they give none those that are usual."""
    return _usual(table, _Sorted.of(table, values).terms, given or {})


@dataclass(slots=True)
class _Sorted:
    """Settings by what is said of them."""

    terms: dict[str, Any] = field(default_factory=dict)
    understood: list[ReadSetting] = field(default_factory=list)
    lost: list[ReadSetting] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, table: TrainerTable, values: Mapping[str, Any]) -> "_Sorted":
        """Sort the settings of a file by a table."""
        by_kind = cls()
        for key, value in values.items():
            row = table.row(key)
            if row is None:
                (by_kind.ignored if table.ignores(key) else by_kind.unread).append(key)
            elif row.term is not None:
                by_kind.take(row, key, value)
            elif row.lost and not _is_off(value, row):
                by_kind.lost.append(ReadSetting(key=key, value=value, words=row.lost))
            else:
                by_kind.ignored.append(key)
        return by_kind

    def take(self, row: KeyRow, key: str, value: Any) -> None:
        """Add the term of a setting; one that has no value there is lost."""
        term, is_off = row.term or "", _is_off(value, row)
        if value is True and not row.words:  # an option whose value is a variable that nothing sets
            self.lost.append(
                ReadSetting(key=key, value="", words=f"has no value that could be followed; give {term}=...")
            )
            return
        try:
            meant = row.value(value)
        except KeyError:
            if not is_off:
                allowed = ", ".join(str(one) for one, _ in row.words)
                words = row.lost or f"not known for {term}; known are {allowed}"
                self.lost.append(ReadSetting(key=key, value=value, words=words))
                if row.instead is None:
                    return
            meant = None if is_off else row.instead
        if meant is None or meant == AUTO:
            self.ignored.append(key)
            return
        before = self.terms.get(term)
        if term == SHARDING and before is not None:
            meant = max(before, meant, key=SHARDINGS.index)
        elif before is not None and row.alias:
            return
        self.terms[term] = meant
        self.understood.append(ReadSetting(key=key, value=value, words=f"{term}={meant}"))


def _usual(table: TrainerTable, terms: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    said = {**terms, **given}
    usual = {term: value for term, value in table.usual.items() if said.get(term) is None}
    return usual | {term: value for term, value in said.items() if value is not None}


def _understood(
    table: TrainerTable,
    values: Mapping[str, Any],
    read: Sequence[tuple[Path, ReadSettings]],
    given: Mapping[str, Any],
) -> Training:
    by_kind, said = _Sorted.of(table, values), list[str]()
    terms = _usual(table, by_kind.terms, given)
    keys = keys_of(terms, said)
    said += [table.software_note] if table.software_note else []
    keys, missing = _with_model(keys, terms, read[0][0])
    if "gpus" not in keys and "parallelism.dp" not in keys:
        words = "how many GPUs there are: one replica is taken; give gpus=N"
        missing.append(Missing(keys=("gpus", "parallelism.dp"), words=words))
    keys["software"] = terms.get("software") or table.software
    return Training(
        says=f"{table.says}, {len(values)} settings",
        overrides=tuple(override(key, value) for key, value in keys.items()),
        understood=tuple(by_kind.understood),
        lost=(*by_kind.lost, *(ReadSetting(key="", value=None, words=words) for words in said)),
        ignored=tuple(by_kind.ignored),
        unread=tuple(by_kind.unread),
        unknown=tuple(dict.fromkeys(text for _, settings in read for text in settings.unknown)),
        missing=(*missing, Missing(keys=("gpu",), words="which GPU it is; give gpu=NAME")),
    )


def _is_off(value: Any, row: KeyRow) -> bool:
    if isinstance(value, (list, dict)):
        return not value
    return any(type(value) is type(off) and value == off for off in row.unless) or (
        isinstance(value, str) and value.lower() in OFF
    )


def _with_model(keys: dict[str, Any], terms: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], list[Missing]]:
    """Return keys with the model first: its record, an option, or the file of a model that is there."""
    model, rest = keys.get("model"), {key: value for key, value in keys.items() if key != "model"}
    if isinstance(model, Mapping):
        name = re.sub(r"[^A-Za-z0-9._+-]+", "-", path.stem).strip("-._+")[:MOST_NAME] or "model"
        given = {"name": name, **model}
        return {"model": {field: given.pop(field) for field in FIELDS if field in given} | given, **rest}, []
    named = str(model or "").strip()
    option = _local_model(named, path) or next(
        (option for pattern, option in model_names().items() if fnmatch.fnmatchcase(named.lower(), pattern)), None
    )
    if option is not None:
        return {"model": option, **rest}, []
    absent = [size for size in SIZES if terms.get(f"model.{size}") is None]
    words = f"which model '{named}' is" if named else "the sizes of the model"
    words += "; give model=NAME or model=path/to/config.json"
    if len(absent) < len(SIZES):
        words = f"the model's {', '.join(absent)}; give {' '.join(f'model.{size}=N' for size in absent)}"
    return rest, [Missing(keys=("model",), words=words)]


def _local_model(named: str, path: Path) -> str | None:
    """Return the path of a `config.json` that a file names, in its own folder or in this one."""
    for folder in (path.parent, Path()):
        place = folder / named
        if named and place.is_dir() and (place / "config.json").is_file():
            return f"{place / 'config.json'}"
    return None


def override(key: str, value: Any) -> str:
    """Return an override in Hydra's syntax.

    Example:
        >>> override("model", {"name": "a", "layers_per_stage": {}}), override("parallelism.layers_per_stage", [2, 3])
        ('model={name:a,layers_per_stage:{}}', 'parallelism.layers_per_stage=[2,3]')
    """
    return f"{key}={value if isinstance(value, str) else _hydra(value)}"


def _hydra(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return value if PLAIN_TEXT.fullmatch(value) and scalar(value) == value else f"'{value}'"
        case Mapping():
            return "{" + ",".join(f"{key}:{_hydra(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(_hydra, value)) + "]"
    return str(value)
