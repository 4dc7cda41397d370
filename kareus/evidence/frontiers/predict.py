"""Predictions in the terms of reference data: planned iterations at given clocks, and what methods save."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kareus.arrays import Array
from kareus.errors import ArtifactError
from kareus.evidence.frontiers.plans import instruction_behaviours, microbatch_frontiers
from kareus.evidence.frontiers.reference import ABLATIONS, FrontierRow, ReductionRow, Scenario
from kareus.evidence.frontiers.subject import Subject, Subjects
from kareus.gpu_model.waiting import effective_energy_j
from kareus.graph.instruction import InstructionKind
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.frontiers import method_problem
from kareus.pipeline.instructions import Instruction, instructions_of, pipeline_instructions
from kareus.pipeline.iteration import iteration_cost
from kareus.pipeline.methods import method_named
from kareus.pipeline.solver.dag import Dag, build_dag
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.transfers import transfers_s
from kareus.profile.programs import Execution
from kareus.workload.config import Workload
from kareus.workload.slices import cut

EXECUTIONS = {"sequential+perseus": Execution.SEQUENTIAL, "nanobatching+perseus": Execution.NANOBATCHING}
"""Methods whose planned rows can be evaluated instruction by instruction."""


@dataclass(frozen=True, slots=True)
class PlannedCost:
    """Predicted cost of one row of planned instructions."""

    time_s: float
    energy_j: float
    """Of one GPU of each stage, summed over the stages."""
    balance: float
    """Busy time of the last stage between warm-up and drain, relative to the first's: 1 if no stage has slack."""


def planned_costs(rows: Sequence[FrontierRow], subjects: Subjects) -> list[PlannedCost]:
    """Time and energy of rows at their listed clocks, as planned from profiles; messages take no time in them.

    Raises:
        ArtifactError: a row's instructions are not those of its pipeline, or its microbatch cannot be halved.
    """
    costs: dict[int, PlannedCost] = {}
    for scenario in dict.fromkeys(row.scenario for row in rows):
        scenario_rows = [(n, row) for n, row in enumerate(rows) if row.scenario == scenario]
        listed = {mhz for _, row in scenario_rows for stage in row.clocks or () for _, mhz in stage}
        clocks = np.array(sorted(listed), dtype=np.float64)
        place = {int(clock): n for n, clock in enumerate(clocks)}
        workload = subjects[scenario].workload
        instructions = pipeline_instructions(workload.pipeline.schedule, scenario.pp, scenario.num_microbatches)
        pipeline = ScenarioPipeline(instructions, build_dag(instructions, (0.0,) * (scenario.pp - 1)))
        behaviours = instruction_behaviours(subjects[scenario], clocks)
        table = {key: (b.time_s.tolist(), b.energy_j.tolist()) for key, b in behaviours.items()}
        costs |= {n: _planned_cost(row, workload, pipeline, table, place) for n, row in scenario_rows}
    return [costs[n] for n in range(len(rows))]


Table = Mapping[tuple[InstructionKind, Execution], tuple[list[float], list[float]]]


@dataclass(frozen=True, slots=True)
class ScenarioPipeline:
    """Instructions of a scenario's iteration and their order; point-to-point takes no time."""

    instructions: tuple[Instruction, ...]
    dag: Dag


def _planned_cost(
    row: FrontierRow, workload: Workload, pipeline: ScenarioPipeline, table: Table, place: Mapping[int, int]
) -> PlannedCost:
    listed = [work for stage in row.clocks or () for work in stage]
    if [direction for direction, _ in listed] != [i.key.direction for i in pipeline.instructions]:
        raise ArtifactError(
            f"{row.scenario.label}, {row.method}, point {row.point}: its instructions are not those of a "
            f"{workload.pipeline.schedule} pipeline; correct the columns stageN_mhz."
        )
    execution = EXECUTIONS[row.method]
    if (pipeline.instructions[0].key.kind, execution) not in table:
        raise ArtifactError(
            f"{row.scenario.label}, {row.method}, point {row.point}: an odd microbatch has no nanobatches; correct the "
            "columns method or microbatch_size."
        )
    times_s, effective_j = [], []
    waiting_w = workload.gpu.blocking_power_w
    for instruction, (_, mhz) in zip(pipeline.instructions, listed, strict=True):
        all_times_s, all_energies_j = table[instruction.key.kind, execution]
        times_s.append(all_times_s[place[mhz]])
        effective_j.append(effective_energy_j(all_energies_j[place[mhz]], times_s[-1], waiting_w))
    cost = iteration_cost(pipeline.dag, times_s, effective_j, row.scenario.pp * waiting_w)
    return PlannedCost(*cost, _balance(pipeline.instructions, times_s, row.scenario))


