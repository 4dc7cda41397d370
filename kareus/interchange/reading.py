"""Readers of a trainer's files: overrides of a workload, with what was understood, lost, and no matter."""

import difflib
import fnmatch
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from kareus.artifacts.names import MOST_NAME
from kareus.errors import ConfigError
from kareus.interchange.meaning import OVERRIDES, SHARDINGS, keys_of
from kareus.interchange.model_terms import SIZES
from kareus.interchange.syntax import SYNTAXES, SettingsFile, read_settings, scalar
from kareus.interchange.table import OFF, UNSET, KeyRow, TrainerTable, is_off, model_names, trainer_named, trainers
from kareus.model.config import Model

WORKLOADS = "workloads"
"""Key of a campaign, and of the workload files that `kareus from` writes: texts of overrides."""
OF_A_MODEL = {"vocab_size", "architectures"}
"""Keys that a `config.json` of transformers has beside `model_type`; Megatron-LM's arguments share others with it."""
LEAST_ROWS = 2
"""Keys of a trainer that a file has at least."""
SHORT = 48
"""Characters of a value that a line shows."""
MARKED = 5
"""Rows that a key counts for which tells a trainer's files from others."""
NEAR = 0.85
"""Least likeness of a key that no table has and one that it may have been meant to be."""
SHARDING = "parallelism.sharding"
AUTO = "auto"
"""Value of a key that something else decides."""
FIELDS = tuple(each.name for each in fields(Model))
JOB = ("nodes", "gpus_per_node")
"""Terms whose product is the number of GPUs."""
OF_DEFAULT = ": as in the default workload"
MOST_NAMED = 5
"""Keys that are named of a file that no trainer's table fits."""
NO_GPU = "which GPU it is; give gpu=NAME"
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
        text = str(self.value).lower() if isinstance(self.value, bool) else str(self.value)
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
    assumed: tuple[str, ...] = ()
    """Keys that matter, whose values are those that are assumed anyway, or that another key says."""
    ignored: tuple[str, ...] = ()
    """Keys that do not matter."""
    unread: tuple[str, ...] = ()
    """Keys of which the table knows nothing."""
    unknown: tuple[str, ...] = ()
    """Variables, conditions and references that could not be followed."""
    repeated: tuple[str, ...] = ()
    """Options that a file gives more than once, with their values, of which the last counts."""
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
    return _understood(table, read, given or {})


def _named_files(
    table: TrainerTable, read: Sequence[tuple[Path, SettingsFile]]
) -> tuple[list[tuple[Path, SettingsFile]], list[ReadSetting]]:
    """Return the files that settings name and that are there, and the settings whose files are not."""
    names = {path.name for path, _ in read}
    further, absent = list[tuple[Path, SettingsFile]](), list[ReadSetting]()
    for path, settings in read:
        for key in table.files:
            named = settings.values.get(key)
            if not isinstance(named, str) or Path(named).name in names or is_off(named, UNSET):
                continue
            places = [folder / named for folder in (path.parent, Path())]
            place = next((place for place in places if place.suffix in SYNTAXES and place.is_file()), None)
            if place is not None:
                further.append((place, read_settings(place)))
            else:
                words = "names a file that is not there: what it says is left out; give that file, too"
                absent.append(ReadSetting(key=key, value=named, words=words))
    return further, absent


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


def _table(read: Sequence[SettingsFile], paths: Sequence[Path]) -> TrainerTable:
    """Return the table that knows most of the keys of files.

    Raises:
        ConfigError: none knows any of them, or one of them is the `config.json` of a model.
    """
    for path, settings in zip(paths, read, strict=True):
        is_json_of_a_model = settings.syntax == "json" and "model_type" in settings.values
        if is_json_of_a_model and not OF_A_MODEL.isdisjoint(settings.values):
            raise ConfigError(f"{path}: describes a model, not how it is trained; give model={path} in its place.")
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
        named = ", ".join(keys[:MOST_NAMED])
        lacks = f"none of its keys ({named}) is a trainer's alone" if keys else "it sets nothing"
        raise ConfigError(
            f"{' '.join(map(str, paths))}: not known as a file of any trainer, since {lacks}; read are scripts with "
            f"arguments, and files (YAML, JSON, TOML), of {', '.join(trainers())}: give the one with the layout and "
            "the batch, or --trainer NAME."
        )
    return trainer_named(best)


