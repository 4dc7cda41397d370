"""The Chrome trace of a plan: what the Trace Event Format asks of every event, and the times of the plan."""

import dataclasses
import json
import math

import jsonschema
import pytest
from helpers.builders import a100
from helpers.report_tables import GPUS, plan

from kareus.export.trace import ALL_GPUS, chrome_trace, is_chrome_trace
from kareus.plans.power import power_over_time

GPU = a100(blocking_power_w=90.0, waiting_shares=((900.0, 0.5), (1410.0, 1.0)))
WAITING_W = {900: 45.0, 1155: 67.5, 1410: 90.0}
NUMBER, WHOLE, TEXT = {"type": "number", "minimum": 0}, {"type": "integer", "minimum": 0}, {"type": "string"}


def event(phase: str, needed: dict, args: dict) -> dict:
    """Schema of the events of a phase, from the document "Trace Event Format"."""
    fields = {"ph": {"const": phase}, "name": TEXT, "pid": WHOLE, **needed, "args": args}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    event("X", {"cat": TEXT, "tid": WHOLE, "ts": NUMBER, "dur": NUMBER}, {"type": "object"}),
                    event("C", {"ts": NUMBER}, {"type": "object", "additionalProperties": NUMBER, "minProperties": 1}),
                    event("M", {"tid": WHOLE}, {"type": "object", "minProperties": 1}),
                ]
            },
        },
    },
}


@pytest.fixture
def waiting():
    """A plan whose last stage starts late and waits before its last instruction."""
    own = plan("fastest", 0)
    last = own.stages[-1]
    late = tuple(
        dataclasses.replace(i, start_s=i.start_s + 0.25 + 0.25 * (i is last.instructions[-1]))
        for i in last.instructions
    )
    prediction = dataclasses.replace(own.prediction, time_s=3.5)
    return dataclasses.replace(
        own, stages=(*own.stages[:-1], dataclasses.replace(last, instructions=late)), prediction=prediction
    )


@pytest.fixture
def events(waiting):
    return chrome_trace(waiting, GPU)["traceEvents"]


def test_the_document_keeps_to_the_trace_event_format(waiting):
    document = json.loads(json.dumps(chrome_trace(waiting, GPU), allow_nan=False))
    jsonschema.validate(document, SCHEMA)
    assert {"carries", "leaves_out"} < set(document["otherData"])


def test_instructions_run_as_long_as_planned_and_one_at_a_time(waiting, events):
    for stage in waiting.stages:
        own = [e for e in events if e["ph"] == "X" and e["pid"] == ALL_GPUS + 1 + stage.stage]
        assert [e["name"] for e in own] == [f"{i.direction} {i.microbatch}" for i in stage.instructions]
        assert sum(e["dur"] for e in own) == pytest.approx(1e6 * sum(i.time_s for i in stage.instructions))
        ends = [e["ts"] + e["dur"] for e in own]
        assert all(end <= after["ts"] + 1e-3 for end, after in zip(ends, own[1:], strict=False))
    assert max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") == pytest.approx(1e6 * waiting.prediction.time_s)


def counter(events, process, name):
    return [
        (e["ts"] / 1e6, *e["args"].values()) for e in events if (e["ph"], e["pid"], e["name"]) == ("C", process, name)
    ]


def energy_j(steps, end_s):
    ends = [time_s for time_s, _ in steps[1:]] + [end_s]
    return math.fsum(power_w * (end - start) for (start, power_w), end in zip(steps, ends, strict=True))


def test_counters_add_up_to_the_energy_of_the_plan(waiting, events):
    """GPUs draw the mean power of their instruction, and that of waiting at its clock while they wait for it."""
    end_s, gpus = waiting.prediction.time_s, GPUS // len(waiting.stages)
    total = 0.0
    for stage in waiting.stages:
        own = sum(i.energy_j for i in stage.instructions)
        waits = stage.waits(end_s, GPU)
        own += sum(WAITING_W[wait.frequency_mhz] * (wait.to_s - wait.from_s) for wait in waits)
        steps = counter(events, ALL_GPUS + 1 + stage.stage, "power of a GPU")
        assert steps[0][0] == 0
        assert energy_j(steps, end_s) == pytest.approx(own)
        total += gpus * own
    assert energy_j(counter(events, ALL_GPUS, "power of all GPUs"), end_s) == pytest.approx(total)
    assert len(counter(events, ALL_GPUS, "power of all GPUs")) == len(power_over_time(waiting, GPU))


def test_clocks_change_with_instructions(waiting, events):
    for stage in waiting.stages:
        clocks = counter(events, ALL_GPUS + 1 + stage.stage, "clock")
        assert clocks == [(pytest.approx(i.start_s), i.frequency_mhz) for i in stage.instructions]


def test_a_trace_is_told_from_other_files(waiting, tmp_path):
    path = tmp_path / "own.trace.json"
    path.write_text(json.dumps(chrome_trace(waiting, GPU)))
    assert is_chrome_trace(path)
    path.write_text("{}")
    assert not is_chrome_trace(path)
