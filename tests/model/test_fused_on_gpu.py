"""The fused operators on a GPU, beside eager operations: numbers, and at least their speed."""

import dataclasses

import pytest
import torch
from helpers.builders import small_model
from helpers.worlds import GPT, MPT, NEMOTRON

from kareus.graph.records import Batch
from kareus.model.parallelism import Parallelism, Sharding
from kareus.partition.extract import extract
from onegpu.fusion import fusion

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


MODELS = {
    "qwen": (
        small_model(qk_norm=True),
        {"residual_norm", "residual_norm_backward", "norm_rotate", "norm_rotate_backward", "swiglu", "embed_backward"},
    ),
    "llama": (small_model(), {"rotate", "rotate_backward", "swiglu_backward", "cross_entropy_backward"}),
    "gpt": (
        GPT,
        {
            *("residual_layer_norm", "residual_layer_norm_backward", "activate"),
            *("embed_with_positions", "embed_with_positions_backward"),
        },
    ),
    "mpt": (MPT, {"residual_layer_norm", "residual_layer_norm_backward", "activate", "embed"}),
    "nemotron": (NEMOTRON, {"activate", "rotate", "rotate_backward"}),
}
"""Models, and kernels that they have, among others."""


@pytest.mark.parametrize(
    ("place", "model", "tp"),
    [
        *(("cpu", model, 1) for model in MODELS),
        ("cpu", "qwen", 2),  # a division changes sizes alone, as a rehearsal finds out on one model
        *(pytest.param("cuda", model, tp, marks=ON_GPU) for model in MODELS for tp in (1, 2)),
    ],
)
def test_fused_operators_are_the_eager_ones(place: str, model: str, tp: int) -> None:
    """On a CPU a rehearsal: both are eager."""
    degrees = Parallelism(dp=1, pp=1, tp=tp, cp=1, layers_per_stage=(2,), sharding=Sharding.NONE)
    of, names = MODELS[model]
    graph = extract(of, degrees, 2, 16)[Batch.NANOBATCH]
    segments = [segment for field in dataclasses.fields(graph) for segment in getattr(graph, field.name)]
    table = fusion(torch.device(place), [operator for segment in segments for operator in segment.operators])
    assert {row[0] for row in table.rows} >= names
    assert all(row[-1] == "yes" for row in table.rows), str(table)
