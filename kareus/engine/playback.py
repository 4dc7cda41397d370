"""Playing a plan back on the simulated testbed: whole instructions on the GPU model, with noise, in pipeline order.

It shows how far a plan's prediction, put together from partitions that were measured and chosen one by one, is from
what the GPU model makes of whole instructions on a chip that stays warm, and what jitter does to a pipeline. It says
nothing of how right the GPU model is. One GPU stands for all of its stage.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kareus.artifacts.randomness import generator
from kareus.partition.graph import Batch, BlockGraph
from kareus.pipeline.dag import build_dag
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.transfers import transfers_s
from kareus.plan.document import Plan, PlannedInstruction
from kareus.plan.run_totals import tokens_per_iteration
from kareus.profile.programs import chunk_shapes, instruction_program
from kareus.testbed.simulated.model import KnownSteps, run_tally, tally
from kareus.testbed.simulated.thermal import Interval
from kareus.workload.config import Workload
from kareus.workload.slices import cut

Array = NDArray[np.float64]
Cost = tuple[float, float]
"""Seconds and watts."""


def play_back(
    plan: Plan, workload: Workload, graphs: Mapping[Batch, BlockGraph], iterations: int, known: KnownSteps
) -> list[dict[str, Any]]:
    """Rows of the table `ITERATIONS`, one for each iteration and stage; a function of its arguments.

    Args:
        plan: one of the workload.
        workload: its testbed's noise and its seed are used.
        graphs: operator graphs of its block.
        iterations: how many to play.
        known: costs of steps, taken from and added to; plans of one workload share most of theirs.
    """
    placed = [(stage.stage, i) for stage in plan.stages for i in stage.instructions]
    costs = _costs(placed, workload, graphs, known)
    random = generator(workload.seed, f"play back {plan.method} {plan.selector}")
    noise = random.standard_normal((2, len(placed), iterations))
    times_s = np.array([[cost[0]] for cost in costs]) * (1 + workload.testbed.time_noise * noise[0])
    powers_w = np.array([[cost[1]] for cost in costs]) * (1 + workload.testbed.power_noise * noise[1])
    starts_s = _starts(workload, times_s)
    iteration_s = (starts_s + times_s).max(axis=0)
    rows = []
    for stage in range(workload.parallelism.pp):
        own = [number for number, (at, _) in enumerate(placed) if at == stage]
        energies_j = _energies_j(workload, times_s[own], powers_w[own], starts_s[own], iteration_s)
        clocks = [placed[number][1].frequency_mhz for number in own]
        rows += [
            _row(plan, workload, stage, iteration, float(iteration_s[iteration]), energy_j)
            | {"clocks": _changes(clocks, starts_s[own, iteration])}
            for iteration, energy_j in enumerate(energies_j)
        ]
    return rows


def _costs(
    placed: Sequence[tuple[int, PlannedInstruction]],
    workload: Workload,
    graphs: Mapping[Batch, BlockGraph],
    known: KnownSteps,
) -> list[Cost]:
    """What each instruction takes, free of noise; those that run alike are worked out once."""
    shapes = chunk_shapes(workload.parallelism.split, workload.chunks)
    worked_out: dict[Any, Cost] = {}
    costs = []
    for stage, i in placed:
        key = (shapes[stage, i.chunk], i.direction, i.execution, i.frequency_mhz, i.partitions)
        if key not in worked_out:
            program = instruction_program(
                dict(graphs),
                shapes[stage, i.chunk],
                i.direction,
                i.execution,
                recompute=workload.activation_checkpointing,
                default_sm_count=workload.testbed.default_collective_sm_count,
                choices=i.partitions,
            )
            behaviour = run_tally(workload.gpu, tally(program), float(i.frequency_mhz), known)
            worked_out[key] = float(behaviour.time_s), float(behaviour.power_w)
        costs.append(worked_out[key])
    return costs


def _starts(workload: Workload, times_s: Array) -> Array:
    """Starts of the instructions in every iteration, [instructions, iterations]."""
    dag = build_dag(instructions_of(workload), transfers_s(cut(workload, "pipeline")))
    starts_s = np.zeros_like(times_s)
    for number in dag.order:
        for before, transfer_s in dag.predecessors[number]:
            ready_s = starts_s[before] + times_s[before] + transfer_s
            np.maximum(starts_s[number], ready_s, out=starts_s[number])
    return starts_s


def _energies_j(
    workload: Workload, times_s: Array, powers_w: Array, starts_s: Array, iteration_s: Array
) -> list[float]:
    """Energy of one GPU of a stage in every iteration, its chip as warm as the one before left it.

    Args:
        workload: whose GPU and testbed it is.
        times_s: of the stage's instructions, [instructions, iterations]; likewise the next two.
        powers_w: at the reference temperature.
        starts_s: from the start of the iteration.
        iteration_s: of each iteration; whoever waits draws the blocking power.
    """
    gpu, ambient_c = workload.gpu, workload.testbed.ambient_c
    temperature_c, energies_j = ambient_c, []
    for times, powers, starts, whole_s in zip(times_s.T, powers_w.T, starts_s.T, iteration_s, strict=True):
        now_s = energy_j = 0.0
        for time_s, power_w, start_s in zip(times.tolist(), powers.tolist(), starts.tolist(), strict=True):
            waiting = Interval(gpu.blocking_power_w, temperature_c, ambient_c, gpu.coefficients)
            temperature_c = waiting.temperature_c(start_s - now_s)
            working = Interval(power_w, temperature_c, ambient_c, gpu.coefficients)
            temperature_c = working.temperature_c(time_s)
            energy_j += gpu.blocking_power_w * (start_s - now_s) + working.energy_j(time_s)
            now_s = start_s + time_s
        rest = Interval(gpu.blocking_power_w, temperature_c, ambient_c, gpu.coefficients)
        temperature_c = rest.temperature_c(float(whole_s) - now_s)
        energies_j.append(energy_j + gpu.blocking_power_w * (float(whole_s) - now_s))
    return energies_j


def _row(plan: Plan, workload: Workload, stage: int, iteration: int, time_s: float, energy_j: float) -> dict[str, Any]:
    per_stage = workload.parallelism.gpus_per_stage
    return {
        "method": plan.method,
        "selector": plan.selector,
        "rank": stage * per_stage,
        "gpus": per_stage,
        "stage": stage,
        "iteration": iteration,
        "pipeline_time_s": time_s,
        "pipeline_energy_j": energy_j,
        "time_s": time_s,
        "energy_j": energy_j,
        "tokens": tokens_per_iteration(workload),
        "loss": None,
    }


def _changes(clocks_mhz: Sequence[int], starts_s: Array) -> list[dict[str, Any]]:
    """Entries of the column `clocks`: a simulated clock changes at once."""
    return [
        {"frequency_mhz": clock, "start_s": float(start_s), "observed_mhz": clock}
        for n, (clock, start_s) in enumerate(zip(clocks_mhz, starts_s, strict=True))
        if n == 0 or clock != clocks_mhz[n - 1]
    ]
