"""Overrides of `kareus resolve`: keys that exist with odd values, sweeps, and noise."""

import random
from collections.abc import Callable
from pathlib import Path

from attacks.mutations import hostile_text, mutated
from attacks.surfaces.calls import call
from kareus.workload.overrides import groups, options

PLAIN = (
    "model=qwen3-1.7b",
    "parallelism=tp8,cp2tp4",
    "microbatch_size=range(2,8,2)",
    "parallelism.layers_per_stage=[14,14]",
    "gpu.search_frequencies={minimum_mhz:900,maximum_mhz:1410,stride_mhz:30}",
    "memory_reserve_gib=4.5",
    "search=glob(*)",
    "seed=choice(1,2)",
    "pipeline=interleaved",
    "pipeline.chunks=2",
)
"""Overrides that are right."""
KEYS = (
    "microbatch_size", "num_microbatches", "sequence_length", "recomputation", "seed", "memory_reserve_gib",
    "model.name", "model.hidden_size", "model.num_layers", "model.num_attention_heads", "model.vocab_size",
    "model.norm_epsilon", "model.rotary_base", "model.rotary_scaling", "model.layers_per_stage", "parallelism.dp",
    "parallelism.pp", "parallelism.tp", "parallelism.cp", "parallelism.layers_per_stage", "gpu.name", "gpu.memory_gib",
    "gpu.gpus_per_node", "gpu.sm_count", "gpu.static_power_w", "gpu.search_frequencies.stride_mhz",
    "gpu.search_frequencies.minimum_mhz", "testbed.time_noise", "testbed.kind", "testbed.cuda", "protocol.window_s",
    "protocol.cooldown_s", "space.sm_max", "space.sm_stride", "search.draws", "search.most", "search.enough",
    "pipeline.schedule", "pipeline.chunks", "pipeline.deadlines", "search", "model", "gpu", "testbed",
)  # fmt: skip
"""Keys whose values are drawn; most exist."""


def prepare(folder: Path, seed: int) -> Callable[[int], str]:
    """Return a function that resolves drawn overrides."""
    known = [f"{group}={option}" for group in groups() for option in options(group, folder / "config")]

    def attempt(number: int) -> str:
        chance = random.Random(f"overrides {seed} {number}")
        texts = [_override(chance, known) for _ in range(chance.randint(1, 3))]
        failure = call("resolve", *texts).failure
        return f"{failure} <- {ascii(texts)[:100]}" if failure else ""

    return attempt


def _override(chance: random.Random, known: list[str]) -> str:
    way = chance.randrange(4)
    if way == 0:
        return mutated(chance.choice([*PLAIN, *known]).encode(), chance).decode(errors="replace")[:20_000]
    if way == 1:
        return chance.choice([*PLAIN, *known])
    value = hostile_text(chance)
    if way == 2:  # noqa: PLR2004
        value = chance.choice((f"[{value}]", f"{{a:{value}}}", f"'{value}'", f"range({value},9)", f"{value},{value}1"))
    return f"{chance.choice(KEYS)}={value}"
