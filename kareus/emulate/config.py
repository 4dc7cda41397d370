"""Configuration of an emulated fleet and the workload that it trains. The record of Hydra group `emulation`.

`config/emulation.yaml` composes it as `config/config.yaml` composes a workload; an option of `config/emulation/` is a
fleet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kareus.artifacts.names import check_path
from kareus.artifacts.ranges import check_within, within
from kareus.errors import ConfigError
from kareus.gpu_model.gpu import MOST_W
from kareus.pipeline.compare import FRONTIER_BASELINE, THROUGHPUT_BASELINE
from kareus.pipeline.config import check_deadlines
from kareus.pipeline.methods import METHODS
from kareus.workload.config import MOST_PASSES, Workload

MOST_VALUES = 1000
"""Stragglers or power caps of one fleet; each takes a plan of every method."""


class GradientReduction(StrEnum):
    """Overlap of the gradient reduction over replicas with the iteration, where plans do not have the reduction."""

    HIDDEN = "hidden"
    """Behind backwards, at no time and no energy: the iteration is the pipeline's, as the paper's emulation counts."""
    EXPOSED = "exposed"
    """After the last backward; all GPUs draw blocking power meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """A fleet of equal pipelines, and what happens to it."""

    pipelines: int
    """Data-parallel replicas of the workload's pipeline."""
    num_microbatches: int
    """Microbatches of one pipeline in one iteration."""
    methods: tuple[str, ...]
    """Whose frontiers are compared; both baselines are among them."""
    deadlines: int
    """Deadlines between the fastest and the most frugal iteration for which a plan is made."""
    gradient_reduction: GradientReduction
    """`hidden` behind backwards at no cost, as the paper's emulation counts, or `exposed` after the last one."""
    stragglers: tuple[float, ...]
    """Time of one slow pipeline over that of the fastest plan: 1.1 is 10 % slower."""
    power_caps_w: tuple[float, ...]
    """Mean power that a GPU of the fleet may draw; the cap of the fleet is that times its GPUs."""
    series: str | None
    """CSV file of a price or carbon intensity by the hour; null plans no hours."""
    iterations: int | None
    """Iterations to finish by the end of the series."""

    def __post_init__(self) -> None:
        within(self, 1, 1_000_000, "pipelines", "pipelines")
        within(self, 1, MOST_PASSES, "microbatches", "num_microbatches")
        check_deadlines(self.deadlines)
        _check_methods(self.methods)
        for name in ("methods", "stragglers", "power_caps_w"):
            _check_distinct(name, getattr(self, name))
            if len(getattr(self, name)) > MOST_VALUES:
                raise ConfigError(f"{name}: {len(getattr(self, name)):,} values; give at most {MOST_VALUES}.")
        for factor in self.stragglers:
            if factor < 1:
                raise ConfigError(f"stragglers: {factor:g} is faster than the others; give 1 or more, such as 1.1.")
            check_within("stragglers", factor, 1, 1000, "times the others' fastest plan")
        for cap_w in self.power_caps_w:
            if cap_w <= 0:
                raise ConfigError(f"power_caps_w: {cap_w:g} must be greater than 0 (watts of each GPU).")
            check_within("power_caps_w", cap_w, 1e-3, MOST_W, "watts of each GPU")
        if (self.series is None) != (self.iterations is None):
            raise ConfigError("series, iterations: give both (a CSV file, and what to finish by its end) or neither.")
        if self.iterations is not None:
            within(self, 1, 10**12, "iterations", "iterations")
        if self.series is not None:
            check_path(self.series, "series")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedWorkload(Workload):
    """A workload and the fleet that trains it; its own `num_microbatches` has no meaning here."""

    emulation: Emulation
    """The fleet."""


def _check_distinct(name: str, values: Sequence[str] | Sequence[float]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"{name}: {value} is given twice; give each once.")


def _check_methods(methods: Sequence[str]) -> None:
    known = [method.name for method in METHODS]
    for method in methods:
        if method not in known:
            raise ConfigError(f"methods: '{method}' is not known; allowed: {', '.join(known)}.")
    for baseline in (THROUGHPUT_BASELINE, FRONTIER_BASELINE):
        if baseline not in methods:
            raise ConfigError(f"methods: reductions are against '{baseline}'; add it.")
