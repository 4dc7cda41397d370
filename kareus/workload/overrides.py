"""Hydra overrides as a user writes them: parsed, checked against what exists, and expanded into combinations.

Everything that a newcomer may get wrong is caught here, before Hydra composes, and answered in one line
that names the override and what is allowed.
"""

import dataclasses
import itertools
import math
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType, RangeSweep
from hydra.errors import HydraException

from kareus.artifacts.names import check_path
from kareus.artifacts.records import RENAMED, closest, meant, record_types, suggest
from kareus.errors import ConfigError
from kareus.software.record import SET_BY_SOFTWARE, WARM
from kareus.workload.config import Workload
from kareus.workload.words import WORDS

EXAMPLE = "parallelism=tp8"
MISSING = "???"
"""What Hydra takes for a value that is still missing."""
MOST_COMBINATIONS = 10_000
"""Workloads that sweeps may stand for: resolving so many takes minutes, planning them weeks."""


ELSEWHERE = {
    "campaign": "not a key of a workload; write kareus campaign NAME, or snakemake --config campaign=NAME",
    "emulation": "not a key of a workload; write kareus emulate NAME",
    "select": "not a key of a workload; write kareus select SELECTOR FOLDER, or snakemake --config select=SELECTOR",
    "overrides": "not a key of a workload; its elements are what is given here, each for itself",
}
"""Keys that mean something in other places."""


OPTIONS: Mapping[str, str] = {
    "nodes nnodes num_nodes": "gpus=N, of all nodes together,",
    "lora adapter adapters peft": "training.lora_rank=16, with training.lora_targets",
    "qlora quantization load_in_4bit": "training.lora_rank=16 training.frozen_weights=nf4",
    "packing sample_packing packed_sequence": "training.document_tokens=N, their mean length",
    "offload cpu_offload cpu_offloading": "training.offload_optimizer=1 or training.offload_blocks=N",
    "optimizer optim states": "training.moments, training.master_weights and training.gradients",
    "recompute activation_checkpoint": "recomputation, with training.recompute_modules and training.recompute_every",
    "rampup_batch_size ramp": "training.batch_ramp=[first,step,sequences]",
    "chunked_loss loss": "training.loss_chunks=N",
}
"""Keys of options of a training, by the names that people try first."""
LONG_NAMES: Mapping[str, str] = {
    "tensor": "parallelism.tp",
    "pipeline": "parallelism.pp",
    "context": "parallelism.cp",
    "data": "parallelism.dp",
    "expert": "parallelism.ep",
    "expert_tensor": "parallelism.etp",
    "sequence": "parallelism.sequence_parallel",
}
"""Degrees by the names that they have in full, before an end of `LONG_END`."""
LONG_END = re.compile(r"(_model)?(_parallel(ism)?)?(_size|_degree)?$")
UNSUPPORTED: Mapping[str, str] = {
    "parallelism.layers_per_stage=auto": "kareus plan alone searches blocks for stages, with auto by itself "
    "as the whole value, and kareus advise does without it; the nearest is the list that they print",
    "parallelism.fsdp=auto": "kareus plan alone searches exchanges of weights, with auto by itself as the whole value; "
    "the nearest are the settings that it prints",
    "recomputation=offload": "the nearest are training.offload_blocks=N, by which activations wait on the host, and "
    "recomputation=full",
    "software.dispatch_sms=auto": "kareus plan alone searches SMs of a dispatch; the nearest is what it prints",
    "pipeline=dualpipe": "two copies of the weights are not planned; the nearest is pipeline=dualpipe-v",
    "pipeline=zbv": "the nearest is pipeline=zb-v",
    "gpu=mi300x": "GPUs of AMD have no model here; the nearest is gpu=h200",
    "load_in_8bit": "the nearest is training.frozen_weights=nf4 with training.lora_rank, or weights in 16 bits",
    "precision=fp16": "the nearest is precision=bf16, which costs the same but for scaling the loss",
}
"""Keys, and values of keys, that people ask for and that are not there, and what works in their place."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An override that gives one value."""

    text: str
    """Override in Hydra's syntax: `key=value`."""
    key: str
    """A group, or a dotted key."""
    value: Any