def _score(table: TrainerTable, keys: Sequence[str]) -> int:
    """Return how well a table fits: the keys that it has, of which those count more that are its trainer's alone."""
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
    gives: dict[str, ReadSetting] = field(default_factory=dict)
    """The last setting that gives a term, by term."""
    lost: list[ReadSetting] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    implied: dict[str, tuple[str, Any, Any]] = field(default_factory=dict)
    """Of keys that imply a term, the key, its value and what it means, by term."""
    unfollowed: list[str] = field(default_factory=list)
    """Terms whose values are variables that nothing sets."""

    @classmethod
    def of(cls, table: TrainerTable, values: Mapping[str, Any]) -> "_Sorted":
        """Sort the settings of a file by a table."""
        by_kind, inner = cls(), set(_inner(values)) if table.by_leaf else set()
        for key, value in values.items():
            row = table.row(key)
            if row is not None and row.only_with is not None and not _is_on(table, values, row.only_with):
                by_kind.ignored.append(key)
            elif key in inner and row is not None and row.key != key:  # of another part of the file, by the same word
                by_kind.unread.append(key)
            elif row is None:
                is_usual = table.always.get(key.rpartition(".")[2] if table.by_leaf else key) == value
                kind = by_kind.assumed if is_usual else by_kind.ignored if table.ignores(key) else by_kind.unread
                kind.append(key)
            elif row.term is not None:
                by_kind.take(row, key, value)
            elif row.lost and not is_off(value, row.unless):
                by_kind.lost.append(ReadSetting(key=key, value=value, words=row.lost))
            else:
                (by_kind.assumed if row.lost else by_kind.ignored).append(key)
        for term, (key, value, meant) in by_kind.implied.items():
            if term in by_kind.terms:
                by_kind.assumed.append(key)
            else:
                by_kind.add(term, key, value, meant)
        return by_kind

    def add(self, term: str, key: str, value: Any, meant: Any) -> None:
        """Add what a setting means; it replaces what another key said; of ways to share out weights both are kept."""
        before = self.gives.get(term)
        if before is not None and term != SHARDING:
            self.understood.remove(before)
            self._replaced(before.key, before.value, self.terms[term], term, meant)
        self.terms[term] = meant
        self.gives[term] = ReadSetting(key=key, value=value, words=term)
        self.understood.append(self.gives[term])

    def name_near_misses(self, table: TrainerTable, values: Mapping[str, Any]) -> None:
        """Count as lost, of the keys that the table has not, those that are nearly one of which nothing is said."""
        unsaid = [row.key for row in table.rows.values() if row.key not in values and row.term not in self.terms]
        for key in self.unread.copy():
            leaf = key.rpartition(".")[2] if table.by_leaf else key
            for near in difflib.get_close_matches(leaf, unsaid, 1, NEAR):
                words = f"not known; perhaps {near} was meant"
                self.lost.append(ReadSetting(key=key, value=values[key], words=words))
                self.unread.remove(key)

    def _replaced(self, key: str, value: Any, said: Any, term: str, meant: Any) -> None:
        """Note a setting in whose place another one counts: that is lost where they differ."""
        if said == meant:
            self.assumed.append(key)
        else:
            words = f"another key gives {OVERRIDES.get(term, term)}, and {_hydra(meant)} is taken"
            self.lost.append(ReadSetting(key=key, value=value, words=words))

    def take(self, row: KeyRow, key: str, value: Any) -> None:
        """Add the term of a setting; one that has no value there is lost."""
        term, switched_off = row.term or "", is_off(value, row.unless)
        if value is True and not row.words:  # an option whose value is a variable that nothing sets
            words = f"has no value that could be followed; give {OVERRIDES.get(term, term)}=..."
            self.lost.append(ReadSetting(key=key, value="", words=words))
            self.unfollowed.append(term)
            return
        self.lost += [ReadSetting(key=key, value=value, words=words) for words in row.lost_of(value)]
        try:
            meant = row.value(value)
        except KeyError:
            if not switched_off:
                allowed = ", ".join(str(theirs) for theirs, _ in row.words)
                words = row.lost or f"not known for {term}; known are {allowed}"
                self.lost.append(ReadSetting(key=key, value=value, words=words))
                if row.instead is None:
                    return
            meant = None if switched_off else row.instead
        if meant is None or meant == AUTO:
            self.assumed.append(key)
            return
        before = self.terms.get(term)
        if row.implied:
            self.implied[term] = key, value, meant
        elif term == SHARDING and before is not None:
            self.add(term, key, value, max(before, meant, key=SHARDINGS.index))
        elif before is not None and row.alias:
            self._replaced(key, value, meant, term, before)
        else:
            self.add(term, key, value, meant)


def _is_on(table: TrainerTable, values: Mapping[str, Any], name: str) -> bool:
    """Whether a file has a key and it is on."""
    keys = [key for key in values if key == name or (table.by_leaf and key.rpartition(".")[2] == name)]
    return any(not is_off(values[key], OFF) for key in keys)


