"""Playing a plan back on the simulated testbed: whole instructions on the GPU model, with noise, in pipeline order.

It shows how far a plan's prediction, put together from partitions that were measured and chosen one by one, is from
what the GPU model makes of whole instructions on a chip that stays warm, and what jitter does to a pipeline. It says
nothing of how right the GPU model is. One GPU stands for all of its stage.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kareus.arrays import Array, generator
from kareus.gpu_model.model import KnownSteps, run_tally, tally
from kareus.gpu_model.thermal import Interval, at_reference_j
from kareus.gpu_model.waiting import waiting_power_w
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import UPDATING, Batch, BlockGraph, Program
from kareus.pipeline.solver.dag import earliest_starts_s, iteration_dag
from kareus.plans.document import Plan, PlannedInstruction
from kareus.profile.programs import StageShape, instruction_program, laid_out_shapes, weights_of
from kareus.workload.config import Workload
from kareus.workload.model_flops import tokens_per_iteration
from kareus.workload.slices import cut

TimeAndPower = tuple[float, float]
"""Seconds and watts."""

_SETTLING_S = 20.0
"""What a chip is given to warm up; its temperature settles within seconds."""


def play_back(
    plan: Plan, workload: Workload, graphs: Mapping[Batch, BlockGraph], iterations: int, steps: KnownSteps
) -> list[dict[str, Any]]:
    """Rows of the table `ITERATIONS`, one for each iteration and stage; a function of its arguments.

    Args:
        plan: one of the workload.
        workload: its testbed's noise and its seed are used.
        graphs: operator graphs of its block.
        iterations: how many to play.
        steps: costs of steps, taken from and added to; plans of one workload share most of theirs.
    """
    costs = instruction_costs(plan.keyed, workload, graphs, steps)
    random = generator(workload.seed, f"play back {plan.method} {plan.selector}")
    noise = random.standard_normal((2, len(costs), iterations))
    times_s = np.array([[cost[0]] for cost in costs]) * (1 + workload.testbed.time_noise * noise[0])
    powers_w = np.array([[cost[1]] for cost in costs]) * (1 + workload.testbed.power_noise * noise[1])
    dag = iteration_dag(cut(workload, "pipeline"))
    starts_s = earliest_starts_s(dag, times_s)
    iteration_s = (starts_s + times_s).max(axis=0)
    passes = [key.direction not in UPDATING for key, _ in plan.keyed]
    passed_s = (starts_s + times_s)[passes].max(axis=0)
    rows = []
    for stage in range(workload.parallelism.pp):
        numbers = [number for number, (key, _) in enumerate(plan.keyed) if key.stage == stage]
        last = plan.stages[stage].instructions[-1]
        updated_s = starts_s[numbers[-1]] if last.direction in UPDATING else iteration_s
        marks_s = np.array([passed_s, updated_s, iteration_s])
        clocks = [i.frequency_mhz for i in plan.stages[stage].instructions]
        waits_w = [waiting_power_w(workload.gpu, clock) for clock in clocks]
        energies_j = _energies_j(workload, times_s[numbers], powers_w[numbers], waits_w, starts_s[numbers], marks_s)
        rows += [
            _row(plan, workload, stage, iteration, _parts(marks_s[:, iteration], energy_j))
            | {"clocks": _changes(clocks, starts_s[numbers, iteration])}
            for iteration, energy_j in enumerate(energies_j)
        ]
    return rows


def instruction_costs(
    keyed: Sequence[tuple[InstructionKey, PlannedInstruction]],
    workload: Workload,
    graphs: Mapping[Batch, BlockGraph],
    steps: KnownSteps,
) -> list[TimeAndPower]:
    """Return what each whole instruction takes on the GPU model, free of noise; those that run alike are computed once.

    Powers are at the reference temperature.

    Args:
        keyed: instructions of a plan.
        workload: the one that it is for.
        graphs: operator graphs of its block.
        steps: costs of steps, taken from and added to.
    """
    shapes = laid_out_shapes(workload)
    worked_out: dict[Any, TimeAndPower] = {}
    costs = []
    for key, i in keyed:
        if key.direction in UPDATING:  # planned by the GPU model, as here
            energy_j = at_reference_j(workload.gpu, i.energy_j, i.time_s)
            costs.append((i.time_s, energy_j / i.time_s))
            continue
        shape = shapes[key.stage, key.chunk]
        weights = weights_of(workload, key.stage, shape, workload.testbed.default_collective_sm_count)
        alike = (shape, weights, key.direction, i.execution, i.frequency_mhz, i.partitions)
        if alike not in worked_out:
            program = planned_program(key, i, shape, workload, graphs)
            behaviour = run_tally(workload.gpu, tally(program), float(i.frequency_mhz), steps)
            worked_out[alike] = float(behaviour.time_s), float(behaviour.power_w)
        costs.append(_changed(*worked_out[alike], i))
    return costs


def planned_program(
    key: InstructionKey,
    instruction: PlannedInstruction,
    shape: StageShape,
    workload: Workload,
    graphs: Mapping[Batch, BlockGraph],
) -> Program:
    """Return the program of an instruction of a plan, on a chunk of this shape; arguments as of `instruction_costs`."""
    sm_count = workload.testbed.default_collective_sm_count
    return instruction_program(
        dict(graphs),
        shape,
        key.direction,
        instruction.execution,
        recomputation=workload.recomputation,
        default_sm_count=sm_count,
        software=workload.software,
        weights=weights_of(workload, key.stage, shape, sm_count),
        choices=instruction.partitions,
    )


def _changed(time_s: float, power_w: float, i: PlannedInstruction) -> TimeAndPower:
    """Return what an instruction takes with the change of clock that it begins with, which costs as planned."""
    longer_s = time_s + i.change_s
    return longer_s, (time_s * power_w + i.change_j) / longer_s


def _energies_j(
    workload: Workload, times_s: Array, powers_w: Array, waits_w: Sequence[float], starts_s: Array, marks_s: Array
) -> list[list[float]]:
    """Energy of one GPU of a stage up to each mark of every iteration, its chip as warm as a long training leaves it.

    Args:
        workload: whose GPU and testbed it is.
        times_s: of the stage's instructions, [instructions, iterations]; likewise the next two.
        powers_w: at the reference temperature.
        waits_w: power of waiting for each instruction.
        starts_s: from the start of the iteration.
        marks_s: moments of each iteration, ascending, the last its end, [marks, iterations].
    """
    laps = list(zip(times_s.T.tolist(), powers_w.T.tolist(), starts_s.T.tolist(), marks_s.T.tolist(), strict=True))
    temperature_c = workload.gpu.ambient_c
    for _ in range(math.ceil(_SETTLING_S / float(marks_s[-1, 0]))):
        _, temperature_c = _lap(workload, temperature_c, waits_w, *laps[0])
    energies_j = []
    for lap in laps:
        energy_j, temperature_c = _lap(workload, temperature_c, waits_w, *lap)
        energies_j.append(energy_j)
    return energies_j


def _lap(
    workload: Workload,
    temperature_c: float,
    waits_w: Sequence[float],
    times_s: Sequence[float],
    powers_w: Sequence[float],
    starts_s: Sequence[float],
    marks_s: Sequence[float],
) -> tuple[list[float], float]:
    """Energies up to the marks of one iteration that begins at `temperature_c`, and the temperature at its end."""
    gpu = workload.gpu
    now_s = energy_j = 0.0
    energies_j: list[float] = []
    for start_s, time_s, power_w, waiting_w, is_mark in _cut(times_s, powers_w, waits_w, starts_s, marks_s):
        waiting = Interval(waiting_w, temperature_c, gpu.ambient_c, gpu.coefficients)
        working = Interval(power_w, waiting.temperature_c(start_s - now_s), gpu.ambient_c, gpu.coefficients)
        energy_j += waiting_w * (start_s - now_s) + float(working.energy_j(time_s))
        temperature_c, now_s = float(working.temperature_c(time_s)), start_s + time_s
        if is_mark:
            energies_j.append(energy_j)
    return energies_j, temperature_c


def _cut(
    times_s: Sequence[float],
    powers_w: Sequence[float],
    waits_w: Sequence[float],
    starts_s: Sequence[float],
    marks_s: Sequence[float],
) -> Iterator[tuple[float, float, float, float, bool]]:
    """Yield instructions in order, cut at the marks, which are there without any time.

    Yields:
        Start, time, power, power of waiting before it, and whether it is a mark.
    """
    marks = list(marks_s)
    for start_s, time_s, power_w, wait_w in zip(starts_s, times_s, powers_w, waits_w, strict=True):
        now_s, end_s = start_s, start_s + time_s
        while marks and marks[0] < end_s:
            at_s = max(marks.pop(0), now_s)
            yield now_s, at_s - now_s, power_w, wait_w, False
            yield at_s, 0.0, 0.0, wait_w, True
            now_s = at_s
        yield now_s, end_s - now_s, power_w, wait_w, False
    for at_s in marks:
        yield at_s, 0.0, 0.0, waits_w[-1], True


def _parts(marks_s: Array, energies_j: Sequence[float]) -> dict[str, float]:
    """Columns of `ITERATIONS` with the parts of one iteration, which end at the marks."""
    pipeline_s, updated_s, end_s = (float(mark_s) for mark_s in marks_s)
    pipeline_j, updated_j, end_j = energies_j
    return {
        "pipeline_time_s": pipeline_s,
        "pipeline_energy_j": pipeline_j,
        "reduction_time_s": updated_s - pipeline_s,
        "reduction_energy_j": updated_j - pipeline_j,
        "update_time_s": end_s - updated_s,
        "update_energy_j": end_j - updated_j,
        "time_s": end_s,
        "energy_j": end_j,
    }


def _row(plan: Plan, workload: Workload, stage: int, iteration: int, parts: dict[str, float]) -> dict[str, Any]:
    per_stage = workload.parallelism.gpus_per_stage
    return {
        "method": plan.method,
        "selector": plan.selector,
        "rank": stage * per_stage,
        "gpus": per_stage,
        "stage": stage,
        "iteration": iteration,
        **parts,
        "includes_update": workload.iteration.include_update,
        "tokens": tokens_per_iteration(workload),
        "loss": None,
    }


def _changes(clocks_mhz: Sequence[int], starts_s: Array) -> list[dict[str, Any]]:
    """Entries of the column `clocks`: what a change costs is in the times, and each clock that is asked for holds."""
    return [
        {"frequency_mhz": clock, "start_s": float(start_s), "observed_mhz": clock}
        for n, (clock, start_s) in enumerate(zip(clocks_mhz, starts_s, strict=True))
        if n == 0 or clock != clocks_mhz[n - 1]
    ]
