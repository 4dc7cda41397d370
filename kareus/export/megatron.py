"""A plan's SM counts as the two files that an unmodified Megatron-LM reads them from.

- `--nccl-communicator-config-path`: for each process group `min_ctas`, `max_ctas` and `cga_cluster_size` of its NCCL
  communicators (`megatron.core.parallel_state.get_nccl_options`, Megatron-Core 0.16). NCCL runs a channel in a CTA
  on an SM of its own, so that both limits are the number of SMs.
- `--tp-comm-overlap-cfg`: for each matrix product that Transformer Engine overlaps with a collective of sequence
  parallelism, `method`, `num_sm`, `cga_size`, `num_splits` and `set_sm_margin` (its `initialize_ub`). The methods are
  Transformer Engine's own choices; a ring exchange is moved by copy engines and takes one SM.

Both are constant for a run. Clocks are followed by `kareus.adapters.megatron`.
"""

from pathlib import Path

import yaml

from kareus.export.comments import header, starts_with
from kareus.export.constant_counts import ConstantCounts, ModelledCost
from kareus.graph.records import TENSOR_PARALLEL
from kareus.plans.document import Plan
from kareus.workload.config import Workload

COMMUNICATORS = "SM counts of NCCL communicators for Megatron-LM, by Kareus: --nccl-communicator-config-path"
OVERLAPS = "SM counts of tensor-parallel overlap for Megatron-LM, by Kareus: --tp-comm-overlap-cfg"

RING_EXCHANGE, PIPELINE, BULK = "ring_exchange", "pipeline", "bulk"
METHODS = {
    RING_EXCHANGE: ("qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad"),
    PIPELINE: ("proj_fprop", "fc2_fprop"),
    BULK: ("qkv_dgrad", "qkv_wgrad", "fc1_dgrad", "fc1_wgrad"),
}
"""Matrix products by the way in which Transformer Engine overlaps them, unless it is told otherwise."""
SPLITS = 4
"""Transformer Engine's own number of parts of a product that is not exchanged around a ring."""
NCCL_CLUSTERS, UB_CLUSTERS = (4, 2, 1), (2, 1)
"""Sizes of clusters of CTAs, from the default of NCCL and of Transformer Engine on Hopper down."""


def communicator_config(plan: Plan, counts: ConstantCounts) -> str:
    """Return the text of the file for `--nccl-communicator-config-path`."""
    groups = {
        group: {"min_ctas": count, "max_ctas": count, "cga_cluster_size": _dividing(count, NCCL_CLUSTERS)}
        for group, count in counts.sm_counts.items()
    }
    return _header(COMMUNICATORS, plan, counts) + yaml.safe_dump(groups, sort_keys=False)


def overlap_config(plan: Plan, workload: Workload, counts: ConstantCounts) -> str | None:
    """Return the text of the file for `--tp-comm-overlap-cfg`; None without sequence parallelism, which it needs."""
    count = counts.sm_counts.get(TENSOR_PARALLEL)
    if count is None or not workload.parallelism.sequence_parallel:
        return None
    products = {
        name: _overlap(method, count, workload.parallelism.tp) for method, names in METHODS.items() for name in names
    }
    return _header(OVERLAPS, plan, counts) + yaml.safe_dump(products, sort_keys=False)


def is_communicator_config(path: Path) -> bool:
    """Return whether a file is one of `communicator_config`."""
    return starts_with(path, COMMUNICATORS)


def is_overlap_config(path: Path) -> bool:
    """Return whether a file is one of `overlap_config`."""
    return starts_with(path, OVERLAPS)


def _overlap(method: str, count: int, group_size: int) -> dict[str, str | int]:
    if method == RING_EXCHANGE:
        return {"method": method, "num_sm": 1, "cga_size": 1, "num_splits": group_size, "set_sm_margin": 0}
    cluster = _dividing(count, UB_CLUSTERS)
    return {"method": method, "num_sm": count, "cga_size": cluster, "num_splits": SPLITS, "set_sm_margin": 1}


def _dividing(count: int, sizes: tuple[int, ...]) -> int:
    """Return the first size that divides `count`, so that the number of CTAs is what was asked for."""
    return next(size for size in sizes if count % size == 0)


def _header(first: str, plan: Plan, counts: ConstantCounts) -> str:
    planned = counts.planned
    lines = [
        first,
        f"From a plan of {plan.gpus} GPUs ({plan.testbed.label}).",
        "Carries: one SM count for each group, the one with the least product of iteration time and energy.",
        "Leaves out: clocks (kareus.adapters.megatron follows them), the halves of microbatches, launch operators, and",
        "SM counts that differ between partitions or clocks: Megatron-LM sets them once for a run.",
        "What is lost, by the GPU model, each with the plan's clocks and order:",
        f"  the plan as it is (kareus train): {planned.time_s:.4f} s, {planned.energy_j:.1f} J an iteration",
        f"  with these counts, the rest as planned: {_against(counts.constant, planned)}",
        f"  instructions whole, as Megatron-LM runs them without overlap, without this file: "
        f"{_against(counts.whole, planned)}",
    ]
    if counts.whole_limited is not None:
        lines.append(f"  the same with this file: {_against(counts.whole_limited, planned)}")
        if counts.whole_limited.product > counts.whole.product:
            lines.append("Use it only where collectives of the group run beside computation; alone they want more SMs.")
    return header(lines)


def _against(cost: ModelledCost, planned: ModelledCost) -> str:
    """Return a cost and its distance from the plan in words."""
    time, energy = (100 * (own / reference - 1) for own, reference in zip(cost, planned, strict=True))
    return f"{cost.time_s:.4f} s ({time:+.2f} %), {cost.energy_j:.1f} J ({energy:+.2f} %)"
