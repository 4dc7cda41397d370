"""Falsified plans: each tells of another iteration than the one that was planned, and `check-plan` must refuse it.

Where plans are sealed, each is tried as it is and with a new seal.
"""

import copy
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attacks.commands import refusal_missing
from attacks.rows import Row, Try, row
from attacks.target import Target, workload_in

Plan = dict[str, Any]
SEAL = (
    "import json, sys; from kareus.artifacts.seals import sealed; "
    "json.dump(sealed({k: v for k, v in json.load(open(sys.argv[1])).items() if k != 'seal'}), open(sys.argv[1], 'w'))"
)
OTHER_MHZ = 900
"""A clock that the workload may have, and its fastest plan hardly has."""


def attacks(target: Target) -> Iterator[Row]:
    """Falsify the fastest plan, and offer others under its name."""
    folder = target.planned()
    workload = workload_in(folder)
    slow = target.kareus(folder, "select", "min-energy", workload)
    assert slow.code == 0, slow.output
    plans = {name: json.loads((workload / f"plan/{name}.json").read_text()) for name in ("fastest", "min-energy")}
    is_sealed = "seal" in plans["fastest"]
    for resealed in (False, True) if is_sealed else (False,):
        tries = []
        for number, (name, (of, falsify)) in enumerate(FALSIFIED.items()):
            plan = copy.deepcopy(plans[of])
            falsify(plan)
            path = workload / f"plan/falsified-{number}{'-sealed' * resealed}.json"
            path.write_text(json.dumps(plan))
            tries.append(Try(name, partial(_accepted, target, folder, str(path), resealed=resealed)))
        seal = " and sealed again" if resealed else "" if is_sealed else " (plans have no seal)"
        yield row(f"plans falsified{seal}, then `check-plan`", tries, target.jobs)


def _accepted(target: Target, folder: Any, path: str, *, resealed: bool) -> str:
    if resealed:
        sealing = target.python(folder, "-c", SEAL, path)
        assert sealing.code == 0, sealing.output
    done = target.kareus(folder, "check-plan", path)
    return "accepted" if done.code == 0 else refusal_missing(done)


def _instructions(plan: Plan) -> list[Plan]:
    return [instruction for stage in plan["stages"] for instruction in stage["instructions"]]


def _of_each(key: str, change: Callable[[Any], Any]) -> Callable[[Plan], None]:
    def falsify(plan: Plan) -> None:
        for instruction in _instructions(plan):
            instruction[key] = change(instruction[key])

    return falsify


def _said(key: str, value: Any) -> Callable[[Plan], None]:
    return lambda plan: plan.update({key: value})


def _one_clock(plan: Plan) -> None:
    first = _instructions(plan)[0]
    first["frequency_mhz"] = 1410 if first["frequency_mhz"] == OTHER_MHZ else OTHER_MHZ


def _deadline_missed(plan: Plan) -> None:
    plan["selector"] = f"deadline={plan['prediction']['time_s'] / 2:.6f}s"


def _energies_halved(plan: Plan) -> None:
    """Halve what instructions cost, with a prediction that follows from them."""
    per_stage = plan["gpus"] // len(plan["stages"])
    saved_j = sum(instruction["energy_j"] for instruction in _instructions(plan)) * per_stage / 2
    _of_each("energy_j", lambda energy_j: energy_j / 2)(plan)
    for key in ("energy_j", "dynamic_energy_j", "lower_bound_j"):
        plan["prediction"][key] -= saved_j


def _everything_halved(plan: Plan) -> None:
    """Halve times and energies together, so that power stays what it was."""
    for key in ("time_s", "energy_j", "start_s"):
        _of_each(key, lambda value: value / 2)(plan)
    plan["prediction"] = {key: value / 2 for key, value in plan["prediction"].items()}


def _predicted(key: str, factor: float) -> Callable[[Plan], None]:
    return lambda plan: plan["prediction"].update({key: plan["prediction"][key] * factor})


def _sm_counts(plan: Plan) -> None:
    for instruction in _instructions(plan):
        for choice in instruction["partitions"]:
            choice["sm_count"] = 3 if choice["sm_count"] != 3 else 6  # noqa: PLR2004 - both are in the search space


def _choices_swapped(plan: Plan) -> None:
    by_direction: dict[str, list[Plan]] = {}
    for instruction in _instructions(plan):
        by_direction.setdefault(instruction["direction"], []).append(instruction)
    for alike in by_direction.values():
        alike[0]["execution"] = "sequential" if alike[0]["execution"] != "sequential" else "nanobatching"
        alike[0]["partitions"] = []


def _detail(plan: Plan) -> None:
    plan["testbed"]["detail"] = "GPU model version 1, exact"


def _kind(plan: Plan) -> None:
    plan["testbed"]["kind"] = "cuda"


def _without_one(plan: Plan) -> None:
    plan["stages"][0]["instructions"].pop()


def _swapped(plan: Plan) -> None:
    instructions = plan["stages"][0]["instructions"]
    instructions[0], instructions[1] = instructions[1], instructions[0]


FALSIFIED: dict[str, tuple[str, Callable[[Plan], None]]] = {
    "all clocks 900 MHz, times unchanged": ("fastest", _of_each("frequency_mhz", lambda _: OTHER_MHZ)),
    "one clock changed": ("fastest", _one_clock),
    "method sequential": ("fastest", _said("method", "sequential")),
    "method perseus, which is none": ("fastest", _said("method", "perseus")),
    "deadline that the plan misses": ("min-energy", _deadline_missed),
    "the slowest plan as the fastest": ("min-energy", _said("selector", "fastest")),
    "the fastest plan as min-energy": ("fastest", _said("selector", "min-energy")),
    "a power it exceeds": ("fastest", _said("selector", "power=1W")),
    "an energy it exceeds": ("fastest", _said("selector", "energy=1J")),
    "a straggler of 1x": ("min-energy", _said("selector", "straggler=1.0x")),
    "a selector that is none": ("fastest", _said("selector", "best")),
    "energies halved, prediction too": ("fastest", _energies_halved),
    "times and energies halved": ("fastest", _everything_halved),
    "predicted energy 10 % less": ("fastest", _predicted("energy_j", 0.9)),
    "predicted time 10 % less": ("fastest", _predicted("time_s", 0.9)),
    "lower bound halved": ("fastest", _predicted("lower_bound_j", 0.5)),
    "other SM counts": ("fastest", _sm_counts),
    "other executions": ("fastest", _choices_swapped),
    "another version of the GPU model": ("fastest", _detail),
    "measured on real GPUs": ("fastest", _kind),
    "twice the GPUs": ("fastest", lambda plan: plan.update(gpus=2 * plan["gpus"])),
    "another workload's name": ("fastest", _said("workload", "mine")),
    "another workload's hash": ("fastest", _said("workload_hash", "0" * 16)),
    "an instruction less": ("fastest", _without_one),
    "two instructions swapped": ("fastest", _swapped),
}
"""Name of each falsification: the plan that it is made from, and the change."""
