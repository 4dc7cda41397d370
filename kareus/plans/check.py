"""Checking a plan against its workload: the order of the pipeline, what may run, and what follows from it."""

from collections.abc import Collection, Mapping
from pathlib import Path

from kareus.artifacts import records
from kareus.device.actuators import ActuatorKind
from kareus.errors import ArtifactError
from kareus.gpu_model.gpu import Gpu
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import UPDATING, Direction
from kareus.partition.names import collective_group_size, expected_partitions, instruction_partitions
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.solver.dag import earliest_starts, iteration_dag, makespan
from kareus.plans.document import Plan, PlannedInstruction
from kareus.profile.programs import Execution, StageShape, laid_out_shapes
from kareus.schedule.config import sm_allocations
from kareus.schedule.records import Choice
from kareus.workload.config import Workload
from kareus.workload.slices import cut

TOLERANCE = 1e-6
"""Share by which a predicted number may depart from what follows from the instructions."""

Launches = Mapping[str, Collection[str]]
"""By partition, operators beside which its collective may be launched."""


def check_plan(plan: Plan, workload: Workload, name: str, path: Path, launches: Launches) -> None:
    """Check that `plan` can be run for `workload`, and that it is predicted to cost what its instructions cost.

    Args:
        plan: what was read.
        workload: what it should be for.
        name: the workload's readable name.
        path: where the plan was read, the start of every message.
        launches: what the search space allows.

    Raises:
        ArtifactError: it was made for another workload; an instruction is missing, out of order or cannot run so; or
            a start or the prediction does not follow from the instructions.
    """
    expected = records.content_hash(workload)
    if plan.workload_hash != expected:
        raise ArtifactError(
            f"{path}: made for another workload ({plan.workload}, hash {plan.workload_hash}; expected {expected}); "
            f"select a plan for this one."
        )
    pipeline = cut(workload, "pipeline")
    _check_actuator(plan, workload.gpu, path)
    _check_order(plan, pipeline, path)
    _check_statements(plan, workload, name, path)
    shapes = laid_out_shapes(workload)
    for stage in plan.stages:
        for key, instruction in stage.keyed:
            where = f"{path}: {place(key)}"
            _check_instruction(instruction, shapes[key.stage, key.chunk], workload, where)
            for choice in instruction.partitions:
                _check_choice(choice, workload, launches, where)
    _check_timing(plan, pipeline, path)
    _check_energy(plan, workload, path)


def _check_actuator(plan: Plan, gpu: Gpu, path: Path) -> None:
    actuator = plan.actuator
    if actuator.sets_clocks:
        return
    lower = next((i.frequency_mhz for _, i in plan.keyed if i.frequency_mhz != gpu.maximum_clock_mhz), None)
    if lower is not None:
        raise ArtifactError(f"{path}: sets {actuator}, and has an instruction at {lower} MHz; select the plan anew.")
    if actuator.kind is ActuatorKind.POWER and actuator.limit_w != gpu.power_limit_w:
        raise ArtifactError(
            f"{path}: sets {actuator}, its workload was planned at {gpu.power_limit_w:g} W; select the plan anew."
        )


def _check_order(plan: Plan, config: PipelineSlice, path: Path) -> None:
    expected: dict[int, list[InstructionKey]] = {stage: [] for stage in range(config.parallelism.pp)}
    for i in instructions_of(config):
        expected[i.key.stage].append(i.key)
    if [s.stage for s in plan.stages] != list(expected):
        raise ArtifactError(
            f"{path}: has {len(plan.stages)} stages, the workload {len(expected)}; select the plan anew."
        )
    for stage in plan.stages:
        planned = [key for key, _ in stage.keyed]
        if planned != expected[stage.stage]:
            wrong = next(
                (n for n, (a, b) in enumerate(zip(planned, expected[stage.stage], strict=False)) if a != b),
                min(len(planned), len(expected[stage.stage])),
            )
            raise ArtifactError(
                f"{path}: stage {stage.stage} departs from the {config.pipeline.schedule} order at instruction "
                f"{wrong}; select the plan anew."
            )


def _check_statements(plan: Plan, workload: Workload, name: str, path: Path) -> None:
    """Check what a plan says of its workload: name, GPUs, testbed, and layers of its stages."""
    for key, stated, expected in (
        ("workload", plan.workload, name),
        ("gpus", plan.gpus, workload.parallelism.gpus),
        ("fsdp", plan.fsdp.label, workload.parallelism.fsdp.label),
        ("testbed.kind", plan.testbed.kind, str(workload.testbed.kind)),
        ("testbed.gpu", plan.testbed.gpu, workload.gpu.name),
        ("layers of the stages", [stage.layers for stage in plan.stages], list(workload.parallelism.split)),
    ):
        if stated != expected:
            raise ArtifactError(f"{path}: {key}: {stated!r}, the workload has {expected!r}; select the plan anew.")


