"""Writers of a trainer's settings from a workload, by the table that reads them, and what they do not say of it.

What is not said of layout and model is found by reading the written text again: it is what comes back as something
else. A model that a trainer has by name alone is named where it is the one of that name.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any

from kareus.artifacts.configuration import parse_yaml, to_yaml
from kareus.artifacts.files import read_text
from kareus.artifacts.records import leaves, to_plain
from kareus.artifacts.shipped import shipped_folder
from kareus.errors import ConfigError
from kareus.interchange.meaning import DEGREES, OPTIONS, keys_of, terms_of
from kareus.interchange.reading import terms_said
from kareus.interchange.syntax import SHELL, parse_settings
from kareus.interchange.table import TrainerTable, hub_name, model_names, table_of
from kareus.model.config import Model, NormKind
from kareus.model.experts import Experts
from kareus.model.features import AngleScaling
from kareus.pipeline.config import PipelineSchedule

LAUNCHED = ("nodes", "gpus_per_node")
"""Terms of what starts a job's processes, in shell scripts."""
OF_MORE = {
    "pipeline.schedule": "parallelism.pp",
    "parallelism.sequence_parallel": "parallelism.tp",
    "parallelism.sharding": "parallelism.dp",
}
"""Keys of a layout that mean nothing where another is 1."""
LAYOUT = (
    *DEGREES,
    "parallelism.dp",
    "parallelism.sharding",
    "parallelism.shards",
    "parallelism.sequence_parallel",
    "pipeline.schedule",
    "pipeline.chunks",
    "parallelism.layers_per_stage",
    "microbatch_size",
    "num_microbatches",
    "sequence_length",
    "precision",
    "recomputation",
    *OPTIONS,
)
"""Keys of a workload that its layout is made of, with the options of its training."""


OF_TRAINER = tuple(
    key
    for key in LAYOUT
    if key not in ("parallelism.dp", "parallelism.layers_per_stage", "microbatch_size", "num_microbatches", *OPTIONS)
)
"""Those that a trainer can do or cannot, whatever the job is."""


MODULES = "stage_modules"
"""Term of the names of all modules of a stage, which are not for one line."""
ELSEWHERE = "see the exported file"
"""Where one line says that these names are."""
POSITIONS = "model.max_positions"
"""Term of a model that follows from sequences, and so is the layout's."""
NOT_OF_LAYOUT = (*LAUNCHED, "expert_layers", "latent_head_dim", MODULES)
"""Terms that one line of settings leaves out beside a model's: of what starts the processes, and of sizes of blocks."""

NO_FUNCTION = ("model.name", "model.checkpoint", "model.layers_per_stage")
"""Beginnings of keys of a model that say nothing of what it computes."""
OF_POSITIONS = {"model.rotary_": "rope", "model.window_rotary_base": "rope", "model.max_positions": "learned"}
"""Beginnings of those that mean nothing with other positions."""
BY_NAME = ("model", "model.flavor")
"""Terms by which trainers name models whose sizes they have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A layout in a trainer's own settings."""

    text: str
    unsaid: tuple[str, ...]
    """Keys of layout and model that reading the text does not give back, with what it gives."""
    environment: tuple[str, ...]
    """What the settings need of variables."""


def written(table: TrainerTable, workload: Mapping[str, Any], gpus_per_node: int, syntax: str) -> Written:
    """Return a layout as settings.

    Args:
        table: of the trainer.
        workload: plain values by dotted key, resolved.
        gpus_per_node: GPUs of a node.
        syntax: `shell`, `toml` or `yaml`.
    """
    terms = terms_of(workload, gpus_per_node) | _named(table, workload)
    settings = _settings(table, terms, flags=syntax == SHELL)
    text, said = _read_again(table, settings, workload, syntax)
    unsaid = (*_unnamed(table, terms), *_unsaid(said, workload), *_unsaid_of_model(said.get("model"), workload))
    return Written(text=text, unsaid=unsaid, environment=_environment(table, settings))


def _read_again(
    table: TrainerTable, settings: Mapping[str, Any], workload: Mapping[str, Any], syntax: str
) -> tuple[str, dict[str, Any]]:
    """Return settings as a text, and the keys of a workload that these say."""
    text = WRITERS[syntax](table, settings)
    return text, layout_said(table, text, syntax, workload["model.num_layers"])


