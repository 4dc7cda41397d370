"""A plan file: assembled from frontiers, checked against its schema, its workload and the pipeline's order."""

import copy
import dataclasses
import json
import math
from pathlib import Path

import jsonschema
import pytest
from helpers.builders import resealed

from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.records import content_hash, to_plain
from kareus.artifacts.seals import sealed
from kareus.artifacts.tables import write_table
from kareus.cli import main
from kareus.errors import ArtifactError
from kareus.frontiers.tables import MICROBATCH
from kareus.partition.config import subject_of
from kareus.pipeline.tables import ITERATION
from kareus.pipeline.transfers import transfers_s
from kareus.plans.check import check_plan
from kareus.plans.file import read_plan
from kareus.plans.schema import plan_schema
from kareus.schedule.tables import SPACE
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import cut, slice_text

ROOT = Path(__file__).parents[2]
TESTBED = TestbedIdentity(kind="simulated", gpu="A100-SXM4-40GB", detail="1")
TIMES_S = {"forward": 0.1, "backward": 0.3}
ENERGIES_J = {"forward": 30.0, "backward": 80.0}
FORWARD = ("forward-attention-allreduce", "forward-mlp-allreduce")
BACKWARD = (*FORWARD, "backward-mlp-allreduce", "backward-attention-allreduce")
PARTITIONS = {"forward": FORWARD, "backward": BACKWARD}
NO_UPDATE = "iteration.include_update=false"


def microbatch_rows():
    for stage in (0, 1):
        for direction, time_s in TIMES_S.items():
            for point, (execution, mhz) in enumerate([("overlap", 1410), ("sequential", 900)]):
                yield {
                    "method": "kareus",
                    "stage": stage,
                    "chunk": 0,
                    "direction": direction,
                    "point": point,
                    "execution": execution,
                    "frequency_mhz": mhz,
                    "time_s": time_s * (1 + point),
                    "energy_j": ENERGIES_J[direction] / (1 + point),
                    "dynamic_energy_j": 8.0,
                    "effective_energy_j": ENERGIES_J[direction] / (1 + point) - 85 * time_s * (1 + point),
                    "is_thinned": False,
                    "time_error_s": 0.0,
                    "energy_error_j": 0.0,
                    "on_frontier": True,
                    "choices": [{"partition": name, "sm_count": 6, "launch": "norm"} for name in PARTITIONS[direction]]
                    if execution == "overlap"
                    else [],
                }


def predicted(workload, scale):
    """Two microbatches pass stage 1 without a gap, once there and back; what does not work waits for 16 GPUs."""
    (transfer_s,) = transfers_s(cut(workload, "pipeline"))
    time_s = scale * (0.1 + 2 * (0.1 + 0.3) + 0.3) + 2 * transfer_s
    idle_s = 2 * time_s - scale * 2 * 2 * (0.1 + 0.3)
    energy_j = 8 * (2 * 2 * (30.0 + 80.0) / scale + workload.gpu.blocking_power_w * idle_s)
    static_energy_j = workload.gpu.static_power_w * time_s * 16
    return {
        "time_s": time_s,
        "energy_j": energy_j,
        "static_energy_j": static_energy_j,
        "dynamic_energy_j": energy_j - static_energy_j,
        "lower_bound_j": energy_j,
    }


def space_rows():
    for name in BACKWARD:
        for number, launch in enumerate(("norm", "gate_up")):
            row = {"partition": name, "candidate": number, "frequency_mhz": 1410, "sm_count": 6}
            yield row | {"launch": launch}


def origin(workload, stage):
    config_hash = content_hash(cut(workload, stage))
    return Provenance(config_hash=config_hash, testbed=TESTBED, seed=workload.seed, subject=subject_of(workload))


def folder_of(tmp_path, *overrides):
    """The results folder of a small workload whose frontier has two plans."""
    ((name, workload),) = resolve_accepted(["num_microbatches=2", NO_UPDATE, *overrides], ROOT / "config").items()
    folder = tmp_path / name
    (folder / "config").mkdir(parents=True)
    (folder / "config/plan.yaml").write_text(slice_text(workload, "plan"))
    microbatch = MICROBATCH.frame(list(microbatch_rows()))
    write_table(folder / "frontier/microbatch.parquet", microbatch, MICROBATCH, origin(workload, "frontier"))
    plans = [
        {
            "method": "kareus",
            "plan": plan,
            **predicted(workload, scale),
            "deadline_s": 3.0,
            "gap": 0.0,
            "points": [plan] * 8,
        }
        for plan, scale in enumerate([1, 2])
    ]
    write_table(folder / "schedule/space.parquet", SPACE.frame(list(space_rows())), SPACE, origin(workload, "schedule"))
    write_table(folder / "pipeline/iteration.parquet", ITERATION.frame(plans), ITERATION, origin(workload, "pipeline"))
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
        {"partition": name, "sm_count": 6, "launch": "norm"} for name in FORWARD
    ]