def _check_instruction(instruction: PlannedInstruction, shape: StageShape, workload: Workload, where: str) -> None:
    clocks = workload.gpu.search_frequencies
    if instruction.frequency_mhz not in clocks.clocks_mhz:
        raise ArtifactError(
            f"{where}: frequency_mhz={instruction.frequency_mhz} is not among "
            f"{clocks.minimum_mhz}-{clocks.maximum_mhz} by {clocks.stride_mhz}."
        )
    possible = _executions(workload, instruction.direction)
    if instruction.execution not in possible:
        raise ArtifactError(
            f"{where}: execution '{instruction.execution}' is not possible for the workload; "
            f"allowed: {', '.join(possible)}."
        )
    overlaps = instruction.execution is Execution.OVERLAP
    sizes = shape.layers, shape.dense
    needed = instruction_partitions(workload, instruction.direction, *sizes) if overlaps else ()
    planned = [choice.partition for choice in instruction.partitions]
    if sorted(planned) != sorted(needed):
        raise ArtifactError(
            f"{where}: execution '{instruction.execution}' with the partitions {', '.join(planned) or 'none'}; "
            f"expected {', '.join(needed) or 'none'}; select the plan anew."
        )


def _executions(workload: Workload, direction: Direction) -> tuple[Execution, ...]:
    """How instructions may run; an odd microbatch has no nanobatches, weight gradients and updates need none."""
    if not workload.parallelism.halves(workload.microbatch_size) or direction in (Direction.WEIGHT_GRADIENT, *UPDATING):
        return (Execution.SEQUENTIAL,)
    return tuple(Execution) if expected_partitions(workload) else (Execution.SEQUENTIAL, Execution.NANOBATCHING)


def _check_choice(choice: Choice, workload: Workload, launches: Launches, where: str) -> None:
    sm_counts = sm_allocations(collective_group_size(choice.partition, workload.parallelism), workload.space)
    if choice.sm_count not in sm_counts:
        raise ArtifactError(
            f"{where}: {choice.partition}: sm_count={choice.sm_count} is not in the search space; "
            f"allowed: {', '.join(map(str, sm_counts))}."
        )
    if choice.launch not in launches.get(choice.partition, ()):
        raise ArtifactError(
            f"{where}: {choice.partition}: launch '{choice.launch}' is not in the search space; "
            f"allowed: {', '.join(launches.get(choice.partition, ())) or 'none'}."
        )


def _check_timing(plan: Plan, config: PipelineSlice, path: Path) -> None:
    dag = iteration_dag(config)
    times_s = [i.time_s for _, i in plan.keyed]
    time_s = makespan(dag, times_s)
    for (key, i), start_s in zip(plan.keyed, earliest_starts(dag, times_s), strict=True):
        if abs(i.start_s - start_s) > TOLERANCE * time_s:
            raise ArtifactError(
                f"{path}: {place(key)}: start_s={i.start_s:.6g}, it can start "
                f"at {start_s:.6g}; the file was edited, select the plan anew."
            )
    check_prediction(plan, path, "time_s", time_s, TOLERANCE * time_s)


def place(key: InstructionKey) -> str:
    """Return where in a plan file an instruction is, its stage first, for messages."""
    if key.direction in UPDATING:
        return f"stage {key.stage}, {key.direction}"
    chunk = f", chunk {key.chunk}" * bool(key.chunk)
    return f"stage {key.stage}{chunk}, {key.direction} of microbatch {key.microbatch}"


def _check_energy(plan: Plan, workload: Workload, path: Path) -> None:
    """Check that energies are those of the instructions and of GPUs that wait."""
    gpu, parallelism, prediction = workload.gpu, workload.parallelism, plan.prediction
    worked_j = sum(i.energy_j for stage in plan.stages for i in stage.instructions)
    energy_j = parallelism.gpus_per_stage * (worked_j + sum(waits_j(plan, gpu)))
    static_energy_j = gpu.static_power_w * prediction.time_s * parallelism.gpus
    for name, expected_j in (
        ("energy_j", energy_j),
        ("static_energy_j", static_energy_j),
        ("dynamic_energy_j", energy_j - static_energy_j),
    ):
        check_prediction(plan, path, name, expected_j, TOLERANCE * energy_j)
    if prediction.lower_bound_j > energy_j * (1 + TOLERANCE):
        raise ArtifactError(
            f"{path}: prediction.lower_bound_j={prediction.lower_bound_j:.6g} is above energy_j ({energy_j:.6g}); "
            f"the file was edited, select the plan anew."
        )


def waits_j(plan: Plan, gpu: Gpu) -> list[float]:
    """Return the energy with which one GPU of each stage waits in an iteration."""
    return [sum(wait.energy_j for wait in stage.waits(plan.prediction.time_s, gpu)) for stage in plan.stages]


def check_prediction(
    plan: Plan, path: Path, name: str, expected: float, tolerance: float, by: str = "its instructions make it"
) -> None:
    """Check one number of the plan's prediction; `by` says where the expected one comes from.

    Raises:
        ArtifactError: they differ.
    """
    predicted = getattr(plan.prediction, name)
    if not is_near(predicted, expected, tolerance):
        raise ArtifactError(
            f"{path}: prediction.{name}={predicted:.6g}, {by} {expected:.6g}; the file was edited, select the plan "
            "anew."
        )


def is_near(value: float, expected: float, tolerance: float) -> bool:
    """Return whether a value is the expected one."""
    return abs(value - expected) <= tolerance
