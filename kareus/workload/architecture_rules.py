"""Rules of the table of architectures: each gives a field of a model from the keys of its `config.json`."""

from collections.abc import Callable, Mapping
from typing import Any

from kareus.errors import ConfigError
from kareus.model.config import MOST_BLOCKS, PositionKind
from kareus.model.features import Branches
from kareus.workload.huggingface_values import boolean, integer, listed, number

Config = Mapping[str, Any]
Rule = Callable[[Config], Any]
"""Gives a field's value from the keys of a file."""


def flag(key: str) -> Rule:
    """Return a rule that reads true or false."""
    return lambda config: boolean(config, key)


def real(key: str) -> Rule:
    """Return a rule that reads a number greater than 0, or null."""
    return lambda config: None if config.get(key) is None else number(config, key)


def over(key: str) -> Rule:
    """Return a rule that divides 1 by the number of a key."""
    return lambda config: 1 / number(config, key)


def four_times(size: str) -> Rule:
    """Return a rule that gives four times a size, as most MLPs are wide that no key says."""
    return lambda config: 4 * integer(config, size)


def own_heads(heads: str) -> Rule:
    """Return a rule that gives each head of queries a head of keys."""
    return lambda config: integer(config, heads)


def past(key: str) -> Rule:
    """Return a rule that gives the blocks from the number that a key has on (Qwen's `max_window_layers`)."""
    return lambda config: tuple(range(min(_count(config, key), layers_of(config)), layers_of(config)))


def all_but_every(period: int, key: str = "sliding_window_pattern") -> Rule:
    """Return a rule that leaves out every last block of a period; the key may give another period."""

    def rule(config: Config) -> tuple[int, ...]:
        every = _count(config, key) if isinstance(config.get(key), int) else period
        return tuple(layer for layer in range(layers_of(config)) if every < 1 or (layer + 1) % every)

    return rule


def every_block(config: Config) -> tuple[int, ...]:
    """Return all blocks: a rule."""
    return tuple(range(layers_of(config)))


def layers_of(config: Config) -> int:
    """Return the number of blocks, which rules list one by one: so many that no list holds them are refused here."""
    layers = integer(config, "num_hidden_layers")
    if layers > MOST_BLOCKS:
        raise ConfigError(f"num_hidden_layers={layers}: must be from 1 to {MOST_BLOCKS:,} (blocks).")
    return layers


def _count(config: Config, key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 0:
        raise ConfigError(f"{key}={value!r}: expected a whole number, 0 or more.")
    return value


def unrotated(config: Config) -> tuple[int, ...]:
    """SmolLM 3 and Llama 4: ones and zeros by block, or every how many blocks one does not rotate."""
    said, every = config.get("no_rope_layers"), _count(config, "no_rope_layer_interval")
    if said is None or said == []:
        return tuple(layer for layer in range(layers_of(config)) if every and (layer + 1) % every == 0)
    if not isinstance(said, list) or len(said) != layers_of(config):
        raise ConfigError(f"no_rope_layers={said!r}: expected a 0 or 1 for each of num_hidden_layers.")
    return tuple(layer for layer, rotates in enumerate(said) if not rotates)


def unwindowed(config: Config) -> tuple[int, ...]:
    """Cohere 2 and EXAONE 4: only blocks with a window rotate, where there are any."""
    if config.get("sliding_window") is None:
        return ()
    kinds = config.get("layer_types")
    windowed = all_but_every(4)(config)
    if isinstance(kinds, list):
        windowed = tuple(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
    return tuple(layer for layer in range(layers_of(config)) if layer not in windowed)


def falcon_heads(config: Config) -> int:
    """Falcon: heads of keys and values, by three keys of which newer models have another one."""
    if boolean(config, "new_decoder_architecture"):
        return integer(config, "num_kv_heads" if config.get("num_kv_heads") is not None else "num_attention_heads")
    return 1 if boolean(config, "multi_query") else integer(config, "num_attention_heads")


def falcon_branches(config: Config) -> Branches:
    """Falcon: how attention and MLP follow each other, with a norm each or one for both."""
    newer, norms = boolean(config, "new_decoder_architecture"), config.get("num_ln_in_parallel_attn")
    if newer and norms in (None, 2):
        return Branches.PARALLEL
    return Branches.PARALLEL_ONE_NORM if newer or boolean(config, "parallel_attn") else Branches.SEQUENTIAL


def gpt_neo_local(config: Config) -> tuple[int, ...]:
    """GPT-Neo: blocks with a window, from what each is called, or from periods and how often each occurs."""
    kinds = listed(config, "attention_layers")
    for entry in [] if kinds else listed(config, "attention_types"):
        match entry:
            case [list(period), int(times)] if 0 <= times * len(period) <= MOST_BLOCKS:
                kinds = kinds + period * times
            case _:
                raise ConfigError(f"attention_types: {entry!r}: expected [[KIND, ...], TIMES].")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "local")


def rotates_if(config: Config, key: str) -> PositionKind:
    """Baichuan: the models of 13 billion parameters, which have ALiBi, do not have this key."""
    return PositionKind.ALIBI if config.get(key) is None else PositionKind.ROPE


def parallel_if(kind: Branches, key: str = "use_parallel_residual") -> Rule:
    """Return a rule that gives `kind` where a key is true, else branches one after the other."""
    return lambda config: kind if boolean(config, key) else Branches.SEQUENTIAL


def alibi_if(key: str) -> Rule:
    """Return a rule that gives ALiBi where a key is true, else rotary embeddings."""
    return lambda config: PositionKind.ALIBI if boolean(config, key) else PositionKind.ROPE
