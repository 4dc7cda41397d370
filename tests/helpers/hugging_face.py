"""The reference of numerics: what transformers computes of a model with random weights.

`transformers` is imported by the functions that need it, in the process of a test: its ranks read files alone.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from kareus.model.config import Model
from kareus.runtime.schedules import Microbatch
from kareus.workload.huggingface_export import huggingface_config

LOSS = "loss"
"""Name of the loss among gradients, which have the names of weights."""


def save_checkpoint(model: Model, sequence_length: int, folder: Path) -> None:
    """Write a checkpoint of random weights that bf16 holds exactly; norms and biases show mistakes, too."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - see above

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(huggingface_config(model, sequence_length, "float32")))
    theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in theirs.named_parameters():
        spread = 0.2 if parameter.dim() > 1 else 0.4
        drawn = spread * torch.randn(parameter.shape, generator=generator) + (1.0 if "norm" in name else 0.0)
        parameter.data = drawn.bfloat16().float()
    theirs.save_pretrained(folder)


def save_gradients(folder: Path, microbatches: Sequence[Microbatch], dtype: torch.dtype, path: Path) -> None:
    """Write the mean loss over all microbatches and its gradients, as transformers computes them in `dtype`."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - see above

    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    mean_loss = torch.zeros(())
    for microbatch in microbatches:
        ids, labels = torch.from_numpy(microbatch.ids), torch.from_numpy(microbatch.labels)
        loss = theirs(input_ids=ids, labels=labels, shift_labels=labels).loss / len(microbatches)
        loss.backward()
        mean_loss += loss.detach().float()
    gradients = {name: weight.grad.float().contiguous() for name, weight in theirs.named_parameters()}
    save_file({LOSS: mean_loss, **gradients}, path)


def load_gradients(path: Path) -> dict[str, torch.Tensor]:
    """Read what `save_gradients` wrote."""
    return load_file(path)