def _inner(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield keys whose last part is also that of a key further out, such as the batch size of a validation."""
    depths: dict[str, int] = {}
    for key in values:
        leaf = key.rpartition(".")[2]
        depths[leaf] = min(depths.get(leaf, key.count(".")), key.count("."))
    yield from (key for key in values if key.count(".") > depths[key.rpartition(".")[2]])


def _usual(table: TrainerTable, terms: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return terms with those that are given otherwise, and the trainer's defaults for what neither says."""
    said = {**terms, **given}
    usual = {term: value for term, value in table.usual.items() if said.get(term) is None}
    if said.get("global_batch_size") is not None:
        usual.pop("num_microbatches", None)  # which follows
    return usual | {term: value for term, value in said.items() if value is not None}


def _understood(table: TrainerTable, read: Sequence[tuple[Path, SettingsFile]], given: Mapping[str, Any]) -> Training:
    """Return what files say by a table: their settings become terms, and these overrides."""
    further, absent = _named_files(table, read)
    parts = [settings for _, settings in (*further, *read)]
    values = _together([settings.values for settings in parts])
    by_kind, said = _Sorted.of(table, values), list[str]()
    by_kind.name_near_misses(table, values)
    terms = _usual(table, by_kind.terms, given)
    if any(term in by_kind.unfollowed and term not in terms for term in JOB):
        terms.pop("gpus_per_node", None)  # of how many nodes is not said
    keys = keys_of(terms, said)
    said += _needed(table, parts, values)
    said += [table.software_note] if table.software_note else []
    keys, missing = _with_model(keys, terms, read[0][0])
    missing += _missing(keys)
    keys["software"] = terms.get("software") or table.software
    typed = (_typed(setting.words, by_kind.terms[setting.words], keys) for setting in by_kind.understood)
    return Training(
        says=f"{table.says}, {len(values)} settings",
        overrides=tuple(override(key, value) for key, value in keys.items()),
        understood=tuple(replace(each, words=words) for each, words in zip(by_kind.understood, typed, strict=True)),
        lost=(*by_kind.lost, *absent, *(ReadSetting(key="", value=None, words=words) for words in said)),
        assumed=tuple(by_kind.assumed),
        ignored=tuple(by_kind.ignored),
        unread=tuple(by_kind.unread),
        unknown=tuple(dict.fromkeys(text for settings in parts for text in settings.unknown)),
        repeated=tuple(text for settings in parts for text in settings.repeated),
        missing=(*missing, Missing(keys=("gpu",), words=NO_GPU)),
    )


def _typed(term: str, meant: Any, keys: Mapping[str, Any]) -> str:
    """Return the override that a term became, as people type it; in words where none follows from it alone.

    Example:
        >>> keys = {"gpus": 16, "model": {"num_key_value_heads": 8}}
        >>> [_typed(*term, keys) for term in (("nodes", 2), ("model.grouped", True), ("pipeline.chunks", 1))]
        ['gpus=16', 'model.num_key_value_heads=8', 'pipeline.chunks: 1']
    """
    key, value = OVERRIDES.get(term, term), keys
    for part in (key,) if key in keys else key.split("."):
        if not isinstance(value, Mapping) or value.get(part) is None:
            return f"{term}: {_hydra(meant)}"
        value = value[part]
    return term if isinstance(value, Mapping) else override(key, value)


def _needed(table: TrainerTable, read: Sequence[SettingsFile], values: Mapping[str, Any]) -> list[str]:
    """Return what is lost since keys that a training needs are off."""
    syntaxes = {settings.syntax for settings in read}
    lines = list[str]()
    for need in table.needs:
        keys = [key for key, value in values.items() if need.counts_off or not is_off(value, UNSET)]
        names = [*keys, *(key.rpartition(".")[2] for key in keys if table.by_leaf)]
        if syntaxes & set(need.syntaxes) and not any(fnmatch.filter(names, pattern) for pattern in need.keys):
            lines.append(need.lost)
    return lines


def _missing(keys: Mapping[str, Any]) -> Iterator[Missing]:
    """Yield what of the job and the batch files do not say."""
    if "gpus" not in keys and "parallelism.dp" not in keys:
        words = "how many GPUs there are: one replica is taken; give gpus=N"
        yield Missing(keys=("gpus", "parallelism.dp"), words=words)
    has_batch = "global_batch_size" in keys
    if "sequence_length" not in keys:
        yield Missing(keys=("sequence_length",), words=f"how long sequences are{OF_DEFAULT}; give sequence_length=N")
    if "microbatch_size" not in keys and not (has_batch and "num_microbatches" in keys):
        words = f"how many sequences a microbatch has{OF_DEFAULT}; give microbatch_size=N"
        yield Missing(keys=("microbatch_size",), words=words)
    if "num_microbatches" not in keys and not has_batch:
        words = f"how many sequences a batch has{OF_DEFAULT}; give global_batch_size=N"
        yield Missing(keys=("num_microbatches", "global_batch_size", "gradient_accumulation_steps"), words=words)


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
