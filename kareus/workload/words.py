"""Words for what a trainer's files give and a workload has as a product: batch of all replicas, GPUs of the job.

They are overrides as any other, and stand for the one key that follows from them: `global_batch_size` for
`num_microbatches`, or for `microbatch_size` where that is open; `gradient_accumulation_steps` for `num_microbatches`;
`gpus` for `parallelism.dp`. Where they are given beside the key they stand for, both have to agree.
"""

from collections.abc import Mapping
from typing import Any

from kareus.errors import ConfigError

GLOBAL_BATCH, ACCUMULATION, GPUS = "global_batch_size", "gradient_accumulation_steps", "gpus"
WORDS = (GLOBAL_BATCH, ACCUMULATION, GPUS)
DP, MICROBATCH, MICROBATCHES = "parallelism.dp", "microbatch_size", "num_microbatches"
DEGREES = ("parallelism.tp", "parallelism.pp", "parallelism.cp")
"""Degrees of parallelism within a replica."""


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
