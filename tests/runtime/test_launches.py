"""Launches of the blocks of an instruction: no more than there were, and three with CUDA graphs."""

import dataclasses
from itertools import product

import pytest
import torch
from helpers.builders import CONFIG
from helpers.launches import Counting, launches
from helpers.trainings import tiny_workload

from kareus.graph.records import Direction
from kareus.workload.compose import compose
from kareus.workload.split import layers_per_stage

MOST = {Direction.FORWARD: 542, Direction.BACKWARD: 1021}
"""Of the first stage's blocks, over both models, both layouts, with and without sequence parallelism."""


def test_views_and_memory_are_no_launches() -> None:
    with Counting() as counting:
        tensor = torch.empty(4, 4, device="meta")
        tensor.view(-1, 1).t().add_(tensor.new_empty(1)).mul(2)
    assert counting.total == 2


@pytest.mark.acceptance
def test_graphs_leave_three_launches_of_an_instruction() -> None:
    pytest.importorskip("triton")
    one = tiny_workload(tp=2)
    layers = dataclasses.replace(one.model, num_layers=2 * one.model.num_layers)
    split = dataclasses.replace(one.parallelism, layers_per_stage=(layers.num_layers,))
    two = dataclasses.replace(one, model=layers, parallelism=split)
    counts = launches({"one": one, "two": two})
    for direction in MOST:
        single, double = (counts[name][direction] for name in ("one", "two"))
        assert single.with_graphs == double.with_graphs == 3
        assert 1.9 < double.launched / single.launched < 2.1


@pytest.mark.acceptance
def test_instructions_launch_no_more_than_they_did() -> None:
    pytest.importorskip("triton")
    workloads = {}
    for key in product(("llama3.2-3b", "qwen3-1.7b"), ("tp8", "cp2tp4"), ("false", "true")):
        model, degrees, shared = key
        overrides = [f"model={model}", f"parallelism={degrees}", f"parallelism.sequence_parallel={shared}"]
        bare = compose([*overrides, "microbatch_size=8"], CONFIG)[0].workload
        split = dataclasses.replace(bare.parallelism, layers_per_stage=layers_per_stage(bare))
        workloads[" ".join(key)] = dataclasses.replace(bare, parallelism=split)
    counts = launches(workloads)
    for direction, most in MOST.items():
        assert max(own[direction].launched for own in counts.values()) <= most