def layout_line(table: TrainerTable, workload: Mapping[str, Any], gpus_per_node: int) -> str:
    """Return in one line what a trainer is given of a layout, its batch and its options: flags, or keys and values.

    It has what `written` has but the model, what starts the processes, and what is the same in all jobs. Of names of
    all modules of a stage, without which a trainer would split blocks by its rule, the line says where they stand.

    Args:
        table: of the trainer.
        workload: plain values by dotted key, resolved.
        gpus_per_node: GPUs of a node.
    """
    settings, modules = _layout_settings(table, workload, gpus_per_node)
    elsewhere = [f"{key}: {ELSEWHERE}" for key in modules]
    line = _joined(table, [*_shown(table, settings), *elsewhere])
    return "; ".join([line, *_environment(table, settings)])


def layout_apart(
    table: TrainerTable, workload: Mapping[str, Any], other: Mapping[str, Any], gpus_per_node: int
) -> tuple[str, str]:
    """Return in what the line of another workload's layout differs: settings to give, and names of those to leave out.

    Arguments are those of `layout_line`.
    """
    (ours, modules), (theirs, others) = (_layout_settings(table, each, gpus_per_node) for each in (workload, other))
    given = {key: value for key, value in theirs.items() if ours.get(key) != value}
    elsewhere = [f"{key}: {ELSEWHERE}" for key, value in others.items() if modules.get(key) != value]
    missing = dict.fromkeys(key for key in (*ours, *modules) if key not in (*theirs, *others))
    is_flags = table.syntaxes[0] == SHELL
    names = [_argument(key, value=True, launches=False) if is_flags else key for key in missing]
    needed = [words for words in _environment(table, theirs) if words not in _environment(table, ours)]
    return "; ".join([_joined(table, [*_shown(table, given), *elsewhere]), *needed]), _joined(table, names)