def _balance(instructions: Sequence[Instruction], times_s: Sequence[float], scenario: Scenario) -> float:
    """Over the positions at which every stage alternates between forward and backward."""
    steady = range(scenario.pp, 2 * scenario.num_microbatches - scenario.pp)
    busy_s = dict.fromkeys(range(scenario.pp), 0.0)
    for instruction, time_s in zip(instructions, times_s, strict=True):
        if instruction.position in steady:
            busy_s[instruction.key.stage] += time_s
    return busy_s[scenario.pp - 1] / busy_s[0] if busy_s[0] else 1.0


class IterationCurve:
    """The iteration frontier of one method, as the linear program bounds it; plans reach it within about 0.5 %."""

    def __init__(self, problem: Problem) -> None:
        """Prepare the curve; nothing is solved before it is asked for."""
        from kareus.pipeline.solver.relaxation import Relaxation  # noqa: PLC0415 - HiGHS is loaded where it is used

        self._relaxation = Relaxation(problem)
        self.fastest_s = self._relaxation.fastest_s

    @cached_property
    def frugal(self) -> tuple[float, float]:
        """Seconds and joules of the plan of least energy."""
        solved = self._relaxation.solve(float("inf"))
        return max(solved.time_s, self.fastest_s), solved.energy_j

    def energy_j(self, time_s: float) -> float | None:
        """Least energy within a time, or None if no plan is that fast."""
        if time_s < self.fastest_s * (1 - 1e-9):
            return None
        return self._relaxation.solve(max(time_s, self.fastest_s) * (1 + 1e-9)).energy_j

    def time_s(self, energy_j: float) -> float | None:
        """Least time within an energy, or None if every plan needs more energy."""
        return self._relaxation.time_s(energy_j)


class PlannedMethods:
    """What the methods reach on one workload, planned exhaustively in the model."""

    def __init__(self, subject: Subject, *, with_transfers: bool) -> None:
        """Compose the microbatch frontiers; curves are made where they are asked for.

        Args:
            subject: the workload.
            with_transfers: whether point-to-point takes its time, as where iterations were measured; planned
                references know none.
        """
        self._config: PipelineSlice = cut(subject.workload, "pipeline")
        self._with_transfers = with_transfers
        self._microbatch = microbatch_frontiers(subject)
        self._curves: dict[str, IterationCurve] = {}

    def curve(self, method: str) -> IterationCurve:
        """The iteration frontier of `method`."""
        if method not in self._curves:
            self._curves[method] = IterationCurve(self._problem(method))
        return self._curves[method]

    def _problem(self, method: str) -> Problem:
        problem = method_problem(self._config, self._microbatch, method_named(method))
        if self._with_transfers:
            return problem
        boundaries = len(transfers_s(self._config))
        return replace(problem, dag=build_dag(instructions_of(self._config), (0.0,) * boundaries))

    def at_max_throughput(self, method: str) -> tuple[float, float]:
        """Seconds and joules of the fastest plan."""
        curve = self.curve(method)
        return curve.fastest_s, curve.energy_j(curve.fastest_s) or 0.0


def predicted_percent(planned: PlannedMethods, row: ReductionRow) -> dict[str, float | None]:
    """What the methods of a row save, or the ablation of its table costs; None where a method has no such point."""
    if row.table in ABLATIONS:
        base, other = (planned.at_max_throughput(m) for m in ("kareus", ABLATIONS[row.table]))
        axis = 0 if row.metric.startswith("time") else 1
        return {"kareus": 100 * (other[axis] / base[axis] - 1)}
    return {method: _saved_percent(planned, row.metric, method) for method in row.given_percent}


def _saved_percent(planned: PlannedMethods, metric: str, method: str) -> float | None:
    if metric in ("time_reduction_pct", "energy_reduction_pct"):
        axis = 0 if metric.startswith("time") else 1
        value, base = (planned.at_max_throughput(m)[axis] for m in (method, "sequential"))
        return 100 * (1 - value / base)
    curve, baseline = planned.curve(method), planned.curve("sequential+perseus")
    if metric == "iso_time_energy_reduction_pct":
        time_s, base_j = planned.at_max_throughput("sequential+perseus")
        energy_j = curve.energy_j(time_s)
        return None if energy_j is None else 100 * (1 - energy_j / base_j)
    base_s, least_j = baseline.frugal
    time_needed_s = curve.time_s(least_j)
    return None if time_needed_s is None else 100 * (1 - time_needed_s / base_s)


def undominated(rows: Sequence[FrontierRow]) -> Array:
    """Whether each row is not dominated in (time, energy) by another of its own curve; shape (rows,)."""

    def beats(other: FrontierRow, row: FrontierRow) -> bool:
        same = (other.scenario, other.method) == (row.scenario, row.method)
        no_worse = other.time_s <= row.time_s and other.energy_j <= row.energy_j
        return same and no_worse and (other.time_s, other.energy_j) != (row.time_s, row.energy_j)

    return np.array([not any(beats(other, row) for other in rows) for row in rows])
