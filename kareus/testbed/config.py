"""Testbeds that candidates are measured on: the records of Hydra group `testbed`."""

from dataclasses import dataclass
from enum import StrEnum

from kareus.artifacts.ranges import positive, within
from kareus.errors import ConfigError


class TestbedKind(StrEnum):
    """Kind of testbed."""

    SIMULATED = "simulated"
    CUDA = "cuda"


class CudaCollectives(StrEnum):
    """What a program's collectives are on real GPUs."""

    NCCL = "nccl"
    """Real ones among as many GPUs of this machine as the program's groups have; limited to their SMs."""
    MSCCLPP = "mscclpp"
    """The same among as many GPUs, by MSCCL++, which has to be built; reduce-scatters, which it lacks, by NCCL."""
    LOOPBACK = "loopback"
    """A stand-in on one GPU: a kernel on the collective's SMs that moves its bytes through HBM, as links would."""


class ClockPolicy(StrEnum):
    """What is done to the SM clocks of real GPUs."""

    LOCKED = "locked"
    """Locked for every measurement; needs the right to."""
    DEFAULT = "default"
    """Left to the driver; only the maximum clock is planned with."""


class GpuPool(StrEnum):
    """Which real GPUs count as one testbed, whose measurements may be put together."""

    SAME = "same"
    """These very GPUs, by UUID."""
    ALIKE = "alike"
    """Any of this model under this driver: jobs of a cluster measure wherever GPUs are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaConfig:
    """How real GPUs are measured."""

    collectives: CudaCollectives
    """What collectives are: `nccl` or `mscclpp` among GPUs of this machine, `loopback` a stand-in on one GPU."""
    clocks: ClockPolicy
    """`locked` sets SM clocks for each measurement; `default` leaves them to the driver, and only the maximum clock is
    planned with."""
    pool: GpuPool
    """GPUs whose measurements may be put together: `same` (by UUID) or `alike` (any of this product and driver)."""


NCCL_SM_COUNT = 24
"""SMs that NCCL takes by itself, as `config/testbed` has them: its channels where NVSwitch links the GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedConfig:
    """The testbed and its measuring instruments."""

    kind: TestbedKind
    """`simulated` by the GPU model, or `cuda` on real GPUs."""
    counter_period_s: float
    """Update interval of the energy counter (NVML: about 0.1 s)."""
    time_noise: float
    """Relative standard deviation of one measured time."""
    power_noise: float
    """Relative standard deviation of one measured mean power."""
    default_collective_sm_count: int
    """SMs that the default (NCCL) collective takes: sequential execution and default nanobatching."""
    cuda: CudaConfig | None
    """Must be given where `kind` is `cuda`, and null elsewhere."""

    @property
    def nccl_environment(self) -> str:
        """Variables that hold NCCL to these SMs in all communicators of a job; empty where it takes them by itself.

        Both are NCCL's own (2.17 and newer): a CTA is a channel, on an SM of its own.
        """
        count = self.default_collective_sm_count
        return "" if count == NCCL_SM_COUNT else f"NCCL_MIN_CTAS={count} NCCL_MAX_CTAS={count}"

    def __post_init__(self) -> None:
        within(self, 1e-6, 1000, "s", "counter_period_s")
        within(self, 0, 0.5, "relative standard deviation", "time_noise", "power_noise")
        positive(self, "default_collective_sm_count")
        if (self.kind is TestbedKind.CUDA) != (self.cuda is not None):
            needed = "give collectives, clocks and pool" if self.cuda is None else "must be null"
            raise ConfigError(f"cuda: {needed} where kind is {self.kind}.")
