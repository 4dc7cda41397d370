"""The parts of an optimizer step on one device: the bytes that planning counts for each, times, and bytes a second."""

from collections.abc import Callable

import torch

from kareus.graph.recomputation import Recomputation
from kareus.launch.process_groups import ProcessGroups
from kareus.model.communication import Mesh
from kareus.model.config import Model
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.shards import shard_of
from kareus.profile.programs import StageShape
from kareus.runtime.stage_chunks import StageChunks
from kareus.runtime.stage_model import StageModel
from kareus.training.optimizer import Optimizer, clip, whole_norm
from kareus.training.optimizer_sharding import OptimizerSharding
from kareus.training.settings import OptimizerSettings
from onegpu.fusion import least_s
from onegpu.table import Table

LAYERS, TOKENS = 4, 128
BYTES = {"norm": 4, "clip": 8, "adamw": 28, "publish": 6, "zero": 4}
"""Bytes that each part moves for a parameter (`kareus.update.costs`)."""
_LARGEST_NORM, _RATE = 1.0, 1e-4


def optimizer_step(model: Model, place: torch.device) -> Table:
    """Time of each part for four layers of `model` with its embedding and head, in bf16, on one GPU that holds all."""
    parallelism = Parallelism(
        dp=1, pp=1, tp=1, cp=1, layers_per_stage=(LAYERS,), sharding=Sharding.NONE, sequence_parallel=False
    )
    shape = StageShape(layers=LAYERS, first=True, last=True)
    shard = shard_of(model, parallelism, TOKENS)
    chunk = StageModel(model, shard, Mesh(), shape, torch.bfloat16, recomputation=Recomputation.STAGE).to(place)
    sharding = OptimizerSharding(StageChunks([chunk], (0,)), None)
    optimizer = Optimizer(sharding, OptimizerSettings(largest_norm=_LARGEST_NORM))
    (gradients,) = sharding.own_gradients
    gradients.normal_()
    norm = whole_norm(sharding, model, _ALONE, counts_head=True)
    optimizer.step(norm, _RATE)  # makes the moments
    gradients.normal_()
    parts: dict[str, Callable[[], object]] = {
        "norm": lambda: whole_norm(sharding, model, _ALONE, counts_head=True),
        "clip": lambda: clip([gradients], norm, _LARGEST_NORM),
        "adamw": optimizer._adamw.step,
        "publish": optimizer.publish,
        "zero": sharding.zero_gradients,
    }
    rows = []
    for name, part in parts.items():
        moved, time_s = BYTES[name] * gradients.numel(), least_s(part, place)
        rows.append((name, moved / 1e6, 1e3 * time_s, moved / time_s / 1e9))
    says = f"{gradients.numel() / 1e6:.0f} million parameters; bytes are those that planning counts."
    return Table("Optimizer step", says, ("part", "MB", "ms", "GB/s"), rows)


_ALONE = ProcessGroups(
    mesh=Mesh(),
    data=None,
    pipeline=None,  # type: ignore[arg-type] - of a rank without others
    pipeline_backward=None,  # type: ignore[arg-type]
    tensor=None,
    tied_embeddings=None,
    optimizer_shards=None,
)
