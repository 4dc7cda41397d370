"""Configuration of a sweep of the profiler: the record of Hydra group `sweep`, and the workload of its partition.

`config/sweep.yaml` composes it as `config/config.yaml` composes a workload.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kareus.artifacts.ranges import check_within, within
from kareus.artifacts.records import suggest
from kareus.errors import ConfigError, RefusedWorkloadError
from kareus.gpu_model.gpu import MOST_MHZ
from kareus.partition.names import expected_partitions
from kareus.profile.config import MOST_S, MeasurementProtocol
from kareus.workload.compose import ComposedWorkload, compose
from kareus.workload.config import Workload
from kareus.workload.extension import feasible, part

GROUP = "sweep"
PRIMARY = "sweep"
MOST_MEASUREMENTS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Repeated measurements of one partition, under every window with every cooldown."""

    partition: str
    """Name of the partition, which runs at its default: collective beside the first operator, on the testbed's default
    SMs."""
    frequency_mhz: int
    """SM clock of the partition, in MHz."""
    windows_s: tuple[float, ...]
    """Windows of measurement to try."""
    cooldowns_s: tuple[float, ...]
    """Cooldowns before the window to try."""
    settle_s: float
    """Rest before each reading of the energy counter; 0 reads it right at both ends of the window."""
    trials: int
    """Measurements of each protocol, one right after the other."""

    def __post_init__(self) -> None:
        within(self, 1, MOST_MHZ, "MHz", "frequency_mhz")
        within(self, 1, 100_000, "trials", "trials")
        within(self, 0, MOST_S, "s", "settle_s")
        for name, least in (("windows_s", 0.1), ("cooldowns_s", 0.0)):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ConfigError(f"{name}={list(values)}: give one or more, each once.")
            if min(values) < least:
                raise ConfigError(f"{name}: {min(values):g} must be {least:g} or more (seconds).")
            check_within(name, max(values), least, MOST_S, "seconds")
        measurements = len(self.windows_s) * len(self.cooldowns_s) * self.trials
        if measurements > MOST_MEASUREMENTS:
            raise ConfigError(f"windows x cooldowns x trials={measurements:,}: must be at most {MOST_MEASUREMENTS:,}.")

    def protocols(self, usual: MeasurementProtocol) -> tuple[MeasurementProtocol, ...]:
        """Return the protocols to measure under, which differ from the usual one in what is swept."""
        return tuple(
            dataclasses.replace(usual, window_s=window_s, cooldown_s=cooldown_s, settle_s=self.settle_s)
            for window_s in self.windows_s
            for cooldown_s in self.cooldowns_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptWorkload(Workload):
    """A workload and the sweep of the profiler over one of its partitions."""

    sweep: Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerSweep:
    """One combination of overrides."""

    workload_name: str
    """Workload whose partition it measures: its folder under `results/`."""
    name: str
    """Its folder under `results/<workload>/profile/`."""
    overrides: tuple[str, ...]
    """Overrides that give this sweep alone."""
    workload: Workload
    sweep: Sweep
    refusal: str | None
    """Why it cannot run, in one line; None if it can."""


def resolve_sweep(overrides: Sequence[str], config_dir: Path | None = None) -> ProfilerSweep:
    """Resolve overrides that give one sweep, as `expand_sweeps` does.

    Raises:
        ConfigError: they give several.
        RefusedWorkloadError: it cannot run.
    """
    first, *others = expand_sweeps(overrides, config_dir)
    if others:
        names = ", ".join(sweep.name for sweep in (first, *others))
        raise ConfigError(f"{1 + len(others)} sweeps ({names}): a table holds one sweep; give one value for each key.")
    if first.refusal is not None:
        raise RefusedWorkloadError(f"{first.workload_name}, {first.name}: {first.refusal}")
    return first


def expand_sweeps(overrides: Sequence[str], config_dir: Path | None = None) -> list[ProfilerSweep]:
    """Resolve every combination of `overrides`, in order; repeated ones once.

    Args:
        overrides: Hydra overrides and sweeps of a workload and of the group `sweep`.
        config_dir: folder of the groups; None: that of `config_folder`.

    Raises:
        ConfigError: an override or a file of the configuration that cannot be used.
    """
    sweeps = [_sweep(composition) for composition in compose(overrides, config_dir, SweptWorkload, PRIMARY)]
    return list({(sweep.workload_name, sweep.name): sweep for sweep in sweeps}.values())


def _sweep(composition: ComposedWorkload) -> ProfilerSweep:
    extension = part(composition, GROUP)
    sweep: Sweep = extension.record
    names = expected_partitions(extension.workload)
    if sweep.partition not in names:
        raise ConfigError(
            f"sweep.partition={sweep.partition}: not a partition of {extension.workload_name}; "
            f"{suggest(sweep.partition, names)}."
        )
    workload, refusal = extension.workload, None
    if sweep.frequency_mhz > workload.gpu.maximum_clock_mhz:
        raise ConfigError(
            f"sweep.frequency_mhz={sweep.frequency_mhz}: must be at most {workload.gpu.maximum_clock_mhz}, the maximum "
            f"clock of {workload.gpu.name}."
        )
    try:
        workload = feasible(workload)
    except RefusedWorkloadError as error:
        refusal = str(error)
    return ProfilerSweep(
        workload_name=extension.workload_name,
        name=extension.name,
        overrides=extension.overrides,
        workload=workload,
        sweep=sweep,
        refusal=refusal,
    )
