"""Tables of trainers: what each key means, as data in `tables/`.

A row of `means` gives a key its term (see `meaning`), with `words` where the trainer's values are others than Kareus',
and with `nearest` where a value of Kareus has none. A row of `lost` says what is lost of a key that matters and that
Kareus has not; `unless` are values that lose nothing. Keys of `ignored`, which may have `*`, do not matter. A row that
is `implied` gives what its trainer takes by itself; one that is an `alias` is read and never written. `usual` has the
terms that hold where no key says anything. `needs` says what is lost where none of some keys is on, and
`environment` what a key needs of variables. `files` are
keys whose values name further files of the training. In `words`, a value with `*` stands for all texts of its form.
"""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kareus.artifacts.configuration import parse_yaml
from kareus.artifacts.files import read_text
from kareus.artifacts.records import suggest
from kareus.errors import ConfigError

FOLDER = Path(__file__).parent / "tables"
SHARED = "features"
"""File of what is lost by features that several trainers have, by name."""
NAMES = "models"
"""File of the options of the group `model` by names that trainers and hubs give models."""
OFF: tuple[Any, ...] = (None, False, 0, "", "none", "off", "disabled", "auto", -1)
"""Values that switch off whatever a key is of."""
UNSET: tuple[Any, ...] = (None, False, 0, "", "none", "off", "no", "disabled")
"""Values of a key that its file might as well not have."""
ANY, SAME = "*", "same"
"""In `words`: any other value, and that it is Kareus' too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """What a key means."""

    key: str
    term: str | None = None
    """None where the key cannot be said."""
    words: tuple[tuple[Any, Any], ...] = ()
    """Pairs of the trainer's value and Kareus'; empty: the same value."""
    lost: str | None = None
    """What is lost where a value is none of `words`, or of any value that is not among `unless`."""
    unless: tuple[Any, ...] = OFF
    instead: Any = None
    """What is taken in its place."""
    alias: bool = False
    """Whether it is read and never written, since another row writes its term."""
    implied: bool = False
    """Whether its value is no more than what is usual, which any other key of the term replaces."""
    omit: tuple[Any, ...] = ()
    """Values of the trainer that are not written, since they are what it does anyway."""
    also: tuple[tuple[str, Any], ...] = ()
    """Settings that are written beside it."""
    nearest: tuple[tuple[Any, Any], ...] = ()
    """Pairs of Kareus' value that the trainer has not and the trainer's value that is written for it."""
    only_with: str | None = None
    """Another key of the trainer without which this one means nothing."""
    loses: tuple[tuple[str, str], ...] = ()
    """Pairs of a text with `*` and what is lost of values of its form, though they are understood."""

    def value(self, said: Any) -> Any:
        """Return Kareus' value of a trainer's; of a list, that of the first item that has one.

        Any value (`*`) is any but those that switch off.

        Raises:
            KeyError: it is none of `words`.
        """
        if not self.words:
            return said
        for item in said if isinstance(said, list) else (said,):
            for theirs, other in self.words:
                if _equal(theirs, item):
                    return other
        for theirs, other in self.words:
            if theirs == ANY and not is_off(said, OFF):
                return said if other == SAME else other
        raise KeyError(said)

    def said(self, value: Any) -> Any:
        """Return the trainer's value of Kareus'; the inverse of `value`.

        Raises:
            KeyError: the trainer has none.
        """
        if not self.words:
            return value
        for theirs, other in self.words:
            if ANY not in str(theirs) and other is not None and _equal(other, value):
                return theirs
        if (ANY, SAME) in self.words:
            return value
        for other, theirs in self.nearest:
            if _equal(other, value):
                return theirs
        raise KeyError(value)

    def lost_of(self, said: Any) -> list[str]:
        """Return what is lost of a value by its form."""
        items = said if isinstance(said, list) else [said]
        return [words for form, words in self.loses if any(_equal(form, str(item)) for item in items)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededKeys:
    """Keys of which a file has one that is on, and what is lost of it otherwise."""

    keys: tuple[str, ...]
    """May have `*`."""
    counts_off: bool
    """Whether one that is off counts, too."""
    lost: str
    syntaxes: tuple[str, ...]
    """Of the files that this holds for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerTable:
    """A table."""

    name: str
    says: str
    """What it is a table of, for people."""
    software: str
    """Option of the group `software` that predicts it."""
    software_note: str | None
    """What is lost by that; None where the profile is of this very trainer."""
    syntaxes: tuple[str, ...]
    marks: tuple[str, ...]
    """Keys, with `*`, that tell its files from those of others."""
    by_leaf: bool
    """Whether a key is known by its last part alone, wherever it is."""
    rows: Mapping[str, KeyRow]
    ignored: tuple[str, ...]
    usual: Mapping[str, Any]
    always: Mapping[str, Any]
    """Settings that are written whatever the workload is."""
    environment: Mapping[str, str]
    """What a key needs of the environment, in words."""
    needs: tuple[NeededKeys, ...]
    files: tuple[str, ...]
    """Keys that name further files."""

    @property
    def profiles(self) -> set[str]:
        """Options of the group `software` that are of the trainer."""
        words = [row.words for row in self.rows.values() if row.term == "software"]
        return {self.software, *(str(option) for pairs in words for _, option in pairs)}

    def row(self, key: str) -> KeyRow | None:
        """Return the row of a dotted key, if there is one."""
        if key in self.rows or not self.by_leaf:
            return self.rows.get(key)
        return self.rows.get(key.rpartition(".")[2])

    def ignores(self, key: str) -> bool:
        """Whether a key does not matter."""
        names = {key, key.rpartition(".")[2]} if self.by_leaf else {key}
        return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self.ignored)


