"""The benchmark of what the engine costs the host, on one workload and a single run."""

import dataclasses
import sys

import pytest
import torch
from helpers.builders import CONFIG
from helpers.trainings import tiny_workload

from kareus.graph.records import Direction


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("degrees", ["tp8", "cp2tp4"])
def test_both_directions_of_a_partition_are_measured(degrees, shared, monkeypatch):
    monkeypatch.syspath_prepend(CONFIG.parent / "benchmarks")
    import engine  # noqa: PLC0415 - found through the path above

    monkeypatch.setattr(engine, "RUNS", 1)
    workload = next(engine.composed("qwen3-1.7b", degrees, sequence_parallel=shared))
    measured = list(engine.measured(workload, engine.extract_nanobatch(workload)))
    assert len(measured) == len(engine.DIRECTIONS) == 2
    for direction, (host_s, own_s) in zip(engine.DIRECTIONS, measured, strict=True):
        assert 0 < own_s < host_s
        assert engine.predicted(workload, direction) > 0
    monkeypatch.delitem(sys.modules, "engine")


def test_views_and_memory_are_no_launches(monkeypatch):
    monkeypatch.syspath_prepend(CONFIG.parent / "benchmarks")
    from hosttime.launches import Counting  # noqa: PLC0415 - found through the path above

    with Counting() as counting:
        tensor = torch.empty(4, 4, device="meta")
        tensor.view(-1, 1).t().add_(tensor.new_empty(1)).mul(2)
    assert counting.total == 2


@pytest.mark.acceptance
def test_graphs_leave_three_launches_of_an_instruction(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.syspath_prepend(CONFIG.parent / "benchmarks")
    from hosttime.launches import launches  # noqa: PLC0415 - found through the path above

    one = tiny_workload(tp=2)
    layers = dataclasses.replace(one.model, num_layers=2 * one.model.num_layers)
    split = dataclasses.replace(one.parallelism, layers_per_stage=(layers.num_layers,))
    two = dataclasses.replace(one, model=layers, parallelism=split)
    counts = launches({"one": one, "two": two})
    for direction in (Direction.FORWARD, Direction.BACKWARD):
        single, double = (counts[name][direction] for name in ("one", "two"))
        assert single.with_graphs == double.with_graphs == 3
        assert 1.9 < double.launched / single.launched < 2.1
