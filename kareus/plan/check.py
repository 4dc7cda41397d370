"""Checking a plan file: against its schema, its workload, and the order of the pipeline."""

from pathlib import Path
from typing import Any

import jsonschema

from kareus.artifacts import records
from kareus.artifacts.files import read_json
from kareus.errors import ArtifactError
from kareus.pipeline.instructions import pipeline_instructions
from kareus.plan.document import PLAN_SCHEMA_VERSION, Plan, PlannedInstruction
from kareus.plan.schema import plan_schema
from kareus.workload.config import Workload


def read_plan(path: Path) -> Plan:
    """Read a plan file.

    Raises:
        ArtifactError: missing, corrupt, of another schema version, or not following the schema.
    """
    document = read_json(path)
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != PLAN_SCHEMA_VERSION:
        raise ArtifactError(
            f"{path}: plan schema version {version!r}, this Kareus reads {PLAN_SCHEMA_VERSION}; select the plan anew."
        )
    _validate(document, path)
    return records.from_plain(Plan, document, str(path))


def check_plan(plan: Plan, workload: Workload, path: Path) -> None:
    """Check that `plan` can be run for `workload`.

    Raises:
        ArtifactError: it was made for another workload, an instruction is missing or out of order, a clock is not
            the GPU's, or its own sums do not hold.
    """
    expected = records.content_hash(workload)
    if plan.workload_hash != expected:
        raise ArtifactError(
            f"{path}: made for another workload ({plan.workload}, hash {plan.workload_hash}; expected {expected}); "
            f"select a plan for this one."
        )
    _check_order(plan, workload, path)
    for stage in plan.stages:
        for instruction in stage.instructions:
            _check_instruction(instruction, workload, f"{path}: stage {stage.stage}")
    prediction = plan.prediction
    parts = prediction.static_energy_j + prediction.dynamic_energy_j
    if abs(parts - prediction.energy_j) > 1e-6 * prediction.energy_j:
        raise ArtifactError(f"{path}: static and dynamic energy do not add up to energy_j; the file was edited.")


def _validate(document: Any, path: Path) -> None:
    validator = jsonschema.Draft202012Validator(plan_schema())
    error = next(iter(sorted(validator.iter_errors(document), key=lambda e: [str(p) for p in e.path])), None)
    if error is not None:
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.path).lstrip(".") or "the document"
        raise ArtifactError(f"{path}: {place}: {error.message}; select the plan anew.")


def _check_order(plan: Plan, workload: Workload, path: Path) -> None:
    expected: dict[int, list[tuple[str, int]]] = {stage: [] for stage in range(workload.parallelism.pp)}
    for i in pipeline_instructions(workload.pipeline.schedule, workload.parallelism.pp, workload.num_microbatches):
        expected[i.stage].append((str(i.direction), i.microbatch))
    if [s.stage for s in plan.stages] != list(expected):
        raise ArtifactError(
            f"{path}: has {len(plan.stages)} stages, the workload {len(expected)}; select the plan anew."
        )
    for stage in plan.stages:
        planned = [(i.direction, i.microbatch) for i in stage.instructions]
        if planned != expected[stage.stage]:
            wrong = next(
                (n for n, (a, b) in enumerate(zip(planned, expected[stage.stage], strict=False)) if a != b),
                min(len(planned), len(expected[stage.stage])),
            )
            raise ArtifactError(
                f"{path}: stage {stage.stage} departs from the {workload.pipeline.schedule} order at instruction "
                f"{wrong}; select the plan anew."
            )


def _check_instruction(instruction: PlannedInstruction, workload: Workload, where: str) -> None:
    gpu = workload.gpu
    where = f"{where}, {instruction.direction} of microbatch {instruction.microbatch}"
    clocks = gpu.search_frequencies
    if instruction.frequency_mhz not in clocks.clocks_mhz:
        raise ArtifactError(
            f"{where}: frequency_mhz={instruction.frequency_mhz} is not among "
            f"{clocks.minimum_mhz}-{clocks.maximum_mhz} by {clocks.stride_mhz}."
        )
    if (instruction.execution == "overlap") != bool(instruction.partitions):
        raise ArtifactError(
            f"{where}: execution '{instruction.execution}' with {len(instruction.partitions)} partitions."
        )
    for choice in instruction.partitions:
        if not 0 < choice.sm_count < gpu.sm_count:
            raise ArtifactError(
                f"{where}: {choice.partition}: sm_count={choice.sm_count} is not within 1-{gpu.sm_count - 1}."
            )
