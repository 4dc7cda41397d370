"""Resolving: from overrides to fleets, each with the workload whose microbatch frontiers it plans with."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kareus.artifacts.shipped import config_folder
from kareus.emulate.config import EmulatedWorkload, Emulation, GradientReduction, gpu_cap_w
from kareus.errors import ConfigError, EngineError, RefusedWorkloadError
from kareus.model.parallelism import Sharding
from kareus.plans.grid_files import read_series
from kareus.plans.units import SECONDS_PER_HOUR
from kareus.runtime.engine_checks import check_runs
from kareus.workload.compose import ComposedWorkload, compose
from kareus.workload.config import Workload
from kareus.workload.extension import feasible, part
from kareus.workload.model_flops import mfu
from kareus.workload.naming import changed, joined
from kareus.workload.overrides import options
from kareus.workload.pipelining import check_pipeline

GROUP = "emulation"
PRIMARY = "emulation"
SIZELESS = "fleet"
"""Option that has no size of its own."""


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
    pipelines: int
    """Data-parallel replicas of the pipeline."""
    refusal: str | None
    """Reason why it cannot run, in one line; None if it can."""

    @property
    def joins(self) -> bool:
        """Whether its pipelines wait for one another within an iteration: they share the update, weights or experts.

        Such a fleet is its workload with the pipelines as data-parallel replicas.
        """
        return _joins(self.workload)

    @property
    def planned_pipelines(self) -> int:
        """Pipelines of which the workload is."""
        return self.pipelines if self.joins else 1

    @property
    def pipeline(self) -> Workload:
        """The workload with the fleet's number of microbatches of a pipeline."""
        return dataclasses.replace(self.workload, num_microbatches=self.emulation.num_microbatches)

    @property
    def gpus(self) -> int:
        """GPUs of all pipelines."""
        return self.pipelines * self.workload.parallelism.gpus // self.planned_pipelines

    @property
    def gpu_caps_w(self) -> tuple[float, ...]:
        """Power caps in watts of each GPU, each once."""
        limit_w = self.workload.gpu.power_limit_w
        return tuple(dict.fromkeys(gpu_cap_w(cap, limit_w) for cap in self.emulation.power_caps))


def resolve_fleets(overrides: Sequence[str], config_dir: Path | None = None) -> list[Fleet]:
    """Resolve every combination of `overrides` as `expand_fleets` does, and refuse those that cannot run.

    Raises:
        RefusedWorkloadError: a combination cannot run.
    """
    fleets = expand_fleets(overrides, config_dir)
    for fleet in fleets:
        if fleet.refusal is not None:
            raise RefusedWorkloadError(f"{fleet.workload_name}, {fleet.name}: {fleet.refusal}")
    return fleets


def expand_fleets(overrides: Sequence[str], config_dir: Path | None = None) -> list[Fleet]:
    """Resolve every combination of `overrides`, in the order of the sweep; repeated fleets once.

    Args:
        overrides: Hydra overrides and sweeps of a workload and of `emulation`; a text without `=` names options of the
            group `emulation`.
        config_dir: folder of the groups; None: that of `config_folder`.

    Raises:
        ConfigError: an override or a file of the configuration that cannot be used.
    """
    config_dir = config_dir or config_folder()
    texts = [text if "=" in text else f"{GROUP}={text}" for text in overrides]
    named = options(GROUP, config_dir)
    fleets = [_fleet(composition, named) for composition in compose(texts, config_dir, EmulatedWorkload, PRIMARY)]
    return list({(fleet.workload_name, fleet.name): fleet for fleet in fleets}.values())


def _fleet(composition: ComposedWorkload, named: Sequence[str]) -> Fleet:
    emulation: Emulation = part(composition, GROUP).record
    _check_counts(composition.changes)
    pipelines = _pipelines(emulation, composition.workload)
    extension = part(_with_replicas(composition, pipelines), GROUP)
    workload, refusal = extension.workload, None
    pipeline = dataclasses.replace(workload, num_microbatches=emulation.num_microbatches)
    try:
        _check_reduction(workload, emulation)
        check_pipeline(pipeline)
        workload = dataclasses.replace(feasible(pipeline), num_microbatches=workload.num_microbatches)
        check_runs(workload)
    except (RefusedWorkloadError, EngineError) as error:
        refusal = str(error)
    fleet = Fleet(
        workload_name=extension.workload_name,
        name="",
        overrides=extension.overrides,
        workload=workload,
        emulation=emulation,
        pipelines=pipelines,
        refusal=refusal,
    )
    check_series(fleet)
    changes = {key: value for key, value in composition.changes.items() if key.startswith(f"{GROUP}.")}
    return dataclasses.replace(fleet, name=fleet_name(composition.options[GROUP], named, fleet.gpus, changes))