def trainers() -> tuple[str, ...]:
    """Names of the trainers whose files are read."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem not in (SHARED, NAMES)))


def trainer_named(name: str) -> TrainerTable:
    """Return a table.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in trainers():
        raise ConfigError(f"trainer {name}: not known; {suggest(name, trainers())}.")
    return _trainer(name)


@cache
def table_of(software: str) -> TrainerTable | None:
    """Return the table of the trainer that a profile is of; None where no table is of that very trainer."""
    tables = [table for table in map(trainer_named, trainers()) if table.software_note is None]
    return next((table for table in tables if software == table.name or software in table.profiles), None)


@cache
def model_names() -> Mapping[str, str]:
    """Options of the group `model` by patterns of names, in lower case."""
    return {str(name).lower(): str(option) for name, option in _content(NAMES).items()}


@cache
def hub_name(option: str) -> str | None:
    """Return the name on the hub of an option of the group `model`, where it has one."""
    return next(
        (name for name, model in _content(NAMES).items() if model == option and "/" in name and ANY not in name), None
    )


@cache
def _content(name: str) -> dict[str, Any]:
    content = parse_yaml(read_text(FOLDER / f"{name}.yaml"))
    return {str(key): value for key, value in content.items()}


@cache
def _trainer(name: str) -> TrainerTable:
    content = _content(name)
    base = _trainer(content["extends"]) if "extends" in content else None
    first = {row.key: row for row in _rows(content)}
    rows = first | {key: row for key, row in (base.rows if base else {}).items() if key not in first}
    return TrainerTable(
        name=name,
        says=content["says"],
        software=content["software"],
        software_note=content.get("software_note"),
        syntaxes=tuple(content["syntaxes"]),
        marks=tuple(content["marks"]),
        by_leaf=content.get("by_leaf", False),
        rows=rows,
        ignored=(*content.get("ignored", ()), *(base.ignored if base else ())),
        usual={**(base.usual if base else {}), **content.get("usual", {})},
        always=content.get("always", {}),
        environment={**(base.environment if base else {}), **content.get("environment", {})},
        needs=tuple(_needs(content)),
        files=tuple(content.get("files", ())),
    )


def _needs(content: Mapping[str, Any]) -> Iterator[NeededKeys]:
    features = _content(SHARED)
    for need in content.get("needs", ()):
        syntaxes = tuple(need.get("syntaxes", content["syntaxes"]))
        lost = features.get(need["lost"], need["lost"])
        yield NeededKeys(
            keys=tuple(need["keys"]), counts_off=need.get("counts_off", False), lost=lost, syntaxes=syntaxes
        )


def _rows(content: Mapping[str, Any]) -> Iterator[KeyRow]:
    features = _content(SHARED)
    for key, meaning in content.get("means", {}).items():
        more: dict[str, Any] = {"is": meaning} if isinstance(meaning, str) else dict(meaning)
        words = more.pop("words", {})
        also = tuple(more.pop("also", {}).items())
        yield KeyRow(key=key, term=more.pop("is"), words=tuple(words.items()), also=also, **_loss(more, features))
    for key, meaning in content.get("lost", {}).items():
        yield KeyRow(key=key, **_loss({"lost": meaning} if isinstance(meaning, str) else dict(meaning), features))


def _loss(more: dict[str, Any], features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row about what is lost, which may be the name of a feature."""
    if "lost" in more:
        more["lost"] = features.get(more["lost"], more["lost"])
    if "unless" in more:
        more["unless"] = (*OFF, *more["unless"])
    if "omit" in more:
        more["omit"] = tuple(more["omit"])
    if "loses" in more:
        more["loses"] = tuple((form, features.get(words, words)) for form, words in more["loses"].items())
    if "nearest" in more:
        more["nearest"] = tuple(more["nearest"].items())
    return more


def is_off(value: Any, off: Sequence[Any]) -> bool:
    """Whether a value is among those that switch off; a list or a mapping that is empty is."""
    if isinstance(value, (list, dict)) and not value:
        return True
    plain = value.lower() if isinstance(value, str) else value
    return any(type(plain) is type(value_off) and plain == value_off for value_off in off)


def _equal(value: Any, other: Any) -> bool:
    """Whether two plain values are the same; true is not 1, case does not matter, and the first may be a form."""
    if isinstance(value, bool) is not isinstance(other, bool):
        return False
    if isinstance(value, str) and isinstance(other, str):
        form = value.lower()
        return fnmatch.fnmatchcase(other.lower(), form) if ANY in form and form != ANY else form == other.lower()
    return bool(value == other)
