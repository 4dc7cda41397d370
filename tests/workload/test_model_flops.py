"""Model FLOPs, against those of the operators that extraction finds."""

import pytest
from helpers.trainings import tiny_workload
from helpers.worlds import GPT, LLAMA, QWEN

from kareus.graph.records import Batch
from kareus.model.config import Model
from kareus.partition.extract import extract
from kareus.profile.programs import chunk_shapes
from kareus.workload.model_flops import mfu, model_flops


@pytest.mark.parametrize(
    ("division", "model"),
    [
        ({}, LLAMA),
        ({"dp": 2, "pp": 2}, LLAMA),
        ({"tp": 2, "pp": 2}, QWEN),
        ({"tp": 2, "cp": 2}, LLAMA),
        ({"tp": 2, "pp": 2}, GPT),
    ],
)
def test_model_flops_are_those_of_all_operators(division: dict[str, int], model: Model) -> None:
    workload = tiny_workload(**division, model=model, sequence_length=32)
    parallelism = workload.parallelism
    graph = extract(workload.model, parallelism, workload.microbatch_size, workload.sequence_length)[Batch.MICROBATCH]
    block, embedding, head = (
        sum(operator.flops for segment in segments for operator in segment.operators)
        for segments in (graph.forward, graph.embedding_forward, graph.head_forward)
    )
    shapes = chunk_shapes(parallelism.split, workload.chunks).values()
    forward = sum(shape.layers * block + shape.first * embedding + shape.last * head for shape in shapes)
    assert model_flops(workload) == 3 * forward * workload.num_microbatches * parallelism.gpus_per_stage


def test_mfu_is_one_at_the_peak_of_all_gpus() -> None:
    workload = tiny_workload(dp=2, pp=2)
    peak = 4 * workload.gpu.bf16_tflops * 1e12
    assert mfu(workload, model_flops(workload) / peak) == pytest.approx(1)
