"""The frontier of a fleet: that of one pipeline, times the pipelines, with the reduction of gradients after it.

Where pipelines wait for one another, what a pipeline plans has the reduction.
"""

from dataclasses import dataclass
from typing import Any

from kareus.emulate.config import GradientReduction
from kareus.emulate.resolve import Fleet
from kareus.gpu_model.waiting import least_waiting_w
from kareus.graph.number_formats import BF16_BYTES, FP32_BYTES
from kareus.model.parallelism import Sharding
from kareus.pipeline.solver.frontier import PlannedIteration
from kareus.workload.config import Workload
from kareus.workload.state_memory import stage_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Factors from the costs of one pipeline to those of the fleet."""

    pipelines: int
    pipeline_gpus: int
    reduction_s: float
    """Time of the gradient reduction, hidden or exposed; 0 where it is planned."""
    exposed_s: float
    """Time that the reduction adds to the iteration."""
    blocking_power_w: float
    """Power of one GPU that waits at the maximum clock, also during the reduction."""
    least_waiting_w: float
    """The same at the clock at which it is least."""
    static_power_w: float

    @property
    def gpus(self) -> int:
        """GPUs of all pipelines."""
        return self.pipelines * self.pipeline_gpus

    @property
    def idle_power_w(self) -> float:
        """Power of one GPU of a fleet that waits for better hours or to keep a cap; no more than while blocking."""
        return min(self.static_power_w, self.least_waiting_w)

    @property
    def reduction_energy_j(self) -> float:
        """Energy of one pipeline's GPUs during what is exposed of the reduction."""
        return self.exposed_s * self.blocking_power_w * self.pipeline_gpus

    def cost(self, pipeline_time_s: float, pipeline_energy_j: float) -> tuple[float, float]:
        """Seconds and joules of the fleet's iteration, from those of each of its equal pipelines."""
        return pipeline_time_s + self.exposed_s, self.pipelines * (pipeline_energy_j + self.reduction_energy_j)


def reduction_s(workload: Workload, pipelines: int) -> float:
    """Return the seconds until the gradients of every stage are reduced over `pipelines` replicas.

    Each GPU holds the fp32 gradients of its share of a stage and reduces them with its counterparts in the other
    pipelines, on other nodes; the GPUs of a node share its bandwidth. A ring of d moves 2 (d - 1) / d of
    the bytes in an all-reduce, half of that in a reduce-scatter and half in an all-gather (Patarasuk and Yuan, 2009).
    With sharded optimizer states the gradients are reduce-scattered, and bf16 weights gathered. All stages reduce at
    the same time, the one with the most parameters decides. Bandwidth is the peak, latency left out: the least time.
    """
    parallelism, gpu = workload.parallelism, workload.gpu
    parameters = max(
        stage_parameters(workload.model, parallelism, stage, layers) for stage, layers in enumerate(parallelism.split)
    )
    gathered_bytes = FP32_BYTES if parallelism.sharding is Sharding.NONE else BF16_BYTES
    moved_bytes = (pipelines - 1) / pipelines * parameters * (FP32_BYTES + gathered_bytes)
    return moved_bytes / (gpu.node_gb_per_s / gpu.gpus_per_node * 1e9)


def scale_of(fleet: Fleet) -> Scale:
    """Return the scale of a fleet, with its gradient reduction, unless plans of joined pipelines have that."""
    gpu = fleet.workload.gpu
    duration_s = 0.0 if fleet.joins else reduction_s(fleet.workload, fleet.pipelines)
    exposed = fleet.emulation.gradient_reduction is GradientReduction.EXPOSED
    return Scale(
        pipelines=fleet.pipelines,
        pipeline_gpus=fleet.workload.parallelism.gpus // fleet.planned_pipelines,
        reduction_s=duration_s,
        exposed_s=duration_s if exposed else 0.0,
        blocking_power_w=gpu.blocking_power_w,
        least_waiting_w=least_waiting_w(gpu),
        static_power_w=gpu.static_power_w,
    )


def identity(fleet: Fleet, method: str) -> dict[str, Any]:
    """Return the columns that all tables begin with."""
    return {
        "fleet": fleet.name,
        "pipelines": fleet.pipelines,
        "num_microbatches": fleet.emulation.num_microbatches,
        "gpus": fleet.gpus,
        "method": method,
    }


def fleet_columns(scale: Scale, plan: PlannedIteration) -> dict[str, Any]:
    """Return the columns of `FLEET` for one plan."""
    time_s, energy_j = scale.cost(plan.time_s, plan.energy_j)
    _, bound_j = scale.cost(plan.time_s, plan.lower_bound_j)
    static_energy_j = scale.static_power_w * time_s * scale.gpus
    return {
        "time_s": time_s,
        "pipeline_time_s": plan.time_s,
        "reduction_s": scale.reduction_s,
        "energy_j": energy_j,
        "static_energy_j": static_energy_j,
        "dynamic_energy_j": energy_j - static_energy_j,
        "power_w": energy_j / time_s,
        "lower_bound_j": bound_j,
        "gap": energy_j / bound_j - 1,
        "points": plan.points,
    }
