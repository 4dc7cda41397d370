"""Resolving: from overrides to fleets, each with the workload whose microbatch frontiers it plans with."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kareus.emulate.config import EmulatedWorkload, Emulation
from kareus.errors import ConfigError, RefusedWorkloadError
from kareus.model.config import Sharding
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
    """One pipeline, as its microbatch frontiers are made."""
    emulation: Emulation
    refusal: str | None
    """Reason why it cannot run, in one line; None if it can."""

    @property
    def pipeline(self) -> Workload:
        """One pipeline of the fleet, with the fleet's number of microbatches."""
        return dataclasses.replace(self.workload, num_microbatches=self.emulation.num_microbatches)

    @property
    def gpus(self) -> int:
        """GPUs of all pipelines."""
        return self.emulation.pipelines * self.workload.parallelism.gpus


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
    extension = part(composition, GROUP)
    _check_counts(extension.changes)
    emulation: Emulation = extension.record
    workload, refusal = extension.workload, None
    pipeline = dataclasses.replace(workload, num_microbatches=emulation.num_microbatches)
    try:
        _check_iteration(workload, emulation)
        check_pipeline(pipeline)
        workload = dataclasses.replace(feasible(pipeline), num_microbatches=workload.num_microbatches)
    except RefusedWorkloadError as error:
        refusal = str(error)
    return Fleet(
        workload_name=extension.workload_name,
        name=extension.name,
        overrides=extension.overrides,
        workload=workload,
        emulation=emulation,
        refusal=refusal,
    )


def _check_iteration(workload: Workload, emulation: Emulation) -> None:
    """Check that one pipeline's instructions are those of every pipeline of the fleet.

    Raises:
        RefusedWorkloadError: what they do depends on the other pipelines.
    """
    instead = f"or plan a workload with parallelism.dp={emulation.pipelines}."
    sharding = workload.parallelism.sharding
    if sharding not in (Sharding.NONE, Sharding.OPTIMIZER):
        raise RefusedWorkloadError(
            f"parallelism.sharding={sharding}: a fleet is planned from the instructions of one pipeline, which would "
            f"share out weights or gradients with the others; choose none or optimizer, {instead}"
        )
    if workload.iteration.include_update:
        raise RefusedWorkloadError(
            "iteration.include_update=true: a fleet's iteration ends with the last backward and, by "
            f"{GROUP}.gradient_reduction, with the reduction over its pipelines; set it to false, {instead}"
        )


def _check_counts(changes: dict[str, object]) -> None:
    for key, instead in (("num_microbatches", "num_microbatches"), ("parallelism.dp", "pipelines")):
        if key in changes:
            raise ConfigError(f"{key}={changes[key]}: a fleet says that itself; set {GROUP}.{instead}.")
