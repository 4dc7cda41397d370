"""Trainings that take seconds on a CPU: a workload of a thousand weights or so, and what a training of it leaves."""

import hashlib
import sys
from pathlib import Path

import polars as pl

MODEL = {
    "hidden_size": 32, "intermediate_size": 48, "num_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 264, "layers_per_stage": "{}",
}  # fmt: skip
"""Changes of a model that make it tiny."""


def resolving(stages: int, output: object) -> list[str]:
    """Arguments of `kareus` that write the workload."""
    split = ",".join("2" if stages == 1 else "1" for _ in range(stages))
    degrees = f"parallelism.pp={stages}", "parallelism.tp=1", "parallelism.cp=1", "parallelism.dp=1"
    shape = "microbatch_size=2", "num_microbatches=2", "sequence_length=16"
    model = (f"model.{key}={value}" for key, value in MODEL.items())
    layers = f"parallelism.layers_per_stage=[{split}]"
    return ["resolve", "model=qwen3-1.7b", *model, *degrees, layers, *shape, "--output", str(output)]


def training(workload: Path, iterations: int, output: Path, *others: object) -> list[str]:
    """Arguments of `kareus` that train it, with a checkpoint after every iteration.

    The learning rate is constant, so that a training of more iterations begins as one of fewer.
    """
    base = ["train", "--workload", workload, "--iterations", iterations, "--output", output]
    base += ["--learning-rate", 3e-4, "--final-rate", 3e-4]
    return [str(a) for a in (*base, "--checkpoint-every", 1, "--communicator", "gloo", *others)]


def workload_below(folder: Path) -> Path:
    """Path of the workload that `resolving` wrote below a folder."""
    (path,) = folder.glob("*/config/workload.yaml")
    return path


def trained(output: Path, iteration: int) -> dict[str, object]:
    """What a training has come to: hash of each rank's tensors after an iteration, and the losses."""
    folder = output / f"checkpoints/iteration-{iteration:08d}"
    tensors = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}
    tables = {path.name: pl.read_parquet(path)["loss"].to_list() for path in output.glob("rank-*.parquet")}
    return tensors | tables


KAREUS = [sys.executable, "-m", "kareus"]
