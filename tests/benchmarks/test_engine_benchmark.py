"""The benchmark of what the engine costs the host, on one workload and a single run."""

import sys

import pytest
from helpers.builders import CONFIG


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