def expand(texts: Sequence[str], config_dir: Path, record: type[Workload] = Workload) -> list[tuple[Setting, ...]]:
    """Expand overrides and sweeps into combinations, the last override varying fastest.

    Args:
        texts: overrides as on Hydra's command line: `key=value`, and the sweeps `a,b`, `choice()`, `range()`, `glob()`.
        config_dir: folder of the groups.
        record: what they configure.

    Raises:
        ConfigError: an override that is malformed, given twice, or of a key or option that does not exist; or sweeps
            have too many combinations.
    """
    overrides = [_parse(text, config_dir, record) for text in texts]
    for text, override in zip(texts, overrides, strict=True):
        _check_key(text, override, record)
    check_given_once(texts)
    settings = [_settings(override, config_dir, record) for override in overrides]
    combinations = math.prod(map(len, settings))
    if combinations > MOST_COMBINATIONS:
        swept = " ".join(text for text, options in zip(texts, settings, strict=True) if len(options) > 1)
        raise ConfigError(
            f"{swept}: {combinations:,} combinations; must be at most {MOST_COMBINATIONS:,}; sweep fewer values at "
            "once."
        )
    return list(itertools.product(*settings))


def check_given_once(texts: Sequence[str]) -> None:
    """Check that no two overrides are of one key.

    Raises:
        ConfigError: two are.
    """
    keys = [key_of(text) for text in texts]
    for number, (key, text) in enumerate(zip(keys, texts, strict=True)):
        if key in keys[:number]:
            raise ConfigError(f"{text}: '{key}' is given twice; to sweep it, write its values once: {key}=a,b.")


DECIDES: Mapping[str, tuple[str, ...]] = {
    "parallelism.dp": ("gpus",),
    "gpus": ("parallelism.dp",),
    "num_microbatches": ("global_batch_size", "gradient_accumulation_steps"),
    "gradient_accumulation_steps": ("global_batch_size", "num_microbatches"),
    "global_batch_size": ("num_microbatches", "gradient_accumulation_steps"),
    "pipeline": ("pipeline.chunks", "pipeline.schedule"),
    "parallelism.pp": ("parallelism.layers_per_stage",),
}
"""Keys of a file that an override of another key replaces."""
OTHERWISE: Mapping[str, str] = {
    "model": ", or the path of a Hugging Face config.json",
    "parallelism": ", or each degree as a key, such as parallelism.tp=4",
}
"""What a key takes instead of an option, for those who ask for one that there is not."""
SCRIPTS = (".sh", ".py", ".toml", ".yaml", ".yml")
"""Ends of the names of files that trainers read, or are started by."""
WITHOUT_OPTIONS = ("iteration", "training")
"""Records whose values are in the primary file itself."""


def groups(record: type[Workload] = Workload) -> tuple[str, ...]:
    """Names of the Hydra groups: the records in a workload, or in what extends it, that have a folder of options."""
    return tuple(f.name for f in dataclasses.fields(record) if record_types(f.type) and f.name not in WITHOUT_OPTIONS)


def options(group: str, config_dir: Path) -> list[str]:
    """Names of the options of `group`, sorted."""
    return sorted(path.stem for path in (config_dir / group).glob("*.yaml"))


def is_file(group: str, option: Any) -> bool:
    """Whether `option` is the path of a Hugging Face configuration rather than the name of an option."""
    return group == "model" and isinstance(option, str) and (option.endswith(".json") or "/" in option)


def is_record(group: str, option: Any) -> bool:
    """Whether `option` is a model itself, as keys and values, rather than the name of one."""
    return group == "model" and isinstance(option, Mapping)


