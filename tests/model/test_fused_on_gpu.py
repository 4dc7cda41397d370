"""The fused operators on a GPU, beside eager operations: numbers, and at least their speed."""

import pytest
import torch
from helpers.builders import small_model

from kareus.graph.records import Batch
from kareus.model.config import Parallelism, Sharding
from kareus.partition.extract import extract
from onegpu.fusion import fusion

PLACES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
    ),
]


@pytest.mark.parametrize("place", PLACES)
def test_fused_operators_are_the_eager_ones(place: str) -> None:
    """On a CPU a rehearsal: both are eager."""
    degrees = Parallelism(dp=1, pp=1, tp=2, cp=1, layers_per_stage=(2,), sharding=Sharding.NONE)
    graph = extract(small_model(qk_norm=True), degrees, 2, 16)[Batch.NANOBATCH]
    segments = (*graph.forward, *graph.backward, *graph.head_forward, *graph.head_backward, *graph.embedding_backward)
    table = fusion(torch.device(place), [operator for segment in segments for operator in segment.operators])
    assert {row[0] for row in table.rows} >= {"residual_norm", "residual_norm_backward", "norm_rotate", "swiglu"}
    assert all(row[-1] == "yes" for row in table.rows), str(table)
