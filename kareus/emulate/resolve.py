"""Resolving: from overrides to fleets, each with the workload whose microbatch frontiers it plans with."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kareus.emulate.config import EmulatedWorkload, Emulation, GradientReduction
from kareus.errors import ConfigError, EngineError, RefusedWorkloadError
from kareus.model.config import Sharding
from kareus.runtime.architecture import check_runs
from kareus.workload.compose import ComposedWorkload, compose
from kareus.workload.config import Workload
from kareus.workload.extension import feasible, part
from kareus.workload.pipelining import check_pipeline
from kareus.workload.resolve import CONFIG_DIR

GROUP = "emulation"
PRIMARY = "emulation"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """One combination of a sweep."""

    workload_name: str
    """Whose microbatch frontiers it plans with: its folder under `results/`."""
    name: str
    """Its folder under `results/<workload>/emulate/`."""
    overrides: tuple[str, ...]
    """Overrides that resolve to this fleet alone."""
    workload: Workload
    """The workload whose microbatch frontiers it plans with: one pipeline or, of a joined fleet, all as replicas."""
    emulation: Emulation
    refusal: str | None
    """Reason why it cannot run, in one line; None if it can."""

    @property
    def joins(self) -> bool:
        """Whether its pipelines wait for one another within an iteration, since they share the update of the weights.

        Such a fleet is its workload with the pipelines as data-parallel replicas.
        """
        return _joins(self.workload)

    @property
    def planned_pipelines(self) -> int:
        """Pipelines of which the workload is."""
        return self.emulation.pipelines if self.joins else 1

    @property
    def pipeline(self) -> Workload:
        """The workload with the fleet's number of microbatches of a pipeline."""
        return dataclasses.replace(self.workload, num_microbatches=self.emulation.num_microbatches)

    @property
    def gpus(self) -> int:
        """GPUs of all pipelines."""
        return self.emulation.pipelines * self.workload.parallelism.gpus // self.planned_pipelines


def resolve_fleets(overrides: Sequence[str], config_dir: Path = CONFIG_DIR) -> list[Fleet]:
    """Resolve every combination of `overrides` as `expand_fleets` does, and refuse those that cannot run.

    Raises:
        RefusedWorkloadError: a combination cannot run.
    """
    fleets = expand_fleets(overrides, config_dir)
    for fleet in fleets:
        if fleet.refusal is not None:
            raise RefusedWorkloadError(f"{fleet.workload_name}, {fleet.name}: {fleet.refusal}")
    return fleets


def expand_fleets(overrides: Sequence[str], config_dir: Path = CONFIG_DIR) -> list[Fleet]:
    """Resolve every combination of `overrides`, in the order of the sweep; repeated fleets once.

    Args:
        overrides: Hydra overrides and sweeps of a workload and of `emulation`; a text without `=` names options of the
            group `emulation`.
        config_dir: folder of the groups.

    Raises:
        ConfigError: an override or a file of the configuration that cannot be used.
    """
    texts = [text if "=" in text else f"{GROUP}={text}" for text in overrides]
    fleets = [_fleet(composition) for composition in compose(texts, config_dir, EmulatedWorkload, PRIMARY)]
    return list({(fleet.workload_name, fleet.name): fleet for fleet in fleets}.values())


def _fleet(composition: ComposedWorkload) -> Fleet:
    emulation: Emulation = part(composition, GROUP).record
    _check_counts(composition.changes)
    extension = part(_with_replicas(composition, emulation.pipelines), GROUP)
    workload, refusal = extension.workload, None
    pipeline = dataclasses.replace(workload, num_microbatches=emulation.num_microbatches)
    try:
        _check_reduction(workload, emulation)
        check_pipeline(pipeline)
        workload = dataclasses.replace(feasible(pipeline), num_microbatches=workload.num_microbatches)
        check_runs(workload)
    except (RefusedWorkloadError, EngineError) as error:
        refusal = str(error)
    return Fleet(
        workload_name=extension.workload_name,
        name=extension.name,
        overrides=extension.overrides,
        workload=workload,
        emulation=emulation,
        refusal=refusal,
    )


def _joins(workload: Workload) -> bool:
    shards = workload.parallelism.sharding in (Sharding.GRADIENTS, Sharding.FULL)
    return shards or workload.iteration.include_update


def _with_replicas(composition: ComposedWorkload, pipelines: int) -> ComposedWorkload:
    """Return the composition with the pipelines as data-parallel replicas, where they wait for one another.

    Raises:
        ConfigError: they have more GPUs than a workload may have.
    """
    workload = composition.workload
    if not _joins(workload):
        return composition
    try:
        parallelism = dataclasses.replace(workload.parallelism, dp=pipelines)
    except ConfigError as error:  # of `parallelism.dp`, which nobody has given
        raise ConfigError(f"{GROUP}.pipelines={pipelines}: as replicas of one workload, {error}") from None
    return dataclasses.replace(composition, workload=dataclasses.replace(workload, parallelism=parallelism))


def _check_reduction(workload: Workload, emulation: Emulation) -> None:
    """Check that the reduction of gradients is counted once.

    Raises:
        RefusedWorkloadError: it is planned, and would be added after the plan.
    """
    if _joins(workload) and emulation.gradient_reduction is GradientReduction.EXPOSED:
        cause = "iteration.include_update=true"
        if not workload.iteration.include_update:
            cause = f"parallelism.sharding={workload.parallelism.sharding}"
        raise RefusedWorkloadError(
            f"{GROUP}.gradient_reduction=exposed: with {cause} the reduction over the pipelines is planned, and would "
            "be counted twice; leave it hidden, which then changes nothing."
        )


def _check_counts(changes: dict[str, object]) -> None:
    for key, instead in (("num_microbatches", "num_microbatches"), ("parallelism.dp", "pipelines")):
        if key in changes:
            raise ConfigError(f"{key}={changes[key]}: a fleet says that itself; set {GROUP}.{instead}.")
