"""Configuration of an emulated fleet and the workload that it trains. The record of Hydra group `emulation`.

`config/emulation.yaml` composes it as `config/config.yaml` composes a workload; an option of `config/emulation/` is a
fleet.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kareus.artifacts.names import check_path
from kareus.artifacts.ranges import check_within, within
from kareus.artifacts.records import suggest
from kareus.errors import ConfigError
from kareus.gpu_model.gpu import MOST_W
from kareus.pipeline.compare import FRONTIER_BASELINE, THROUGHPUT_BASELINE
from kareus.pipeline.config import check_deadlines
from kareus.pipeline.methods import METHODS
from kareus.plans.selectors import number_in
from kareus.workload.config import MOST_PASSES, Workload

MOST_VALUES = 1000
"""Stragglers or power caps of one fleet; each takes a plan of every method."""
MOST_PIPELINES = 1_000_000
"""Also GPUs of a fleet that is asked for by them."""
CAP_UNITS = {"%": 1e-2, "W": 1.0, "kW": 1e3}
"""Of power caps: `%` is of the GPU's power limit."""


class GradientReduction(StrEnum):
    """Overlap of the gradient reduction over replicas with the iteration, where plans do not have the reduction."""

    HIDDEN = "hidden"
    """Behind backwards, at no time and no energy: the iteration is the pipeline's, as the paper's emulation counts."""
    EXPOSED = "exposed"
    """After the last backward; all GPUs draw blocking power meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """A fleet of equal pipelines, and what happens to it."""

    pipelines: int | None
    """Data-parallel replicas of the workload's pipeline; null where `gpus` says how many."""
    gpus: int | None = None
    """GPUs of all pipelines, instead of `pipelines`: a multiple of those of one."""
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
    power_caps: tuple[str, ...]
    """Mean power that a GPU of the fleet may draw: a share of its power limit, such as `60%`, or watts, such as `350W`;
    the cap of the fleet is that times its GPUs."""
    series: str | None
    """CSV file of a price or carbon intensity by the hour; null plans no hours."""
    iterations: int | None
    """Iterations to finish by the end of the series."""

    def __post_init__(self) -> None:
        if (self.pipelines is None) == (self.gpus is None):
            raise ConfigError(
                f"pipelines={self.pipelines}, gpus={self.gpus}: give one of both, and null for the other; "
                "emulation=fleet has gpus alone."
            )
        within(self, 1, MOST_PIPELINES, *(("GPUs", "gpus") if self.pipelines is None else ("pipelines", "pipelines")))
        within(self, 1, MOST_PASSES, "microbatches", "num_microbatches")
        check_deadlines(self.deadlines)
        _check_methods(self.methods)
        for name in ("methods", "stragglers", "power_caps"):
            _check_distinct(name, getattr(self, name))
            if len(getattr(self, name)) > MOST_VALUES:
                raise ConfigError(f"{name}: {len(getattr(self, name)):,} values; give at most {MOST_VALUES}.")
        for factor in self.stragglers:
            if factor < 1:
                raise ConfigError(f"stragglers: {factor:g} is faster than the others; give 1 or more, such as 1.1.")
            check_within("stragglers", factor, 1, 1000, "times the others' fastest plan")
        for cap in self.power_caps:
            gpu_cap_w(cap, MOST_W)
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


def gpu_cap_w(cap: str, limit_w: float) -> float:
    """Return the watts of each GPU that a power cap allows.

    Args:
        cap: a share of the power limit, such as `60%`, or watts, such as `350W`.
        limit_w: power limit of a GPU.

    Raises:
        ConfigError: it is neither.
    """
    match = re.fullmatch(r"([0-9.eE+-]+?)(%|k?W)?", cap)
    value = number_in(match[1]) if match else math.nan
    if match is None or math.isnan(value) or match[2] is None:
        raise ConfigError(
            f"power_caps: '{cap}': not understood; write a share of the power limit, 60%, or watts, 350W."
        )
    most = 100 if match[2] == "%" else MOST_W / CAP_UNITS[match[2]]
    if not 0 < value <= most:
        raise ConfigError(f"power_caps: '{cap}': must be greater than 0 and at most {most:,g}{match[2]} of each GPU.")
    return value * CAP_UNITS[match[2]] * (limit_w if match[2] == "%" else 1.0)


def _check_distinct(name: str, values: Sequence[str] | Sequence[float]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"{name}: {value} is given twice; give each once.")


def _check_methods(methods: Sequence[str]) -> None:
    names = [method.name for method in METHODS]
    for method in methods:
        if method not in names:
            raise ConfigError(f"methods: '{method}' is not known; {suggest(method, names)}.")
    for baseline in (THROUGHPUT_BASELINE, FRONTIER_BASELINE):
        if baseline not in methods:
            raise ConfigError(f"methods: reductions are against '{baseline}'; add it to the list.")
