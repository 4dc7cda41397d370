"""Plan mixtures of experts: what each method exposes of the exchanges of tokens, SMs by search and by hand, savings.

    python benchmarks/expert_plans.py [qwen3-30b-a3b gpt-oss-120b deepseek-v3 deepseek-v3-ep64] [--json]

Everything is simulated: plans on the simulated testbed, exposure by the GPU model at the planned clocks. Methods that
have a frontier are at the selector `fastest`. `by hand` is the plan of `kareus` with 32 SMs for every exchange, at the
planned clocks; both are priced by the GPU model. `whole, SMs searched` is what Megatron runs, instructions whole, with
the number of SMs for its dispatcher that `kareus plan ... software.dispatch_sms=auto` finds, beside its own number and
32 by hand. `overlapped 1F1B` is what Megatron's `overlap_moe_expert_parallel_comm` does at best, every exchange beside
another microbatch's passes, which needs blocks that are not recomputed whole, and virtual stages.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import kareus
from kareus.errors import RefusedWorkloadError
from kareus.export.constant_counts import plan_cost, with_counts
from kareus.gpu_model.model import KnownSteps
from kareus.graph.records import UPDATING, Batch, BlockGraph
from kareus.partition.extract import operator_graphs, partitions_of
from kareus.plans.document import Plan
from kareus.plans.exchanges import dispatches, with_best_dispatch, with_dispatch_sms
from kareus.plans.planning import quietly
from kareus.plans.simulated_run import planned_program
from kareus.prediction.breakdown import COLLECTIVES, instruction_cost
from kareus.profile.programs import chunk_shapes
from kareus.workload.combinations import check_combinations
from kareus.workload.config import Workload, run_by

Graphs = Mapping[Batch, BlockGraph]
METHODS = ("sequential", "sequential+perseus", "nanobatching", "nanobatching+perseus", "kareus")
BY_HAND = 32
H100 = ("gpu=h100-sxm5-80gb", "parallelism.tp=1", "parallelism.sharding=optimizer", "recomputation=full")
WORKLOADS = {
    "qwen3-30b-a3b": (
        *H100,
        "model=qwen3-30b-a3b",
        *("parallelism.pp=2", "parallelism.dp=8", "parallelism.ep=8", "microbatch_size=8"),
    ),
    "gpt-oss-120b": (
        *("model=gpt-oss-120b", "gpu=gb200", "parallelism.tp=1", "parallelism.sharding=optimizer"),
        *("parallelism.pp=1", "parallelism.dp=64", "parallelism.ep=64", "gpu.nvlink_domain=64"),
        *("microbatch_size=16", "num_microbatches=2", "recomputation=full"),
    ),
    "deepseek-v3": (
        *(*H100, "model=deepseek-v3", "software.dispatcher=flex", "parallelism.pp=16", "parallelism.dp=16"),
        *("parallelism.ep=16", "microbatch_size=2", "num_microbatches=32"),
    ),
    "deepseek-v3-ep64": (
        *(*H100, "model=deepseek-v3", "software.dispatcher=flex", "parallelism.pp=16", "parallelism.dp=64"),
        *("parallelism.ep=64", "microbatch_size=2", "num_microbatches=32"),
    ),
}
"""16 H100; 64 GB200 of one NVLink domain; 256 and 1,024 H100: with 16 stages each of 256 GPUs has 15 others."""


def main() -> None:
    """Print a row for each method of each workload."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS)[:3], help=", ".join(WORKLOADS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.workloads:
        for row in rows(name, WORKLOADS[name]):
            print(json.dumps(row) if arguments.json else text(row), flush=True)


