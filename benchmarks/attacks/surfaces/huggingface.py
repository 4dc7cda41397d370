"""Configurations of Hugging Face models, read by `kareus resolve model=PATH`."""

import random
from collections.abc import Callable
from pathlib import Path

from attacks.mutations import json_text, mutated, mutated_document
from attacks.surfaces.calls import call

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


def prepare(folder: Path, seed: int) -> Callable[[int], str]:
    """Return a function that resolves with a drawn configuration."""

    def attempt(number: int) -> str:
        chance = random.Random(f"huggingface {seed} {number}")
        path = folder / "hf" / "config.json"
        path.parent.mkdir(exist_ok=True)
        kind = chance.choice(("llama", "mistral", "qwen2", "qwen3"))
        text = json_text(CONFIG | {"model_type": kind}, chance)
        if chance.random() < 0.7:  # noqa: PLR2004
            text = json_text(mutated_document(CONFIG | {"model_type": kind}, chance), chance)
        else:
            text = mutated(text, chance)
        path.write_bytes(text)
        return call("resolve", f"model={path.relative_to(folder)}", "microbatch_size=2").failure

    return attempt
