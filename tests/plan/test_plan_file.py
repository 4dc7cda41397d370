"""A plan file: assembled from frontiers, checked against its schema, its workload and the pipeline's order."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest

from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.records import content_hash, to_plain
from kareus.artifacts.tables import write_table
from kareus.cli import main
from kareus.frontier.tables import MICROBATCH
from kareus.pipeline.tables import ITERATION
from kareus.plan.schema import plan_schema
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import slice_text

ROOT = Path(__file__).parents[2]
PROVENANCE = Provenance(
    config_hash="test", testbed=TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail="1"), seed=0
)
TIMES_S = {"forward": 0.1, "backward": 0.3}


def microbatch_rows():
    for stage in (0, 1):
        for direction, time_s in TIMES_S.items():
            for point, (execution, mhz) in enumerate([("overlap", 1410), ("sequential", 900)]):
                yield {
                    "method": "kareus",
                    "stage": stage,
                    "direction": direction,
                    "point": point,
                    "execution": execution,
                    "frequency_mhz": mhz,
                    "time_s": time_s * (1 + point),
                    "energy_j": 10.0,
                    "dynamic_energy_j": 8.0,
                    "effective_energy_j": 7.0,
                    "on_frontier": True,
                    "choices": [{"partition": "forward-mlp-allreduce", "sm_count": 6, "launch": "norm"}]
                    if execution == "overlap"
                    else [],
                }


def folder_of(tmp_path, *overrides):
    """The results folder of a small workload whose frontier has two plans."""
    ((name, workload),) = resolve_accepted(["num_microbatches=2", *overrides], ROOT / "config").items()
    folder = tmp_path / name
    (folder / "config").mkdir(parents=True)
    (folder / "config/plan.yaml").write_text(slice_text(workload, "plan"))
    write_table(
        folder / "frontier/microbatch.parquet", MICROBATCH.frame(list(microbatch_rows())), MICROBATCH, PROVENANCE
    )
    plans = [
        {
            "method": "kareus",
            "plan": plan,
            "time_s": time_s,
            "energy_j": energy_j,
            "static_energy_j": 0.25 * energy_j,
            "dynamic_energy_j": 0.75 * energy_j,
            "deadline_s": time_s,
            "lower_bound_j": energy_j,
            "gap": 0.0,
            "points": [plan] * 8,
        }
        for plan, (time_s, energy_j) in enumerate([(1.2, 2000.0), (2.4, 1500.0)])
    ]
    write_table(folder / "pipeline/iteration.parquet", ITERATION.frame(plans), ITERATION, PROVENANCE)
    return folder, workload


@pytest.fixture
def planned(tmp_path):
    folder, workload = folder_of(tmp_path)
    assert main(["select", "fastest", str(folder)]) == 0
    return folder, workload, folder / "plan/fastest.json"


def test_a_plan_says_what_every_stage_runs_in_order(planned):
    _, workload, path = planned
    plan = json.loads(path.read_text())
    assert (plan["selector"], plan["method"], plan["gpus"]) == ("fastest", "kareus", 16)
    assert plan["workload_hash"] == content_hash(workload)
    assert plan["testbed"]["kind"] == "simulated"
    first, last = plan["stages"]
    assert [(i["direction"], i["microbatch"]) for i in last["instructions"]] == [
        ("forward", 0),
        ("backward", 0),
        ("forward", 1),
        ("backward", 1),
    ]
    assert [s["layers"] for s in plan["stages"]] == [15, 13]
    assert first["instructions"][0]["partitions"] == [
        {"partition": "forward-mlp-allreduce", "sm_count": 6, "launch": "norm"}
    ]


def test_starts_respect_the_order_of_a_stage_and_the_way_between_stages(planned):
    plan = json.loads(planned[2].read_text())
    for stage in plan["stages"]:
        ends = [i["start_s"] + i["time_s"] for i in stage["instructions"]]
        assert all(i["start_s"] >= end - 1e-12 for i, end in zip(stage["instructions"][1:], ends, strict=False))
    first, last = plan["stages"]
    assert first["instructions"][0]["start_s"] == 0
    assert last["instructions"][0]["start_s"] > first["instructions"][0]["time_s"]


def test_a_slower_plan_is_chosen_where_time_allows(planned):
    folder, _, _ = planned
    assert main(["select", "deadline=2500ms", str(folder)]) == 0
    plan = json.loads((folder / "plan/deadline=2500ms.json").read_text())
    assert plan["prediction"]["energy_j"] == 1500.0
    assert plan["stages"][0]["instructions"][0]["execution"] == "sequential"


def test_the_published_schema_is_a_schema_and_accepts_the_plan(planned):
    jsonschema.Draft202012Validator.check_schema(plan_schema())
    jsonschema.validate(json.loads(planned[2].read_text()), plan_schema())


def test_a_good_plan_passes_its_check(planned):
    assert main(["check-plan", str(planned[2])]) == 0


def swap(plan):
    instructions = plan["stages"][1]["instructions"]
    instructions[1], instructions[2] = instructions[2], instructions[1]


BROKEN = {
    "of another schema version": (
        lambda p: p.update(schema_version=99),
        "plan schema version 99, this Kareus reads 1; select the plan anew",
    ),
    "with a key missing": (lambda p: p.pop("method"), "the document: 'method' is a required property"),
    "with a key too many": (
        lambda p: p["stages"][0].update(note="x"),
        "stages[0]: Additional properties are not allowed ('note' was unexpected)",
    ),
    "with a text for a number": (
        lambda p: p["stages"][0]["instructions"][1].update(frequency_mhz="1410"),
        "stages[0].instructions[1].frequency_mhz: '1410' is not of type 'integer'",
    ),
    "of another workload": (lambda p: p.update(workload_hash="0" * 16), "made for another workload"),
    "out of order": (swap, "stage 1 departs from the 1f1b order at instruction 1"),
    "cut short": (
        lambda p: p["stages"][0]["instructions"].pop(),
        "stage 0 departs from the 1f1b order at instruction 3",
    ),
    "without a stage": (lambda p: p["stages"].pop(), "has 1 stages, the workload 2"),
    "with an impossible clock": (
        lambda p: p["stages"][0]["instructions"][1].update(frequency_mhz=1411),
        "stage 0, forward of microbatch 1: frequency_mhz=1411 is not among 900-1410 by 30",
    ),
    "with too many SMs": (
        lambda p: p["stages"][0]["instructions"][0]["partitions"][0].update(sm_count=108),
        "forward-mlp-allreduce: sm_count=108 is not within 1-107",
    ),
    "with energies that do not add up": (
        lambda p: p["prediction"].update(static_energy_j=1.0),
        "static and dynamic energy do not add up",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plan_is_refused_in_one_line_and_left_alone(planned, capsys, name):
    breaks, message = BROKEN[name]
    plan = copy.deepcopy(json.loads(planned[2].read_text()))
    breaks(plan)
    planned[2].write_text(json.dumps(plan))
    before = planned[2].read_bytes()
    assert main(["check-plan", str(planned[2])]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"kareus check-plan: {planned[2]}")
    assert message in line
    assert line.count("\n") == 1
    assert planned[2].read_bytes() == before


def test_a_truncated_plan_is_refused(planned, capsys):
    planned[2].write_text(planned[2].read_text()[:200])
    assert main(["check-plan", str(planned[2])]) == 2
    assert "not valid JSON" in capsys.readouterr().err


def test_a_plan_is_refused_for_another_workload_of_the_same_shape(planned, tmp_path, capsys):
    other, _ = folder_of(tmp_path / "other", "seed=1")
    assert main(["check-plan", str(planned[2]), "--folder", str(other)]) == 2
    assert "made for another workload" in capsys.readouterr().err


def test_selecting_from_a_folder_without_results_says_so(tmp_path, capsys):
    assert main(["select", "fastest", str(tmp_path)]) == 2
    assert "is the folder of a planned workload?" in capsys.readouterr().err.replace(f"{tmp_path} ", "")


def test_an_unknown_method_is_refused_with_those_that_were_planned(planned, capsys):
    assert main(["select", "fastest", str(planned[0]), "--method", "perseus"]) == 2
    assert "--method perseus: not planned; perhaps you meant kareus." in capsys.readouterr().err


def test_a_plan_survives_reading(planned):
    from kareus.plan.check import read_plan  # noqa: PLC0415

    plan = read_plan(planned[2])
    assert to_plain(plan) == json.loads(planned[2].read_text())
