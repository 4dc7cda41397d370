"""A workload made ready for prediction: its operator graphs, and what its instructions execute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kareus.errors import ConfigError
from kareus.evidence.frontiers.reference import FrontierRow, ReductionRow, Scenario
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import Tally, tally
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import TRACED, Batch, BlockGraph
from kareus.partition.extract import operator_graphs
from kareus.profile.programs import Execution, instruction_program, stage_shapes, weights_of
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.divisibility import check_divisibility
from kareus.workload.resolve import with_split

NO_UPDATE = "iteration.include_update=false"
"""Override of all workloads of the reference data: the paper's iterations end with the last backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One workload; compared by identity."""

    workload: Workload
    graphs: dict[Batch, BlockGraph]
    tallies: dict[tuple[InstructionKind, Execution], Tally]
    """What every whole instruction executes, by its kind and execution."""

    def on(self, gpu: Gpu) -> "Subject":
        """The same workload on another GPU."""
        return replace(self, workload=replace(self.workload, gpu=gpu))


Subjects = Mapping[Scenario, Subject]


def subjects_of(
    rows: Sequence[FrontierRow | ReductionRow], overrides: tuple[str, ...], config_dir: Path
) -> dict[Scenario, Subject]:
    """Resolve and trace every workload of `rows`; arguments and errors as of `subject`."""
    return {s: subject(s, overrides, config_dir) for s in dict.fromkeys(row.scenario for row in rows)}


def on_gpu(subjects: Subjects, gpu: Gpu) -> Subjects:
    """The same workloads on another GPU."""
    return {scenario: subject.on(gpu) for scenario, subject in subjects.items()}


def subject(scenario: Scenario, overrides: tuple[str, ...], config_dir: Path) -> Subject:
    """Resolve and trace a workload; what it needs of memory is not checked.

    Args:
        scenario: the workload.
        overrides: further Hydra overrides, such as of the GPU.
        config_dir: Hydra groups.

    Raises:
        ConfigError: the scenario or an override cannot be used.
    """
    composition, *others = compose([*scenario.overrides, NO_UPDATE, *overrides], config_dir)
    if others:
        raise ConfigError(
            f"{' '.join(composition.overrides)}: is one of {1 + len(others)} workloads; give one value for each key."
        )
    workload = composition.workload
    check_divisibility(workload)
    workload = with_split(workload)
    graphs = operator_graphs(workload)
    executions = [Execution.SEQUENTIAL] + [Execution.NANOBATCHING] * (Batch.NANOBATCH in graphs)
    tallies = {
        (InstructionKind(stage, 0, direction), execution): tally(
            instruction_program(
                graphs,
                shape,
                direction,
                execution,
                recomputation=workload.recomputation,
                default_sm_count=workload.testbed.default_collective_sm_count,
                software=workload.software,
                weights=weights_of(workload, stage, shape, workload.testbed.default_collective_sm_count),
            )
        )
        for stage, shape in enumerate(stage_shapes(workload.parallelism.split))
        for direction in TRACED
        for execution in executions
    }
    return Subject(workload=workload, graphs=graphs, tallies=tallies)
