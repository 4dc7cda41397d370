"""Stages of a fit to measured kernels: which coefficients are fitted together, and to which rows."""

from collections.abc import Mapping
from dataclasses import dataclass

from kareus.calibrate.priors import (
    ATTENTION_PRIORS,
    BLOCKWISE_EXPERT_PRIORS,
    COLLECTIVE_PRIORS,
    EXPERT_PRIORS,
    FP8_EXPERT_PRIORS,
    FP8_PRIORS,
    GEMM_PRIORS,
)
from kareus.evidence.kernels.counted import power_counts
from kareus.evidence.kernels.rows import BFLOAT16, FP8, FP8_BLOCK, KernelKind, Kernels
from kareus.gpu_model.declarations import FitPrior
from kareus.gpu_model.gpu import Gpu

OF_SWITCHES = frozenset({"switch_efficiency", "switch_latency_s"})
"""Coefficients of reductions in switches."""
OF_POWER = frozenset(
    {
        "gemm_j_per_flop", "hbm_j_per_byte", "clock_power_w", "voltage_slope", "cast_waiting_share", "fp8_energy_share",
        "attention_j_per_flop", "softmax_j",
    }
)  # fmt: skip
"""Coefficients that readings of power tell. Without any, clocks under the power limit hint at them, too weakly to fit:
a GPU's file then keeps what it has from another GPU of the same chip, or from a prior."""


@dataclass(frozen=True, slots=True)
class FitStage:
    """Coefficients that are fitted together, after those of the stages before."""

    name: str
    kind: KernelKind
    number_format: str
    priors: Mapping[str, FitPrior]
    by_library: bool
    """Whether every kernel library has its own values; the first of them then tells how efficient the library is."""

    def priors_of(self, gpu: Gpu, rows: Kernels) -> Mapping[str, FitPrior]:
        """Return the coefficients that rows of the stage, measured on a GPU, tell."""
        unknown = (frozenset() if gpu.switches_reduce else OF_SWITCHES) | (
            frozenset() if power_counts(rows).any() else OF_POWER
        )
        return {name: prior for name, prior in self.priors.items() if name not in unknown}

    def rows(self, kernels: Kernels) -> Kernels:
        """Return the rows of `kernels` that the stage is fitted to."""
        return kernels.where(kernels.number_format == self.number_format)


STAGES = (
    FitStage("GEMM bf16", KernelKind.GEMM, BFLOAT16, GEMM_PRIORS, by_library=False),
    FitStage("GEMM fp8", KernelKind.GEMM, FP8, FP8_PRIORS, by_library=False),
    FitStage("experts bf16", KernelKind.EXPERTS, BFLOAT16, EXPERT_PRIORS, by_library=False),
    FitStage("experts fp8", KernelKind.EXPERTS, FP8, FP8_EXPERT_PRIORS, by_library=False),
    FitStage("experts fp8 blockwise", KernelKind.EXPERTS, FP8_BLOCK, BLOCKWISE_EXPERT_PRIORS, by_library=False),
    FitStage("attention", KernelKind.ATTENTION, BFLOAT16, ATTENTION_PRIORS, by_library=True),
    FitStage("collectives", KernelKind.COLLECTIVE, BFLOAT16, COLLECTIVE_PRIORS, by_library=False),
)
"""In the order of fitting: GEMMs tell clock, voltage and HBM for all that follow."""