def rows(name: str, overrides: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the methods of a workload, as plain data."""
    (workload,) = kareus.resolve(list(overrides))
    with quietly():
        frontier = kareus.frontier(workload)
    common = {"workload": name, "gpus": workload.parallelism.gpus}
    graphs, priced = operator_graphs(workload), dict[Any, Any]()
    plans = {method: frontier.plan("fastest", method) for method in METHODS}
    for method, plan in plans.items():
        cost = plan.prediction.time_s, plan.prediction.energy_j
        yield common | costs(method, cost, exposure(plan, workload, graphs, priced)) | {"sms": sm_counts(plan)}
    ours = plans["kareus"]
    if sm_counts(ours):
        groups = {p.name: p.collective.group for p in partitions_of(dict(graphs), workload)}
        hand = with_counts(ours, groups, dict.fromkeys(groups.values(), BY_HAND))
        for label, plan in (("kareus by the GPU model", ours), (f"the same, {BY_HAND} SMs by hand", hand)):
            cost = plan_cost(plan, workload, graphs, priced)
            moved = exposure(plan, workload, graphs, priced)
            yield common | costs(label, (cost.time_s, cost.energy_j), moved) | {"sms": sm_counts(plan)}
    yield from (common | row for row in dispatched(workload, "whole"))
    overlapping = run_by(workload, replace(workload.software, hidden_exchange=1.0))
    if is_taken(overlapping):
        yield from (common | row for row in dispatched(overlapping, "overlapped 1F1B"))


def dispatched(workload: Workload, label: str) -> Iterator[dict[str, Any]]:
    """Yield what Megatron runs, on the SMs of its dispatcher, on those that are found, and on those by hand."""
    if not dispatches(workload):
        return
    best = with_best_dispatch(workload)
    named = {
        f"{label}, SMs as usual": workload,
        f"{label}, SMs searched": best,
        f"{label}, {BY_HAND} SMs": with_dispatch_sms(workload, BY_HAND),
    }
    for method, run in named.items():
        prediction = kareus.predict(run)
        moved = prediction.collectives.alone_s, prediction.collectives.exposed_s
        counts = {"dispatch": [run.software.exchange_sms(run.default_collective_sm_count)]}
        yield costs(method, (prediction.time_s, prediction.energy_j), moved) | {"sms": counts}


def is_taken(workload: Workload) -> bool:
    """Return whether its trainer runs a workload."""
    try:
        check_combinations(workload)
    except RefusedWorkloadError:
        return False
    return True


def costs(method: str, cost: tuple[float, float], moved: tuple[float, float]) -> dict[str, Any]:
    """Return the columns of a method."""
    return {"method": method, "time_s": cost[0], "energy_j": cost[1], "alone_s": moved[0], "exposed_s": moved[1]}


def exposure(plan: Plan, workload: Workload, graphs: Graphs, priced: KnownSteps) -> tuple[float, float]:
    """Return the seconds that collectives take alone and that they add, of one GPU, the mean over stages."""
    shapes = chunk_shapes(workload.parallelism.split, workload.chunks, workload.model.dense_layers)
    moved: dict[Any, tuple[float, float]] = {}
    alone_s = exposed_s = 0.0
    for key, i in plan.keyed:
        if key.direction in UPDATING:
            continue
        shape = shapes[key.stage, key.chunk]
        alike = shape, key.direction, i.execution, i.frequency_mhz, i.partitions
        if alike not in moved:
            program = planned_program(key, i, shape, workload, graphs)
            cost = instruction_cost(workload.gpu, program, key.direction, i.frequency_mhz, priced)
            exposed = cost.parts[COLLECTIVES][0] if COLLECTIVES in cost.parts else 0.0
            moved[alike] = cost.collectives_alone_s, float(exposed)
        alone_s += moved[alike][0] / workload.parallelism.pp
        exposed_s += moved[alike][1] / workload.parallelism.pp
    return alone_s, exposed_s


def sm_counts(plan: Plan) -> dict[str, list[int]]:
    """Return the SMs that a plan gives the collective of each partition, in any of its instructions."""
    counted: dict[str, set[int]] = {}
    for _, i in plan.keyed:
        for choice in i.partitions:
            counted.setdefault(choice.partition, set()).add(choice.sm_count)
    return {partition: sorted(counts) for partition, counts in sorted(counted.items())}


def text(row: dict[str, Any]) -> str:
    """Return a row for people."""
    sms = ", ".join(f"{name} {'/'.join(map(str, counts))}" for name, counts in row["sms"].items())
    cost = f"{row['time_s']:7.3f} s {row['energy_j'] / 1e3:9.1f} kJ"
    return (
        f"{row['workload']:<17} {row['gpus']:>5} {row['method']:<30} {cost}"
        f"  exchanges {row['alone_s']:6.3f} s alone, {row['exposed_s']:6.3f} s exposed  {sms}"
    )


if __name__ == "__main__":
    main()