def test_starts_respect_stage_order_and_transfers(planned):
    plan = json.loads(planned[2].read_text())
    for stage in plan["stages"]:
        ends = [i["start_s"] + i["time_s"] for i in stage["instructions"]]
        assert all(i["start_s"] >= end - 1e-12 for i, end in zip(stage["instructions"][1:], ends, strict=False))
    first, last = plan["stages"]
    assert first["instructions"][0]["start_s"] == 0
    assert last["instructions"][0]["start_s"] > first["instructions"][0]["time_s"]


def test_a_slower_plan_is_chosen_where_time_allows(planned):
    folder, workload, _ = planned
    assert main(["select", "deadline=2500ms", str(folder)]) == 0
    plan = json.loads((folder / "plan/deadline=2500ms.json").read_text())
    assert plan["prediction"] == predicted(workload, 2)
    assert plan["stages"][0]["instructions"][0]["execution"] == "sequential"


def test_the_published_schema_is_a_schema_and_accepts_the_plan(planned):
    jsonschema.Draft202012Validator.check_schema(plan_schema())
    jsonschema.validate(json.loads(planned[2].read_text()), plan_schema())


def places(value):
    """Every object or list of parsed JSON, with the keys of what it holds."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from places(item)


def test_only_what_jsonschema_accepts_is_read(planned, tmp_path):
    path, plan = tmp_path / "plan.json", json.loads(planned[2].read_text())

    def is_read():
        path.write_text(json.dumps(resealed(plan)))
        try:
            read_plan(path)
        except ArtifactError:
            return False
        return True

    assert is_read()
    plan["stages"] = plan["stages"][:1]
    plan["stages"][0]["instructions"] = plan["stages"][0]["instructions"][:2]
    validator = jsonschema.Draft202012Validator(plan_schema())
    accepted = 0
    for holder, key in list(places(plan)):
        kept = holder[key]
        for other in (None, True, 0, -2, 1.5, -0.5, "x", [], {}, [kept], {"note": kept}, "forward"):
            holder[key] = other
            if is_read():
                accepted += 1
                assert validator.is_valid(json.loads(path.read_text())), (key, other)
        if isinstance(holder, dict):
            del holder[key]
            assert not is_read() or validator.is_valid(json.loads(path.read_text())), key
        holder[key] = kept
    assert accepted > 0


def test_a_good_plan_passes_its_check(planned):
    assert main(["check-plan", str(planned[2])]) == 0


def instruction(plan, position=0):
    return plan["stages"][0]["instructions"][position]


def choice(plan, **changes):
    instruction(plan)["partitions"][0].update(changes)


def swap(plan):
    instructions = plan["stages"][1]["instructions"]
    instructions[1], instructions[2] = instructions[2], instructions[1]


BROKEN = {
    "of another schema version": (
        lambda p: p.update(schema_version=99),
        "plan schema version 99, this Kareus reads 6; select the plan anew",
    ),
    "with a key missing": (lambda p: p.pop("method"), "method: missing; give it a value; select the plan anew"),
    "with a key too many": (
        lambda p: p["stages"][0].update(note="x"),
        "stages[0].note: unknown key; allowed: instructions, layers, stage; select",
    ),
    "with a text for a number": (
        lambda p: p["stages"][0]["instructions"][1].update(frequency_mhz="1410"),
        "stages[0].instructions[1].frequency_mhz: expected int, got '1410'",
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
        "forward-attention-allreduce: sm_count=108 is not in the search space; allowed: 3, 6, 9, 12, 15, 18, 21, 24",
    ),
    "with energies that do not add up": (
        lambda p: p["prediction"].update(static_energy_j=1.0),
        "prediction.static_energy_j=1, its instructions make it",
    ),
    "with SMs between two steps of the space": (lambda p: choice(p, sm_count=7), "sm_count=7 is not in the search"),
    "with SMs beyond the space": (lambda p: choice(p, sm_count=107), "sm_count=107 is not in the search space"),
    "with a launch that nothing searched": (
        lambda p: choice(p, launch="nonsense"),
        "forward-attention-allreduce: launch 'nonsense' is not in the search space; allowed: norm, gate_up",
    ),
    "with an unknown partition": (
        lambda p: choice(p, partition="nonsense"),
        "with the partitions nonsense, forward-mlp-allreduce; expected forward-attention-allreduce, forward-mlp-",
    ),
    "with a partition dropped": (
        lambda p: instruction(p)["partitions"].pop(),
        "with the partitions forward-attention-allreduce; expected forward-attention-allreduce, forward-mlp-allreduce",
    ),
    "with a partition doubled": (
        lambda p: instruction(p)["partitions"].append(instruction(p)["partitions"][0]),
        "with the partitions forward-attention-allreduce, forward-mlp-allreduce, forward-attention-allreduce; exp",
    ),
    "with the partitions of a forward in a backward": (
        lambda p: instruction(p, 2).update(partitions=instruction(p)["partitions"]),
        "backward of microbatch 0: execution 'overlap' with the partitions forward-attention-allreduce, forward-mlp",
    ),
    "with partitions in sequence": (
        lambda p: instruction(p).update(execution="sequential"),
        "execution 'sequential' with the partitions forward-attention-allreduce, forward-mlp-allreduce; expected none",
    ),
    "with an unknown execution": (
        lambda p: instruction(p).update(execution="foo"),
        "execution: 'foo' is not known; ",
    ),
    "with an unknown direction": (lambda p: instruction(p).update(direction="up"), "direction: 'up' is not known; "),
    "of an unknown method": (lambda p: p.update(method="foo"), "method: 'foo' is not known; allowed: kareus, "),
    "of an unknown testbed": (
        lambda p: p["testbed"].update(kind="foo"),
        "testbed.kind: 'foo' is not known; ",
    ),
    "of another testbed": (
        lambda p: p["testbed"].update(kind="cuda"),
        "testbed.kind: 'cuda', the workload has 'simulated'",
    ),
    "of another GPU": (lambda p: p["testbed"].update(gpu="H200"), "testbed.gpu: 'H200', the workload has 'A100-SXM4"),
    "with another number of GPUs": (lambda p: p.update(gpus=3), "gpus: 3, the workload has 16"),
    "with other layers": (
        lambda p: p["stages"][0].update(layers=999),
        "layers of the stages: [999, 13], the workload has [15, 13]",
    ),
    "with another name": (lambda p: p.update(workload="other"), "workload: 'other', the workload has 'llama3.2-3b_"),
    "with a negative time": (
        lambda p: instruction(p).update(time_s=-1),
        "time_s: -1.0 is not above 0",
    ),
    "with a time that is no number": (
        lambda p: instruction(p).update(time_s=math.nan),
        "not valid JSON (NaN is not a finite number)",
    ),
    "with an infinite energy": (
        lambda p: instruction(p).update(energy_j=math.inf),
        "not valid JSON (Infinity is not a finite number)",
    ),
    "with a start that is not the earliest": (
        lambda p: instruction(p, 1).update(start_s=99),
        "stage 0, forward of microbatch 1: start_s=99, it can start at 0.1; the file was edited",
    ),
    "with another time of an instruction": (
        lambda p: instruction(p).update(time_s=0.05),
        "stage 0, forward of microbatch 1: start_s=0.1, it can start at 0.05",
    ),
    "with another iteration time": (
        lambda p: p["prediction"].update(time_s=1.0),
        "prediction.time_s=1, its instructions make it 1.2",
    ),
    "with another energy of an instruction": (
        lambda p: instruction(p).update(energy_j=29.0),
        "prediction.energy_j=",
    ),
    "with energies altered alike": (
        lambda p: p["prediction"].update({k: 0.9 * v for k, v in p["prediction"].items() if k != "time_s"}),
        "prediction.energy_j=",
    ),
    "with a bound above what it bounds": (
        lambda p: p["prediction"].update(lower_bound_j=1e6),
        "prediction.lower_bound_j=1e+06 is above energy_j",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plan_is_refused_in_one_line_and_left_alone(planned, capsys, name):
    breaks, message = BROKEN[name]
    plan = copy.deepcopy(json.loads(planned[2].read_text()))
    breaks(plan)
    planned[2].write_text(json.dumps(resealed(plan)))
    before = planned[2].read_bytes()
    assert main(["check-plan", str(planned[2])]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"kareus check-plan: {planned[2]}")
    assert message in line
    assert line.count("\n") == 1
    assert planned[2].read_bytes() == before


def test_a_number_too_large_to_be_finite_is_refused(planned, capsys):
    planned[2].write_text(planned[2].read_text().replace('"start_s": 0.0', '"start_s": 1e999', 1))
    assert main(["check-plan", str(planned[2])]) == 2
    assert "not valid JSON (1e999 is not a finite number); not a plan; give the one that" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["check-plan"], ["export", "--format", "csv"], ["compare"]])
@pytest.mark.parametrize("text", ["#!/bin/bash\ntorchrun pretrain_gpt.py --bf16\n", '{"model_type": "llama"}'])
def test_a_file_of_the_users_that_is_no_plan_is_not_to_be_deleted(command, text, planned, tmp_path, capsys):
    path = tmp_path / "job.sh"
    path.write_text(text)
    assert main([*command, *[str(path)] * (2 if command == ["compare"] else 1)]) == 2
    line = capsys.readouterr().err
    assert f"{path}: " in line
    assert line.endswith("not a plan; give the one that `kareus select` prints.\n")
    assert "delete" not in line


def test_overlap_is_refused_for_a_workload_without_nanobatches(planned, tmp_path):
    _, odd = folder_of(tmp_path / "odd", "microbatch_size=5")
    plan = dataclasses.replace(read_plan(planned[2]), workload_hash=content_hash(odd))
    with pytest.raises(ArtifactError, match="execution 'overlap' is not possible for the workload; allowed: sequen"):
        check_plan(plan, odd, plan.workload, planned[2], {})


def test_a_truncated_plan_is_refused(planned, capsys):
    planned[2].write_text(planned[2].read_text()[:200])
    assert main(["check-plan", str(planned[2])]) == 2
    assert "not valid JSON" in capsys.readouterr().err


def test_a_plan_is_refused_for_another_workload_of_its_shape(planned, tmp_path, capsys):
    other, _ = folder_of(tmp_path / "other", "seed=1")
    assert main(["check-plan", str(planned[2]), "--folder", str(other)]) == 2
    assert "made for another workload" in capsys.readouterr().err


def test_selecting_from_a_folder_without_results_says_so(tmp_path, capsys):
    assert main(["select", "fastest", str(tmp_path)]) == 2
    assert "is the folder of a planned workload?" in capsys.readouterr().err.replace(f"{tmp_path} ", "")


FOREIGN = {
    "iteration of another model size": ("pipeline/iteration.parquet", "sequence_length=2048", "made for another workl"),
    "microbatch of another model size": ("frontier/microbatch.parquet", "sequence_length=2048", "made for another wo"),
    "iteration of another pipeline": ("pipeline/iteration.parquet", "pipeline.deadlines=7", "another configuration"),
    "microbatch of another GPU": (
        "frontier/microbatch.parquet",
        "gpu.power_limit_w=350",
        "made with another configuration",
    ),
    "iteration of another seed": ("pipeline/iteration.parquet", "seed=1", "inputs of one stage come from different"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_selecting_from_tables_of_another_workload_is_refused(planned, tmp_path, capsys, name):
    place, override, message = FOREIGN[name]
    other, _ = folder_of(tmp_path / "other", override)
    (planned[0] / place).write_bytes((other / place).read_bytes())
    assert main(["select", "min-energy", str(planned[0])]) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert not (planned[0] / "plan/min-energy.json").exists()


def test_tables_of_another_seed_than_the_workloads_are_refused(planned, tmp_path, capsys):
    other, _ = folder_of(tmp_path / "other", "seed=1")
    for place in ("pipeline/iteration.parquet", "frontier/microbatch.parquet"):
        (planned[0] / place).write_bytes((other / place).read_bytes())
    assert main(["select", "min-energy", str(planned[0])]) == 2
    assert "iteration.parquet: measured with seed 1, the workload has 0; rerun." in capsys.readouterr().err


@pytest.mark.parametrize("override", ["sequence_length=2048", "gpu=h200"])
def test_a_search_space_of_another_workload_is_refused(planned, tmp_path, capsys, override):
    other, _ = folder_of(tmp_path / "other", override)
    (planned[0] / "schedule/space.parquet").write_bytes((other / "schedule/space.parquet").read_bytes())
    assert main(["check-plan", str(planned[2])]) == 2
    assert "space.parquet: made " in capsys.readouterr().err


def test_a_method_that_was_not_planned_is_refused(planned, capsys):
    assert main(["select", "fastest", str(planned[0]), "--method", "perseus"]) == 2
    assert "--method perseus: not planned; perhaps you meant kareus." in capsys.readouterr().err


def test_a_plan_survives_reading(planned):
    plan = read_plan(planned[2])
    assert sealed(to_plain(plan)) == json.loads(planned[2].read_text())
