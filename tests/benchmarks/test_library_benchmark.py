"""The benchmark of planning as function calls."""

import json
import sys

import kareus
import library

SMALL = [
    "model=qwen3-1.7b",
    *("model.num_layers=4", "parallelism.layers_per_stage=[2,2]", "num_microbatches=4"),
    *("gpu.search_frequencies.stride_mhz=510", "pipeline.deadlines=2", "search=random"),
]
"""A workload that is planned in a second."""


def test_one_object_has_every_figure(monkeypatch, capsys):
    monkeypatch.setattr(library, "SHAPES", 3)
    monkeypatch.setattr(library, "STARTS", 2)
    small = kareus.resolve(SMALL, library.CONFIG)
    monkeypatch.setattr(library.kareus, "resolve", lambda overrides, config: small, raising=False)
    monkeypatch.setattr(sys, "argv", ["library.py", "--json", "--skip-campaigns"])
    library.main()
    measured = json.loads(capsys.readouterr().out)
    campaigns = ["quickstart_s", "paper_campaign_s", "paper_campaign_cpu_s"]
    assert list(measured) == ["predict_s", "plan_s", "import_kareus_s", *campaigns]
    assert 0 < measured["predict_s"] < 1
    assert measured["import_kareus_s"] < 1
    assert all(measured[name] is None for name in campaigns)


def test_a_plan_is_timed_after_one_of_another_seed(monkeypatch):
    (workload,) = library.kareus.resolve([], library.CONFIG)
    planned = []
    monkeypatch.setattr(library.kareus, "plan", planned.append, raising=False)
    assert library.plan_s(workload) >= 0
    assert [w.seed for w in planned] == [1, 0]
