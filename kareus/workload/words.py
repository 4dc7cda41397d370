"""Words for what a trainer's files give and a workload has as a product: batch of all replicas, GPUs of the job.

They are overrides as any other, and stand for the one key that follows from them: `global_batch_size` for
`num_microbatches`, or for `microbatch_size` where that is open; `gradient_accumulation_steps` for `num_microbatches`;
`gpus` for `parallelism.dp`. Where they are given beside the key they stand for, both have to agree.

A value is a word, too: `parallelism.sharding=hybrid` (HSDP) stands for `full` among the replicas of a node.
"""

from collections.abc import Mapping
from typing import Any

from kareus.errors import ConfigError
from kareus.model.parallelism import HYBRID

GLOBAL_BATCH, ACCUMULATION, GPUS = "global_batch_size", "gradient_accumulation_steps", "gpus"
WORDS = (GLOBAL_BATCH, ACCUMULATION, GPUS)
DP, MICROBATCH, MICROBATCHES = "parallelism.dp", "microbatch_size", "num_microbatches"
DEGREES = ("parallelism.tp", "parallelism.pp", "parallelism.cp")
"""Degrees of parallelism within a replica."""
SHARDING, SHARDS = "parallelism.sharding", "parallelism.shards"


def followed(words: Mapping[str, Any], given: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, int]:
    """Return the values of the keys that words stand for, by dotted key.

    Args:
        words: values of words.
        given: values of keys that are overridden beside them, by dotted key.
        usual: values of degrees and batch where nothing is overridden, by dotted key.

    Raises:
        ConfigError: a word has no such value, or does not agree with what is given.

    Example:
        >>> followed({"global_batch_size": 64}, {"parallelism.dp": 4}, {"microbatch_size": 2})
        {'num_microbatches': 8}
    """
    for word, value in words.items():
        if type(value) is not int or value < 1:
            raise ConfigError(f"{word}={value}: must be a whole number, 1 or more.")
    values: dict[str, Any] = {**usual, **given}
    derived: dict[str, int] = {}
    if GPUS in words:
        replica = [values[key] for key in DEGREES]
        derived[DP] = _share(words, GPUS, replica, "tp x pp x cp of parallelism")
    if ACCUMULATION in words:
        derived[MICROBATCHES] = words[ACCUMULATION]
    if GLOBAL_BATCH in words:
        replicas = derived.get(DP, values.get(DP))
        key, other = (MICROBATCHES, MICROBATCH)
        if MICROBATCH not in given and (MICROBATCHES in given or MICROBATCHES in derived):
            key, other = other, key
        size = derived.get(other, values.get(other))
        share = _share(words, GLOBAL_BATCH, [replicas, size], f"{DP} x {other}")
        if derived.setdefault(key, share) != share:
            raise ConfigError(_disagreement(words, key, share, derived[key]))
    for key, value in derived.items():
        if given.get(key, value) != value:
            raise ConfigError(_disagreement(words, key, value, given[key]))
    return derived


def shared_in_node(given: Mapping[str, Any], usual: Mapping[str, Any], gpus_per_node: int) -> dict[str, Any]:
    """Return the keys that `parallelism.sharding=hybrid` stands for: weights are shared out among replicas of a node.

    Args:
        given: values of keys that are overridden, by dotted key; those that words stand for among them.
        usual: values of degrees where nothing is overridden, by dotted key.
        gpus_per_node: GPUs of a node; replicas of equal rank within a stage fill it one after the other.

    Raises:
        ConfigError: a replica's part of a stage fills a node.

    Example:
        >>> usual = {"parallelism.tp": 2, "parallelism.cp": 1, "parallelism.dp": 8}
        >>> shared_in_node({"parallelism.sharding": "hybrid"}, usual, gpus_per_node=8)
        {'parallelism.sharding': 'full', 'parallelism.shards': 4}
    """
    full = {SHARDING: "full"}
    values = {**usual, **given}
    degrees = [values.get(key) for key in ("parallelism.tp", "parallelism.cp", DP)]
    tp, cp, dp = (part if type(part) is int else 0 for part in degrees)
    if given.get(SHARDS) is not None or min(tp, cp, dp) < 1:
        return full  # of the latter their record says what is wrong
    replicas = gpus_per_node // (tp * cp)
    if dp > 1 and replicas < 2:  # noqa: PLR2004 - one alone shares nothing
        raise ConfigError(
            f"{SHARDING}={HYBRID}: shares weights out among the replicas of a node, and tp x cp ({tp * cp}) of one "
            f"fills the {gpus_per_node} GPUs of a node; give {SHARDS}=N, such as {min(dp, 8)}."
        )
    return full if dp <= replicas else {**full, SHARDS: replicas}


def _share(words: Mapping[str, int], word: str, parts: list[Any], product: str) -> int:
    """Divide the value of a word by the product of parts; where these are no numbers, their records say so."""
    if not all(type(part) is int and part > 0 for part in parts):
        return 1
    whole = 1
    for part in parts:
        whole *= part
    if words[word] % whole:
        shown = " x ".join(map(str, parts))
        raise ConfigError(f"{word}={words[word]}: must be a multiple of {whole} ({product} = {shown}).")
    return words[word] // whole


def _disagreement(words: Mapping[str, int], key: str, value: int, other: Any) -> str:
    said = " ".join(f"{word}={words[word]}" for word in words)
    return f"{said}: gives {key}={value}, but {key}={other} is given; leave one of them out."
