"""A GPU and the node around it: the records of Hydra group `gpu`, but for the coefficients of its model."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from kareus.artifacts.names import check_product
from kareus.artifacts.ranges import check_within, within
from kareus.artifacts.records import ADDED, suggest
from kareus.errors import ConfigError
from kareus.gpu_model.coefficients import COEFFICIENTS, GpuCoefficients, LaunchesAhead
from kareus.graph.number_formats import TensorCores

if TYPE_CHECKING:  # stages that only read a configuration start without numpy
    import numpy as np
    from numpy.typing import NDArray

MOST_MHZ = 100_000
MOST_W = 100_000
"""Largest power of one GPU."""
MOST_TILE = 4096
"""Largest side of a tile that one SM computes."""
MOST_CLOCKS = 1000
"""Largest number of clocks to search; a GPU of today supports about 130."""

Numeric = TypeVar("Numeric", float, "NDArray[np.float64]")
"""One number, or one for each of many candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyRange:
    """SM clocks to search, both ends included."""

    minimum_mhz: int
    """Lowest clock that is searched, in MHz."""
    maximum_mhz: int
    """Highest clock that is searched, in MHz."""
    stride_mhz: int
    """Distance between two clocks, in MHz."""

    def __post_init__(self) -> None:
        within(self, 1, MOST_MHZ, "MHz", "minimum_mhz", "maximum_mhz", "stride_mhz")
        if self.maximum_mhz < self.minimum_mhz:
            raise ConfigError(f"maximum_mhz={self.maximum_mhz}: must be at least minimum_mhz ({self.minimum_mhz}).")
        if len(range(self.minimum_mhz, self.maximum_mhz + 1, self.stride_mhz)) > MOST_CLOCKS:
            raise ConfigError(
                f"stride_mhz={self.stride_mhz}: gives more than {MOST_CLOCKS:,} clocks from {self.minimum_mhz} to "
                f"{self.maximum_mhz} MHz; use a wider stride."
            )

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """All clocks to search, in MHz, in ascending order."""
        return tuple(range(self.minimum_mhz, self.maximum_mhz + 1, self.stride_mhz))


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """Errors of the model's predictions."""

    time_percent: float
    """Error of time that 90 % of predictions do not exceed, on workloads that were left out of the fit."""
    energy_percent: float
    """The same of energy."""
    time_interval_percent: float
    """Half the width of 90 % bootstrap intervals (curves drawn anew), mean over the fastest plans of all curves."""
    energy_interval_percent: float
    """The same of energy."""
    estimated_for: str | None = None
    """Name of the numbers of the GPU that they were estimated with (`kareus.gpu_model.trust.numbers_of`).

    None in a file that was written before the name was: the errors are then not measured for these numbers.
    """

    def __post_init__(self) -> None:
        within(self, 1e-6, 1000, "%", "time_percent", "energy_percent")
        within(self, 0, 1000, "%", "time_interval_percent", "energy_interval_percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUncertainty:
    """Errors of the model's predictions of single kernels, for a GPU that was fitted to them and not to iterations."""

    time_percent: float
    """Error of time that 90 % of predictions do not exceed, on shapes of kernels that were left out of the fit."""
    energy_percent: float | None
    """The same of energy; None where the GPU's power was not read."""
    time_interval_percent: float
    """Half the width of the 90 % bootstrap interval (shapes drawn anew) of an iteration of the default workload."""
    energy_interval_percent: float | None
    """The same of energy."""
    estimated_for: str
    """Name of the numbers of the GPU that they were estimated with (`kareus.gpu_model.trust.kernel_numbers_of`)."""

    def __post_init__(self) -> None:
        within(self, 1e-6, 1000, "%", "time_percent")
        within(self, 0, 1000, "%", "time_interval_percent")
        for name in ("energy_percent", "energy_interval_percent"):
            if getattr(self, name) is not None:
                within(self, 0, 1000, "%", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockChangeCost:
    """What a change of the SM clock costs one GPU."""

    latency_s: float
    """Time from the request until the clock holds; until then the former one runs on."""
    pause_s: float
    """Time in which no work is done."""
    energy_j: float
    """Energy of the change itself, beyond that of waiting for `pause_s`."""
    interval_s: float
    """Least time of work between two changes."""

    def __post_init__(self) -> None:
        within(self, 0, 10, "s", "latency_s", "pause_s")
        within(self, 0, 100, "s", "interval_s")
        within(self, 0, 10_000, "J", "energy_j")

    @property
    def is_free(self) -> bool:
        """Whether clocks may change at any time, and for nothing."""
        return not (self.latency_s or self.pause_s or self.energy_j or self.interval_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU and the node around it. Sources of the numbers are given in `config/gpu/`."""

    name: str
    """Name of the GPU in tables and pages."""
    sm_count: int
    """Number of streaming multiprocessors."""
    memory_gib: float
    """Memory that an application can use."""
    bf16_tflops: float
    """Dense tensor-core peak at `maximum_clock_mhz`."""
    hbm_gb_per_s: float
    """Peak bandwidth of HBM, in GB/s."""
    link_gb_per_s: float
    """Bandwidth of one GPU to the others of its node, in one direction."""
    switches_reduce: bool
    """Whether the switches of a node can reduce (NVLS, from NVSwitch 3 on)."""
    l2_mib: float
    """Capacity of the L2 cache, as CUDA reports it."""
    fp8_speedup: float
    """Tensor-core peak in fp8, as a multiple of that in 16 bits; 1 without fp8 tensor cores."""
    gemm_tiles: tuple[tuple[int, ...], ...]
    """Output tiles, rows and columns, among which GEMM libraries choose the fastest."""
    attention_tile: tuple[int, ...]
    """Queries and keys of a tile of fused attention; empty if its size is not modelled."""
    narrow_head_queries: int
    """Queries of a tile for heads of 64 values, where that is more."""
    libraries: dict[str, dict[str, float]]
    """Coefficients of kernel libraries that differ from `coefficients`, by the library's name in lower case."""
    node_gb_per_s: float
    """Bandwidth of a node to other nodes, in one direction, shared by its GPUs."""
    gpus_per_node: int
    """GPUs of one node: what a host drives, and what shares the node's NICs."""
    maximum_clock_mhz: int
    """Highest SM clock under load, at which the baselines run, in MHz."""
    power_limit_w: float
    """Power limit of a GPU, in W."""
    static_power_w: float
    """Power in state P0 doing nothing of note: for the static/dynamic split and the search."""
    blocking_power_w: float
    """Power while waiting on point-to-point at the maximum clock: what the pipeline charges for waiting."""
    search_frequencies: FrequencyRange
    """Contains `maximum_clock_mhz`, at which the baselines run."""
    clock_change: ClockChangeCost
    """What a change of the clock costs, and how often it may change."""
    coefficients: GpuCoefficients
    """Fitted coefficients of the GPU model."""
    uncertainty: Uncertainty | None
    """Uncertainty of the GPU model; null where it was not measured. Holds only for the numbers that it names."""
    kernel_uncertainty: KernelUncertainty | None = None
    """The same of a GPU that was fitted to single kernels."""
    waiting_shares: tuple[tuple[float, ...], ...] = ()
    """Clocks in MHz, ascending, and power of waiting there as a share of `blocking_power_w`; empty: alike at all."""
    launches_ahead: LaunchesAhead = LaunchesAhead.STEP
    """How far the host of the software that drives it launches ahead (`kareus.software`)."""
    job_gpus: int = 1
    """GPUs of a job that wait for the slowest among them; 1 where the coefficients are those of such a job."""
    nvlink_domain: int | None = field(default=None, metadata=ADDED)
    """GPUs that NVLink connects, of one node or of several; None: those of one node."""
    host_gb_per_s: float = field(default=25.0, metadata=ADDED)
    """Bandwidth of one GPU to the memory of its host, in one direction, of copies from pinned memory."""
    host_memory_gb_per_s: float = field(default=51.2, metadata=ADDED)
    """Bandwidth of the host's memory that one GPU's share of its processors has."""
    ambient_c: float = field(default=25.0, metadata=ADDED)
    """Temperature of the air that cools the GPUs of a node: at 25 degC a cooldown brings a GPU below 32 (paper, section
    5.3), and it is within what ASHRAE allows of a data centre (A2: 10 to 35)."""
    fp4_speedup: float = field(default=1.0, metadata=ADDED)
    """As `fp8_speedup`, of 4 bits; 1 on GPUs without, whose tensor cores have no scales of blocks (MX) either."""

    def with_library(self, name: str) -> "Gpu":
        """Return this GPU with the coefficients of a kernel library; of one that is not listed, this GPU itself."""
        numbers: dict[str, Any] = dict(self.libraries.get(name, {}))
        return replace(self, coefficients=replace(self.coefficients, **numbers)) if numbers else self

    def linked_gpus(self, gpus: int) -> int:
        """Return how many consecutive ranks of a job of `gpus` GPUs NVLink connects; the network is between these.

        A job that one domain has room for is in it. A larger one takes the same number of whole nodes of every domain,
        as schedulers place segments of jobs (Slurm's topology/block): on domains of 72 one of 256 GPUs has 64 of each
        of four. Where no such number divides it, it fills one domain after the other, as it does nodes.

        Example:
            >>> import kareus
            >>> (workload,) = kareus.resolve(["gpu=gb200"])
            >>> workload.gpu.linked_gpus(64), workload.gpu.linked_gpus(256), workload.gpu.linked_gpus(144)
            (64, 64, 72)
        """
        if self.nvlink_domain is None:
            return self.gpus_per_node
        domains = -(-gpus // self.nvlink_domain)
        if domains == 1:
            return max(gpus, self.gpus_per_node)
        even = (gpus // n for n in range(domains, 2 * domains + 1) if not gpus % n)
        return next((size for size in even if not size % self.gpus_per_node), self.nvlink_domain)

    @property
    def linked_degrees(self) -> tuple[int, ...]:
        """Sizes of groups that fill evenly what NVLink connects, or the part of it that a job takes."""
        whole = self.nvlink_domain or self.gpus_per_node
        of_part = [] if self.nvlink_domain is None else [2**n for n in range(whole.bit_length()) if 2**n <= whole]
        return tuple(sorted({*of_part, *(n for n in range(1, whole + 1) if not whole % n)}))

    def speedup(self, units: TensorCores) -> float:
        """Return the tensor-core peak of a format as a multiple of that in 16 bits; 1 of a format that it has not."""
        if units is TensorCores.FP4:
            return self.fp4_speedup
        has = units is TensorCores.FP8 or (units is TensorCores.MXFP8 and self.fp4_speedup > 1)
        return self.fp8_speedup if has else 1.0

    @property
    def nic_gb_per_s(self) -> float:
        """Bandwidth of one GPU's share of the node's NICs, in one direction, as its software reaches it."""
        return self.node_gb_per_s / self.gpus_per_node / self.coefficients.network_slowdown

    @property
    def throttling_power_w(self) -> float:
        """Power of a phase of work above which the clock fluctuates."""
        return self.power_limit_w * self.coefficients.throttle_share

    def peak_flops(self, frequency_mhz: Numeric, sm_count: Numeric) -> Numeric:
        """Return the dense tensor-core peak of `sm_count` SMs at a clock, in FLOP/s."""
        return self.bf16_tflops * 1e12 * frequency_mhz / self.maximum_clock_mhz * sm_count / self.sm_count

    @property
    def isolates(self) -> bool:
        """Whether an instruction costs more than its parts measured alone."""
        return bool(self.coefficients.isolation_overhead)

    def missed_by_isolation(self, time_s: Numeric, energy_j: Numeric) -> tuple[Numeric, Numeric]:
        """Return what an instruction costs beyond its parts measured alone: seconds and joules.

        Between the operators of a block streams synchronise, the host keeps up and caches are cold, whatever
        collectives do meanwhile. Outside the blocks there are a few long kernels, so that measuring them alone misses
        nothing.

        Args:
            time_s: of the operators of its blocks with nothing beside them.
            energy_j: of the same.
        """
        c = self.coefficients
        fixed_s, fixed_j = c.instruction_overhead_s, c.instruction_overhead_s * self.blocking_power_w
        return c.isolation_overhead * time_s + fixed_s, c.isolation_overhead * energy_j + fixed_j

    def __post_init__(self) -> None:
        check_product(self.name, "name")
        within(self, 1, 100_000, "SMs", "sm_count")
        within(self, 0.01, 1_000_000, "GiB", "memory_gib")
        within(self, 0.01, 10_000_000, "TFLOP/s", "bf16_tflops")
        within(self, 0.01, 1e12, "GB/s", "hbm_gb_per_s", "link_gb_per_s", "node_gb_per_s")  # so much costs no time
        within(self, 0.01, 1e12, "GB/s", "host_gb_per_s", "host_memory_gb_per_s")
        within(self, 1, 10_000, "GPUs", "gpus_per_node")
        within(self, -100, 200, "degC", "ambient_c")
        if self.nvlink_domain is not None:
            within(self, self.gpus_per_node, 10_000, "GPUs", "nvlink_domain")
            if self.nvlink_domain % self.gpus_per_node:
                raise ConfigError(
                    f"nvlink_domain={self.nvlink_domain}: must be a multiple of gpus_per_node ({self.gpus_per_node}); "
                    "leave it out, as null, where links end at the node."
                )
        within(self, 1, MOST_MHZ, "MHz", "maximum_clock_mhz")
        within(self, 0.01, 1_000_000, "MiB", "l2_mib")
        within(self, 1, 100, "times", "fp8_speedup", "fp4_speedup")
        within(self, 1, MOST_TILE, "queries", "narrow_head_queries")
        self._check_kernels()
        within(self, 0.01, MOST_W, "W", "power_limit_w", "static_power_w", "blocking_power_w")
        self._check_settling()
        self._check_waiting()
        if self.search_frequencies.maximum_mhz > self.maximum_clock_mhz:
            raise ConfigError(
                f"search_frequencies.maximum_mhz={self.search_frequencies.maximum_mhz}: must be at most "
                f"maximum_clock_mhz ({self.maximum_clock_mhz})."
            )
        if self.maximum_clock_mhz not in self.search_frequencies.clocks_mhz:
            clocks = self.search_frequencies
            raise ConfigError(
                f"search_frequencies={clocks.minimum_mhz}-{clocks.maximum_mhz} by {clocks.stride_mhz}: must contain "
                f"maximum_clock_mhz ({self.maximum_clock_mhz}), at which the baselines run; set maximum_mhz to "
                f"{self.maximum_clock_mhz} and stride_mhz to a divisor of "
                f"{self.maximum_clock_mhz - clocks.minimum_mhz}."
            )

    def _check_waiting(self) -> None:
        for point in self.waiting_shares:
            if len(point) != 2:  # noqa: PLR2004 - a clock and a share
                raise ConfigError(f"waiting_shares: {list(point)}: must be a clock in MHz and a share: [1410, 1.0].")
            check_within("waiting_shares", point[0], 1, MOST_MHZ, "MHz")
            check_within("waiting_shares", point[1], 0.01, 1, "of blocking_power_w")
        clocks = [clock for clock, _ in self.waiting_shares]
        if clocks != sorted(set(clocks)):
            raise ConfigError(f"waiting_shares: clocks of {clocks}: must ascend.")

    def _check_settling(self) -> None:
        feedback = self.coefficients.thermal_resistance_c_per_w * self.coefficients.leakage_w_per_c
        if feedback >= 1:
            raise ConfigError(
                f"coefficients: thermal_resistance_c_per_w x leakage_w_per_c={feedback:.4g}: must be below 1, or a "
                "chip heats itself without end; lower one of the two."
            )

    def _check_kernels(self) -> None:
        if not self.gemm_tiles:
            raise ConfigError("gemm_tiles=[]: must list at least one tile, such as [128, 128].")
        for name, tile in [*(("gemm_tiles", t) for t in self.gemm_tiles), ("attention_tile", self.attention_tile)]:
            if len(tile) != 2 and (tile or name == "gemm_tiles"):  # noqa: PLR2004 - rows and columns
                raise ConfigError(f"{name}={list(tile)}: a tile has two sides, such as [128, 128].")
            for side in tile:
                check_within(name, side, 1, MOST_TILE, "values")
        for library, numbers in self.libraries.items():
            for name, value in numbers.items():
                if name not in COEFFICIENTS:
                    raise ConfigError(
                        f"libraries.{library}: unknown coefficient {name}; {suggest(name, COEFFICIENTS)}."
                    )
                coefficient = COEFFICIENTS[name]
                check_within(
                    f"libraries.{library}.{name}", value, coefficient.least, coefficient.most, coefficient.unit
                )