def _layout_settings(
    table: TrainerTable, workload: Mapping[str, Any], gpus_per_node: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of one line, and those that name all modules of a stage, which the line leaves out."""
    is_flags = table.syntaxes[0] == SHELL
    all_terms = terms_of(workload, gpus_per_node)
    terms = {
        name: value
        for name, value in all_terms.items()
        if _is_of_layout(name) and workload.get(OF_MORE.get(name, "")) != 1
    }
    settings = _settings(table, terms, flags=is_flags)
    modules = {name: value for name, value in all_terms.items() if name == MODULES}
    named = _settings(table, modules, flags=is_flags)
    shown = {key: value for key, value in settings.items() if key not in table.always}
    priced = {key: value for key, value in table.always.items() if (row := table.row(key)) and row.term is None}
    return shown | priced, {key: value for key, value in named.items() if key not in settings}


def _environment(table: TrainerTable, settings: Iterable[str]) -> tuple[str, ...]:
    return tuple(table.environment[key] for key in settings if key in table.environment)


def _joined(table: TrainerTable, settings: Sequence[str]) -> str:
    return (" " if table.syntaxes[0] == SHELL else ", ").join(settings)


def _is_of_layout(term: str) -> bool:
    return term == POSITIONS or not (term.startswith("model.") or term in NOT_OF_LAYOUT)


def settings_apart(table: TrainerTable, key: str, value: Any, usual: Any) -> tuple[list[str], list[str]]:
    """Return a trainer's settings for a value of a key of a workload that the usual one has not, and its others.

    Example:
        >>> from kareus.interchange.table import trainer_named
        >>> settings_apart(trainer_named("megatron-lm"), "software.reduction", "whole", "buckets")
        ([], ['--overlap-grad-reduce'])
    """
    flags = table.syntaxes[0] == SHELL
    ours, others = (_settings(table, {key: said}, flags=flags) for said in (value, usual))
    apart = (
        {k: said for k, said in one.items() if other.get(k) != said} for one, other in ((ours, others), (others, ours))
    )
    added, missing = (_shown(table, settings) for settings in apart)
    return added, missing


def _shown(table: TrainerTable, settings: Mapping[str, Any]) -> list[str]:
    """Return settings as people type them: flags, or keys and values."""
    if table.syntaxes[0] == SHELL:
        return [_argument(key, value, launches=False) for key, value in settings.items()]
    return [f"{key}={_toml(value)}" for key, value in settings.items()]


def _naming_key(table: TrainerTable) -> str | None:
    """Return the key by which a trainer names a model, where it has no keys for sizes."""
    rows = [row for row in table.rows.values() if not row.alias]
    by_sizes = any(row.term == "model.hidden_size" for row in rows)
    return None if by_sizes else next((row.key for row in rows if row.term in BY_NAME), None)


def _unnamed(table: TrainerTable, terms: Mapping[str, Any]) -> Iterator[str]:
    """Yield that the model is not said, of a trainer that has it by name alone, where it has no name there."""
    key = _naming_key(table)
    if key is not None and terms.get(str(table.rows[key].term)) is None:
        place, what = ("on the hub", "its folder") if table.rows[key].term == "model" else ("there", "one of yours")
        yield f"the model, which has no name {place}: set {key} to {what}"


def no_setting(
    software: str, workload: Mapping[str, Any], gpus_per_node: int, keys: Collection[str] = OF_TRAINER
) -> tuple[str, ...]:
    """Return the values of a layout that software has no setting for; none where no table is of that software.

    Args:
        software: option of the group `software`.
        workload: plain values by dotted key, resolved.
        gpus_per_node: GPUs of a node.
        keys: those that count. Blocks of stages and the batch are not among the usual ones: trainers split blocks by
            rules of their own, and the job says the rest.
    """
    table = table_of(software)
    if table is None:
        return ()
    syntax = table.syntaxes[0]
    settings = _settings(table, terms_of(workload, gpus_per_node), flags=syntax == SHELL)
    _, said = _read_again(table, settings, workload, syntax)
    unsaid = _unsaid(said, workload)
    return tuple(text.partition(" ")[0] for text in unsaid if text.partition("=")[0] in keys)


def layout_said(table: TrainerTable, text: str, syntax: str, num_layers: int) -> dict[str, Any]:
    """Return the keys of the layout that a text of settings gives a model, and whatever else it gives."""
    values = parse_settings(text, syntax).values
    keys = keys_of(terms_said(table, values, {"model.num_layers": num_layers}), [])
    replica = 1
    for key in DEGREES:
        replica *= keys.get(key, 1)
    if "gpus" in keys:
        keys.setdefault("parallelism.dp", keys["gpus"] // replica)
    batch = keys.get("parallelism.dp", 1) * keys.get("microbatch_size", 1)
    if "global_batch_size" in keys and "num_microbatches" not in keys:
        keys["num_microbatches"] = keys["global_batch_size"] // batch
    keys["pipeline.schedule"] = keys.pop("pipeline", str(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD))
    keys.setdefault("pipeline.chunks", 1)
    return keys


def _unsaid(said: Mapping[str, Any], workload: Mapping[str, Any]) -> Iterator[str]:
    for key in LAYOUT:
        value, back = workload.get(key), said.get(key)  # a plain workload has no `parallelism.shards` where all share
        if key == "parallelism.layers_per_stage":
            value, back = list(workload[key]), back or (list(value) if len(value) == 1 else None)
        if key in OF_MORE and workload[OF_MORE[key]] == 1:
            continue
        if back != value:
            yield f"{key}={value}" + (f" (read as {back})" if back is not None else "")


def _unsaid_of_model(said: Any, workload: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of a model that are read otherwise, of settings that give its sizes."""
    if isinstance(said, Mapping):
        back = dict(leaves(said, "model."))
        for key, value, other in _differing(workload, back):
            yield f"{key}={value}" + (f" (read as {other})" if key in back else "")


def _differing(model: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys of what two models compute that differ, with both values; what one leaves out has its default."""
    ours, theirs = _whole(model), _whole(other)
    apart = tuple(start for start, kind in OF_POSITIONS.items() if model["model.positions"] != kind)
    for key in dict.fromkeys((*ours, *theirs)):
        value, back = ours.get(key), theirs.get(key)
        if value != back and not key.startswith((*NO_FUNCTION, *apart)):
            yield key, value, back


def _whole(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a model with its defaults, and whether norms have an offset where its biases say it."""
    model = {key: value for key, value in values.items() if key.startswith("model.")}
    whole = model | {key: value for key, value in _defaults().items() if key not in model}
    if whole["model.norm_bias"] is None:
        whole["model.norm_bias"] = whole["model.biases"] and whole["model.norm"] == NormKind.LAYERNORM
    return whole


@cache
def _defaults() -> Mapping[str, Any]:
    """Defaults of a model and its parts by dotted key."""
    parts = {"": Model, "experts.": Experts, "rotary_scaling.": AngleScaling}
    return {
        f"model.{part}{each.name}": to_plain(each.default)
        for part, record in parts.items()
        for each in fields(record)
        if each.default is not MISSING
    }


@cache
def _shipped_model(option: str) -> Mapping[str, Any]:
    """Return the option of the group `model` that comes with Kareus, by dotted key."""
    return dict(leaves(parse_yaml(read_text(shipped_folder() / f"config/model/{option}.yaml")), "model."))


def _settings(table: TrainerTable, terms: Mapping[str, Any], *, flags: bool) -> dict[str, Any]:
    """Return the trainer's settings; without those that are off, where a setting is a flag."""
    settings: dict[str, Any] = dict(table.always)
    done: set[str] = set()
    for row in table.rows.values():
        if row.term is None or row.alias or row.term in done or terms.get(row.term) is None:
            continue
        try:
            said = row.said(terms[row.term])
        except KeyError:  # another row of the term may have a word for it
            continue
        done.add(row.term)
        if not (said is None or (flags and said is False) or said in row.omit):
            settings |= {row.key: said, **dict(row.also)}
    return settings


def _named(table: TrainerTable, workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a trainer that has models by name calls this one: of equal models, not of any by their name."""
    option = workload.get("model.name")
    if _naming_key(table) is None or option not in model_names().values():
        return {}
    published = _shipped_model(str(option))
    rows, multiple = published["model.vocab_size"], workload["software.vocabulary_multiple"]
    if abs(workload["model.vocab_size"] - rows) < workload["parallelism.tp"] * max(multiple, 1):  # padded by software
        workload = {**workload, "model.vocab_size": rows}
    if any(_differing(workload, published)):
        return {}
    for name in (pattern for pattern, named in model_names().items() if named == option):
        family, _, flavor = name.strip("*/").partition(" ")
        if flavor and any(row.term == "model.flavor" for row in table.rows.values()):
            return {"model.family": family, "model.flavor": flavor.upper()}
    hub = hub_name(str(option))
    return {"model": hub} if hub else {}


def _as_arguments(table: TrainerTable, settings: Mapping[str, Any]) -> str:
    """Two arrays of bash: of what starts the processes, and of the trainer."""
    launched = [key for key in settings if key in table.rows and table.rows[key].term in LAUNCHED]
    groups = {"DISTRIBUTED_ARGS": launched, "LAYOUT_ARGS": [key for key in settings if key not in launched]}
    lines = list[str]()
    for name, keys in groups.items():
        arguments = [f"    {_argument(key, settings[key], launches=keys is launched)}" for key in keys]
        lines += [f"{name}=(", *arguments, ")"]
    return "\n".join(lines) + "\n"


def _argument(key: str, value: Any, *, launches: bool) -> str:
    option = f"--{key if launches else key.replace('_', '-')}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # for options of whole numbers, such as a base of angles
    words = value if isinstance(value, list) else [value]
    return option if value is True else f"{option} {shlex.join(map(str, words))}"


def _as_toml(_table: TrainerTable, settings: Mapping[str, Any]) -> str:
    lines = list[str]()
    sections: dict[str, list[str]] = {}
    for key, value in settings.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {_toml(value)}")
    for name, texts in sections.items():
        lines += [f"[{name}]", *texts, ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        if re.search(r'["\\\x00-\x1f]', value):
            raise ConfigError(f"{value!r}: cannot be written as TOML; rename it.")
        return f'"{value}"'
    return str(value)


def _as_yaml(_table: TrainerTable, settings: Mapping[str, Any]) -> str:
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        place = nested
        *folders, name = key.split(".")
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = value
    return to_yaml(nested)


WRITERS: Mapping[str, Callable[[TrainerTable, Mapping[str, Any]], str]] = {
    SHELL: _as_arguments,
    "toml": _as_toml,
    "yaml": _as_yaml,
}
"""What writes settings in a syntax."""
