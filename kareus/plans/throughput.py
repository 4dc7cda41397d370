"""Throughput of an iteration, planned or run: tokens a second, model FLOPs utilisation, joules a token."""

from dataclasses import dataclass

from kareus.plans.units import scaled
from kareus.workload.config import Workload
from kareus.workload.model_flops import mfu, tokens_per_iteration


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Throughput of one iteration over all GPUs."""

    time_s: float
    energy_j: float | None
    """Energy of all GPUs; None where nothing measures it."""
    tokens_per_s: float
    mfu: float
    """Model FLOPs utilisation, a share of the BF16 peak of the workload's GPUs, on whatever device it ran."""
    joules_per_token: float | None
    gpu: str
    """The workload's GPU."""

    def __str__(self) -> str:
        """Return a part of a progress line. It names the GPU of whose peak MFU is a share: another may have run it."""
        line = f"{self.tokens_per_s:,.0f} tokens/s  {self.time_s:.3f} s  MFU {100 * self.mfu:.3g} % of {self.gpu}"
        if self.energy_j is None or self.joules_per_token is None:
            return line
        return f"{line}  {scaled(self.energy_j, 'J', digits=4)}  {scaled(self.joules_per_token, 'J/token')}"


def throughput(workload: Workload, time_s: float, energy_j: float | None) -> Throughput:
    """Return the throughput of one iteration.

    Args:
        workload: what was trained.
        time_s: of the whole iteration.
        energy_j: of all GPUs in that time; None where nothing measures it.
    """
    tokens = tokens_per_iteration(workload)
    return Throughput(
        time_s=time_s,
        energy_j=energy_j,
        tokens_per_s=tokens / time_s,
        mfu=mfu(workload, time_s),
        joules_per_token=None if energy_j is None else energy_j / tokens,
        gpu=workload.gpu.name,
    )
