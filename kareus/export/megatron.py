"""A plan's SM counts as the two files that an unmodified Megatron-LM reads them from.

- `--nccl-communicator-config-path`: for each process group `min_ctas`, `max_ctas` and `cga_cluster_size` of its NCCL
  communicators (`megatron.core.parallel_state.get_nccl_options`, Megatron-Core 0.16). NCCL runs a channel in a CTA
  on an SM of its own, so that both limits are the number of SMs.
- `--tp-comm-overlap-cfg`: for each matrix product that Transformer Engine overlaps with a collective of sequence
  parallelism, `method`, `num_sm`, `cga_size`, `num_splits` and `set_sm_margin` (its `initialize_ub`). The methods are
  Transformer Engine's own choices; a ring exchange is moved by copy engines and takes one SM.

Both are constant for a run. The first one decides collectives that Megatron-LM waits for, or hides behind weight
gradients alone; the second those that run beside the products. Dispatchers that are no collectives of NCCL (DeepEP,
HybridEP) take their SMs from `--moe-flex-dispatcher-num-sms`, before that `--moe-deepep-num-sms` and
`--moe-hybridep-num-sms`. Clocks are followed by `kareus.adapters.megatron`.
"""

from pathlib import Path

import yaml

from kareus.export.constant_counts import ConstantCounts
from kareus.export.layouts import header, starts_with
from kareus.graph.records import EXPERT_PARALLEL, TENSOR_PARALLEL
from kareus.pipeline.compare import FRONTIER_BASELINE
from kareus.pipeline.iteration import ComposedIteration
from kareus.plans.document import Plan
from kareus.workload.config import Workload

COMMUNICATORS = "SM counts of NCCL communicators for Megatron-LM, by Kareus: --nccl-communicator-config-path"
OVERLAPS = "SM counts of tensor-parallel overlap for Megatron-LM, by Kareus: --tp-comm-overlap-cfg"

RING_EXCHANGE, PIPELINE, BULK = "ring_exchange", "pipeline", "bulk"
CHANGES_NOTHING = 5e-5
"""Share of the product of time and energy below which a count of SMs is as good as NCCL's own."""
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
    """Return the text of the file for `--nccl-communicator-config-path`; it sets nothing where that would lose."""
    count, groups = counts.alone if saves_alone(counts) else None, dict[str, dict[str, int]]()
    carries = [
        "Carries: nothing, since each SM count takes more time or energy than NCCL's own where instructions run whole,",
        "or changes neither. What Megatron-LM obeys are clocks of whole instructions:",
        f"kareus select {plan.selector} ... --method {FRONTIER_BASELINE}",
    ]
    if count is not None:
        settings = {"min_ctas": count, "max_ctas": count, "cga_cluster_size": _dividing(count, NCCL_CLUSTERS)}
        groups = {group: dict(settings) for group in counts.beside}
        carries = [
            "Carries: the SM count with the least product of iteration time and energy where instructions run whole,",
            "among those that take neither more time nor more energy than NCCL's own.",
        ]
        if EXPERT_PARALLEL in groups:
            carries.append("The dispatcher flex takes the count of ep by --moe-flex-dispatcher-num-sms instead.")
    return _header(COMMUNICATORS, plan, counts, carries) + yaml.safe_dump(groups, sort_keys=False)


def saves_alone(counts: ConstantCounts) -> bool:
    """Whether an SM count saves time or energy where instructions run whole."""
    return counts.alone is not None and counts.whole_set.product < counts.whole.product * (1 - CHANGES_NOTHING)


def overlap_config(plan: Plan, workload: Workload, counts: ConstantCounts) -> str | None:
    """Return the text of the file for `--tp-comm-overlap-cfg`; None without sequence parallelism, which it needs."""
    count = counts.beside.get(TENSOR_PARALLEL)
    if count is None or not workload.parallelism.sequence_parallel:
        return None
    products = {
        name: _overlap(method, count, workload.parallelism.tp) for method, names in METHODS.items() for name in names
    }
    carries = [
        "Carries: the SM count with the least product of iteration time and energy where computation runs beside",
        "collectives as planned. Transformer Engine runs a product beside its own collective instead, which was not",
        "modelled: compare an iteration with this file and without.",
    ]
    return _header(OVERLAPS, plan, counts, carries) + yaml.safe_dump(products, sort_keys=False)


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


def _header(first: str, plan: Plan, counts: ConstantCounts, carries: list[str]) -> str:
    planned, whole = counts.planned, counts.whole
    beside = ", ".join(f"{group} {count}" for group, count in counts.beside.items())
    lines = [
        first,
        f"From a plan of {plan.gpus} GPUs ({plan.testbed.label}).",
        *([] if plan.actuator.sets_clocks else [f"Planned for {plan.actuator}, which kareus.adapters.megatron sets."]),
        *carries,
        "Leaves out: clocks (kareus.adapters.megatron follows them), the halves of microbatches, launch operators, and",
        "SM counts that differ between partitions or clocks: Megatron-LM sets them once for a run.",
        "What is lost, by the GPU model, each with the plan's clocks and order:",
        f"  the plan as it is (kareus train): {planned.time_s:.4f} s, {planned.energy_j:.1f} J an iteration",
        f"  with constant counts ({beside} SMs), the rest as planned: {_against(counts.constant, planned)}",
        f"  instructions whole, as Megatron-LM runs them, NCCL's own counts: {_against(whole, planned)}",
    ]
    if saves_alone(counts):
        lines.append(f"  the same with {counts.alone} SMs: {_against(counts.whole_set, planned)}")
        lines.append(f"What {counts.alone} SMs change against NCCL's own: {_changes(counts.whole_set, whole)}.")
    return header(lines)


def _against(cost: ComposedIteration, planned: ComposedIteration) -> str:
    """Return a cost and its distance from the plan in words."""
    time, energy = _percent(cost, planned)
    return f"{cost.time_s:.4f} s ({time:+z.2f} %), {cost.energy_j:.1f} J ({energy:+z.2f} %)"


def _changes(cost: ComposedIteration, reference: ComposedIteration) -> str:
    time, energy = _percent(cost, reference)
    return f"{time:+z.2f} % time, {energy:+z.2f} % energy"


def _percent(cost: ComposedIteration, reference: ComposedIteration) -> tuple[float, float]:
    """Return by how many percent time and energy are above those of the reference."""
    return 100 * (cost.time_s / reference.time_s - 1), 100 * (cost.energy_j / reference.energy_j - 1)