def fleet_name(option: str, named: Sequence[str], gpus: int, changes: Mapping[str, Any]) -> str:
    """Return the name of a fleet, which says how many GPUs it has and what else differs from its option.

    No two fleets of a workload share one: its GPUs say how many pipelines it has.

    Args:
        option: of the group `emulation`.
        named: all options.
        gpus: of all pipelines.
        changes: values that differ from those of the option, by dotted key.
    """
    other, size = {key.removeprefix(f"{GROUP}."): value for key, value in changes.items()}, f"{gpus}gpus"
    if option == SIZELESS or re.fullmatch(r"[0-9]+gpus", option):
        other = {key: value for key, value in other.items() if key not in ("pipelines", "gpus")}
        if option == SIZELESS:
            option = f"{size}-{option}" if size in named else size
        elif option != size:
            option = f"{size}-as-{option}"
    return joined([option, *(changed(other) if other else ())])


def _pipelines(emulation: Emulation, workload: Workload) -> int:
    """Return the pipelines of a fleet that is asked for by them, or by its GPUs.

    Raises:
        ConfigError: its GPUs are not those of whole pipelines.
    """
    if emulation.pipelines is not None:
        return emulation.pipelines
    gpus, each = emulation.gpus or 0, workload.parallelism.gpus
    if gpus % each:
        fewer = gpus // each * each
        such = f"{fewer} or {fewer + each}" if fewer else str(each)
        raise ConfigError(f"{GROUP}.gpus={gpus}: a pipeline has {each} GPUs; give a multiple of it, such as {such}.")
    return gpus // each


def check_series(fleet: Fleet) -> None:
    """Check the series of a fleet, and that its iterations are not beyond the arithmetic of its GPUs.

    Raises:
        ArtifactError: the file cannot be read.
        ConfigError: it is no series, or the hours are too few for even a fleet at its peak of arithmetic.
    """
    if fleet.emulation.series is None:
        return
    hours = len(read_series(Path(fleet.emulation.series)).values)
    pipeline = fleet.pipeline
    peak_s = mfu(pipeline, 1.0)  # at this many seconds an iteration has the model's FLOPs at the GPUs' peak
    most = int(hours * SECONDS_PER_HOUR / peak_s)
    if (fleet.emulation.iterations or 0) > most:
        raise ConfigError(
            f"{GROUP}.iterations={fleet.emulation.iterations}: at most {most:,} fit into the {hours:,} hours of "
            f"{fleet.emulation.series}, even at the GPUs' peak of arithmetic; give fewer, or more hours."
        )


def _joins(workload: Workload) -> bool:
    return bool(_joined_by(workload))


def _joined_by(workload: Workload) -> str:
    """Return the key by which pipelines wait for one another before the end of an iteration; nothing without one."""
    parallelism = workload.parallelism
    if workload.iteration.include_update:
        return "iteration.include_update=true"
    if parallelism.sharding in (Sharding.GRADIENTS, Sharding.FULL):
        return f"parallelism.sharding={parallelism.sharding}"
    return f"parallelism.ep={parallelism.ep}" if parallelism.replicas_exchange else ""


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
    cause = _joined_by(workload)
    if cause and emulation.gradient_reduction is GradientReduction.EXPOSED:
        planned = "the reduction over the pipelines is planned, and would be counted twice"
        if cause.startswith("parallelism.ep"):
            planned = "pipelines are replicas of one workload, whose reduction iteration.include_update=true plans"
        raise RefusedWorkloadError(
            f"{GROUP}.gradient_reduction=exposed: with {cause} {planned}; leave it hidden, which then changes nothing."
        )


def _check_counts(changes: dict[str, object]) -> None:
    for key, instead in (("num_microbatches", "num_microbatches"), ("parallelism.dp", "pipelines")):
        if key in changes:
            raise ConfigError(f"{key}={changes[key]}: a fleet says that itself; set {GROUP}.{instead}.")