def replaced(earlier: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a file and, in the place of those that they decide, `overrides`; others follow.

    An override decides its key, the keys of its record, and what a word stands for that it, or the file, has.

    Example:
        >>> replaced(["gpus=64", "parallelism.tp=8"], ["parallelism.dp=2", "microbatch_size=2"])
        ['parallelism.tp=8', 'parallelism.dp=2', 'microbatch_size=2']
    """
    keys = {key_of(text) for text in overrides}
    decided = {word for key in keys for word in DECIDES.get(key, ())}
    if {"microbatch_size", "num_microbatches"} <= keys:
        decided.add("global_batch_size")

    def stays(text: str) -> bool:
        key = key_of(text)
        parents = {key.rpartition(".")[0], key.partition(".")[0]}
        return key not in keys | decided and not (parents & keys) and not ("parallelism" in keys and key == "gpus")

    return [*filter(stays, earlier), *overrides]


def key_named(word: str) -> str | None:
    """Return the key of a workload that a word is, or ends; None where there is none.

    Example:
        >>> key_named("gpus"), key_named("tp"), key_named("verbose")
        ('gpus', 'parallelism.tp', None)
    """
    keys = _keys(Workload)
    return word if word in keys else next((key for key in keys if key.rpartition(".")[2] == word), None)


def key_of(override: str) -> str:
    """Return the key of an override."""
    return override.partition("=")[0]


def _parse(text: str, config_dir: Path, record: type[Workload]) -> Override:
    if "=" not in text:
        meant = [f"{group}={text}" for group in groups(record) if text in options(group, config_dir)]
        hint = f"perhaps you meant {meant[0]}" if meant else f"write key=value, such as {EXAMPLE}"
        raise ConfigError(f"'{text}': not an override; {hint}.")
    key, _, value = text.partition("=")
    signs = set(value) & set("'\\,()[]{}$")
    if is_file(key, value) and value.isprintable() and (not signs or (signs <= set(",()[]") and _exists(value))):
        text = f"{key}='{value.strip(chr(34))}'"  # Hydra's grammar has no signs and letters but those of English
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        reason = " ".join(str(error).split()).partition(" expecting ")[0]
        raise ConfigError(
            f"'{text}': not a valid override ({reason}); write key=value, and quote a value with spaces or signs: "
            "\"key='a value'\"."
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or as many brackets
        raise ConfigError(f"'{text}': not a valid override (a number too long, or lists too deep).") from error


def _check_key(text: str, override: Override, record: Any) -> None:
    key = override.key_or_group
    _check_supported(text, key)
    if override.type is OverrideType.DEL:
        raise ConfigError(f"{text}: '{key}' cannot be deleted; give it another value: {key}=value.")
    if override.type is not OverrideType.CHANGE:
        raise ConfigError(f"{text}: no key can be added; to change one that exists, write it without '+'.")
    if override.package is not None:
        raise ConfigError(f"{text}: '@' has no meaning here; write {key}=option.")
    if key.startswith("gpu.coefficients.") and key.rpartition(".")[2] in SET_BY_SOFTWARE:
        name = key.rpartition(".")[2]
        instead = "give gpu.power_limit_w=..." if name == WARM else f"write software.{name}=..."
        raise ConfigError(f"{text}: follows from the software and the power limit; {instead}")
    keys = _keys(record)
    if key not in keys:
        raise ConfigError(f"{text}: unknown key; {_suggest_key(key, keys)}.")


def _exists(path: str) -> bool:
    """Whether there is a file, so that commas and brackets are of its name rather than of a sweep."""
    try:
        return Path(path).expanduser().is_file()
    except (OSError, RuntimeError):  # a name too long, or a home of nobody
        return False


def _check_supported(text: str, name: str) -> None:
    if name in UNSUPPORTED:
        raise ConfigError(f"{text}: not supported: {UNSUPPORTED[name]}.")


def may_be_null(key: str, record: Any) -> bool:
    """Whether a dotted key of a record may have no value; a record that has one by itself is never missing."""
    name, _, rest = key.partition(".")
    hint = typing.get_type_hints(record).get(name)
    return (
        any(may_be_null(rest, inner) for inner in record_types(hint)) if rest else type(None) in typing.get_args(hint)
    )


@cache
def _keys(record: Any) -> tuple[str, ...]:
    """Dotted paths of everything that can be overridden, groups and words included."""
    return (*_paths(record), *WORDS)


def _paths(record: Any) -> Iterator[str]:
    hints = typing.get_type_hints(record)
    for field in dataclasses.fields(record):
        yield field.name
        for inner in record_types(hints[field.name]):
            yield from (f"{field.name}.{path}" for path in _paths(inner))


def _suggest_key(key: str, keys: Sequence[str]) -> str:
    """Return the key of that name deeper down, else a close one, else those that there are at its place."""
    if key in RENAMED:
        return RENAMED[key]
    asked = next((option for names, option in OPTIONS.items() if key.partition(".")[0] in names.split()), None)
    if asked is not None:
        return f"it is {asked} here"
    by_leaf: Mapping[str, str] = {path.rpartition(".")[2]: path for path in reversed(keys)}
    parent, _, leaf = key.rpartition(".")
    is_degree = parent == "parallelism" or "_parallel" in leaf
    named = (is_degree and LONG_NAMES.get(LONG_END.sub("", leaf))) or by_leaf.get(leaf)
    if named:
        return f"perhaps you meant {named}"
    beside = {path.rpartition(".")[2]: path for path in keys if path.rpartition(".")[0] == parent}
    for places in (beside, by_leaf):
        close = closest(leaf, places)
        if close:
            return f"perhaps you meant {places[close]}"
    if parent in keys:
        return f"{parent} has: {', '.join(sorted(beside))}" if beside else f"perhaps you meant {parent}"
    return ELSEWHERE.get(key) or suggest(key, [path for path in keys if "." not in path])


def _settings(override: Override, config_dir: Path, record: type[Workload]) -> list[Setting]:
    """Settings that an override stands for."""
    singles = [override]
    if override.is_sweep_override():
        values = _swept(override, config_dir, record)
        singles = [_parse(f"{override.key_or_group}={value}", config_dir, record) for value in values]
    if not singles:
        raise ConfigError(f"{override.input_line}: the sweep is empty; check its bounds.")
    settings = [
        _as_spelled(Setting(str(single.input_line), single.key_or_group, single.value()), config_dir, record)
        for single in singles
    ]
    for setting in settings:
        if setting.value == MISSING:
            raise ConfigError(f"{setting.text}: '{MISSING}' means that a value is missing; replace it with a value.")
    for setting in settings:
        _check_supported(setting.text, f"{setting.key}={setting.value}")
        if setting.key in groups(record):
            _check_option(setting, config_dir)
    return settings


def _as_spelled(setting: Setting, config_dir: Path, record: type[Workload]) -> Setting:
    """Return a setting with its option as the file spells it, such as of a name from an answer: gpu=H100-SXM5-80GB."""
    group, option = setting.key, setting.value
    if group not in groups(record) or not isinstance(option, str) or option.lower() not in options(group, config_dir):
        return setting
    return Setting(f"{group}={option.lower()}", group, option.lower())


def _swept(override: Override, config_dir: Path, record: type[Workload]) -> list[str]:
    group, pattern = override.key_or_group, override.value()
    if override.is_interval_sweep():
        raise ConfigError(
            f"{override.input_line}: an interval has no values to list; use range(start,stop,step) or a,b."
        )
    if isinstance(pattern, RangeSweep):
        _check_length(pattern, override)
    if not isinstance(pattern, Glob):
        return list(override.sweep_string_iterator())
    if group not in groups(record):
        names = ", ".join(groups(record))
        raise ConfigError(f"{override.input_line}: glob() is for groups ({names}); list the values: a,b.")
    matching: list[str] = pattern.filter(options(group, config_dir))
    if not matching:
        raise ConfigError(f"{override.input_line}: matches none; allowed: {', '.join(options(group, config_dir))}.")
    return matching


def _check_length(sweep: RangeSweep, override: Override) -> None:
    """Check, before a range is listed, that it has no more values than a sweep may have combinations."""
    start, stop, step = (float(bound) for bound in (sweep.start or 0, sweep.stop or 0, sweep.step))
    if step and (stop - start) / step > MOST_COMBINATIONS:
        raise ConfigError(
            f"{override.input_line}: more than {MOST_COMBINATIONS:,} values; sweep fewer at once, such as with a "
            "larger step."
        )


def _check_option(setting: Setting, config_dir: Path) -> None:
    group, option = setting.key, setting.value
    allowed = options(group, config_dir)
    if is_record(group, option):
        return
    if not isinstance(option, str) or not option:
        raise ConfigError(
            f"{setting.text}: '{group}' takes the name of an option ({', '.join(allowed)}); "
            f"to change one of its keys, write {group}.key=value."
        )
    if group == "model" and Path(option).suffix in SCRIPTS and not Path(option).is_dir():
        raise ConfigError(
            f"{setting.text}: not a config.json; what a trainer's file says is read by kareus predict --from {option}."
        )
    if option not in allowed and not is_file(group, option):
        if group == "model" and (Path(option) / "config.json").is_file():
            raise ConfigError(f"{setting.text}: a folder; write model={Path(option) / 'config.json'}.")
        likely, otherwise = meant(option, allowed), OTHERWISE.get(group, "")
        if group == "model" and not likely and Path(option).suffix[1:].isalpha():
            _refuse_missing(setting, _near_file(option) or "give the path of a config.json")
        raise ConfigError(
            f"{setting.text}: unknown option; {likely}{'; ' if likely else ''}allowed: {', '.join(allowed)}{otherwise}."
        )
    if is_file(group, option):
        if not Path(option).expanduser().exists():
            likely = meant(Path(option).name, allowed) or _near_file(option)
            if likely:
                _refuse_missing(setting, f"{likely}; else give the path of a config.json on this machine")
        check_path(option, group)


def _refuse_missing(setting: Setting, remedy: str) -> NoReturn:
    raise ConfigError(f"{setting.key}={setting.value}: no such file; {remedy}.")


def _near_file(option: str) -> str:
    """Return "perhaps you meant ..." with the file in the folder of a path that it is nearly the name of; or ""."""
    path = Path(option).expanduser()
    near = closest(path.name, sorted(each.name for each in path.parent.glob("*.json")))
    return f"perhaps you meant {Path(option).parent / near}" if near else ""
