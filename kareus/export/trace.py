"""A plan as a Chrome trace, which Perfetto (ui.perfetto.dev) and `chrome://tracing` open.

Trace Event Format, JSON object form: one process for each pipeline stage with its instructions as complete events
(`X`), its clock and the power of one of its GPUs as counters (`C`), and a process with the power of all GPUs. Times are
in microseconds from the start of the iteration.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kareus.artifacts.files import read_json
from kareus.errors import ArtifactError
from kareus.gpu_model.gpu import Gpu
from kareus.graph.records import UPDATING
from kareus.plans.document import Plan, PlannedInstruction, StagePlan
from kareus.plans.power import power_over_time

PER_SECOND = 1e6
"""Units of the format in a second."""
ALL_GPUS = 0
"""Process of the whole job; stages follow."""
Event = dict[str, Any]


def chrome_trace(plan: Plan, gpu: Gpu) -> dict[str, Any]:
    """Return the document.

    Args:
        plan: a checked plan.
        gpu: that runs it.
    """
    return {
        "traceEvents": [*_total(plan, gpu), *itertools.chain(*_stages(plan, gpu))],
        "displayTimeUnit": "ms",
        "otherData": {
            "workload": plan.workload,
            "method": plan.method,
            "selector": plan.selector,
            "testbed": plan.testbed.label,
            "predicted_time_s": plan.prediction.time_s,
            "predicted_energy_j": plan.prediction.energy_j,
            "carries": "predicted times, clocks, mean powers, and how every instruction runs",
            "leaves_out": "what runs within an instruction; the trace is a prediction, no measurement",
        },
    }


def is_chrome_trace(path: Path) -> bool:
    """Return whether a file is one of `chrome_trace`."""
    try:
        document = read_json(path)
    except ArtifactError:
        return False
    return isinstance(document, dict) and {"traceEvents", "otherData"} <= set(document)


def _total(plan: Plan, gpu: Gpu) -> Iterator[Event]:
    name = f"{plan.gpus} GPUs: {plan.method}, {plan.selector} ({plan.testbed.label})"
    yield from _process(ALL_GPUS, name)
    for time_s, power_w in power_over_time(plan, gpu).iter_rows():
        yield _counter(ALL_GPUS, "power of all GPUs", time_s, "W", power_w)


def _stages(plan: Plan, gpu: Gpu) -> Iterator[Iterator[Event]]:
    for stage in plan.stages:
        yield _stage(stage, plan.prediction.time_s, gpu)


def _stage(stage: StagePlan, end_s: float, gpu: Gpu) -> Iterator[Event]:
    process = ALL_GPUS + 1 + stage.stage
    yield from _process(process, f"stage {stage.stage} ({stage.layers} blocks)")
    powers = [(wait.from_s, wait.power_w) for wait in stage.waits(end_s, gpu)]
    powers += [(i.start_s, i.energy_j / i.time_s) for i in stage.instructions]
    yield from (_power(process, from_s, power_w) for from_s, power_w in sorted(powers))
    for instruction in stage.instructions:
        yield _instruction(process, instruction)
        yield _counter(process, "clock", instruction.start_s, "MHz", instruction.frequency_mhz)


def _instruction(process: int, i: PlannedInstruction) -> Event:
    return {
        "ph": "X",
        "name": str(i.direction) if i.direction in UPDATING else f"{i.direction} {i.microbatch}",
        "cat": str(i.direction),
        "pid": process,
        "tid": process,
        "ts": i.start_s * PER_SECOND,
        "dur": i.time_s * PER_SECOND,
        "args": {
            **({} if i.direction in UPDATING else {"microbatch": i.microbatch}),
            "chunk": i.chunk,
            "execution": str(i.execution),
            "frequency_mhz": i.frequency_mhz,
            "energy_j": i.energy_j,
            "change_s": i.change_s,
            "power_w": i.energy_j / i.time_s,
            **{c.partition: f"{c.sm_count} SMs, beside {c.launch}" for c in i.partitions},
        },
    }


def _process(process: int, name: str) -> Iterator[Event]:
    for key, value in (("process_name", {"name": name}), ("process_sort_index", {"sort_index": process})):
        yield {"ph": "M", "name": key, "pid": process, "tid": process, "args": value}


def _power(process: int, time_s: float, power_w: float) -> Event:
    return _counter(process, "power of a GPU", time_s, "W", power_w)


def _counter(process: int, name: str, time_s: float, unit: str, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": process, "ts": time_s * PER_SECOND, "args": {unit: value}}
