"""Layouts for a model that names none: in the fewest GPUs in which it fits, or in as many as there are."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import product

from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Parallelism, Sharding
from kareus.workload.config import Workload
from kareus.workload.divisibility import divisors

MOST_GPUS = 1024
"""Largest layout that is proposed."""
PROPOSED = (
    *(f"parallelism.{name}" for name in ("dp", "pp", "tp", "cp", "ep", "sharding", "sequence_parallel")),
    "microbatch_size",
    "num_microbatches",
    "recomputation",
)
"""Keys that a proposal may set; those that are named stay."""
MOST_EP = 64
"""Most GPUs that share out experts."""
RECOMPUTATIONS = (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL)
"""From the one that takes least time to the one that takes least memory."""


def smallest_layouts(workload: Workload) -> Iterator[Workload]:
    """Yield a workload in layouts of one replica, by rising number of GPUs."""
    for tp, pp in degrees(workload):
        laid_out = replace(workload.parallelism, dp=1, cp=1, tp=tp, pp=pp, ep=1, layers_per_stage=None)
        laid_out = replace(_routed(workload, laid_out, ()), ep=expert_degrees(workload, laid_out.gpus_per_stage)[-1])
        yield replace(workload, parallelism=laid_out)


def expert_degrees(workload: Workload, gpus: int) -> list[int]:
    """Return the degrees of expert parallelism that are worth trying on the GPUs of a stage, rising.

    None at all, which exchanges no tokens; the most that NVLink connects; and those beyond, up to `MOST_EP`.
    """
    experts, node = workload.model.experts, workload.gpu.linked_gpus(gpus)
    if experts is None:
        return [1]
    fitting = [d for d in divisors(gpus) if experts.count % d == 0 and d <= MOST_EP]
    within = max(d for d in fitting if d <= node)
    return [d for d in fitting if d in (1, within) or d > node]


def layouts_on(workload: Workload, gpus: int, global_batch: int | None, named: Collection[str]) -> Iterator[Workload]:
    """Yield a workload in layouts of so many GPUs, those first that share the model among fewest.

    Replicas share out the optimizer. Of each layout come first those that recompute nothing, with large microbatches.

    Args:
        workload: with the values of what is named.
        gpus: of the whole job.
        global_batch: sequences of an iteration; None: of `num_microbatches`.
        named: dotted keys that stay as they are.
    """
    given = workload.parallelism
    sizes = [workload.microbatch_size]
    while "microbatch_size" not in named and sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    recomputations = (workload.recomputation,) if "recomputation" in named else RECOMPUTATIONS
    cp = given.cp if "parallelism.cp" in named else 1
    tp_named, pp_named, dp_named = (f"parallelism.{name}" in named for name in ("tp", "pp", "dp"))
    for tp, pp in degrees(workload, given.tp if tp_named else None, given.pp if pp_named else None):
        dp, rest = divmod(gpus, tp * pp * cp)
        if rest or dp < 1 or (dp_named and dp != given.dp):
            continue
        laid_out = _routed(workload, replace(given, dp=dp, cp=cp, tp=tp, pp=pp, ep=1), named)
        if "parallelism.sharding" not in named and dp > 1:
            laid_out = replace(laid_out, sharding=Sharding.OPTIMIZER)
        named_ep = given.ep if "parallelism.ep" in named else None
        for ep in [named_ep] if named_ep else expert_degrees(workload, laid_out.gpus_per_stage):
            for recomputation, size in product(recomputations, sizes):
                yield from _with_batch(workload, replace(laid_out, ep=ep), recomputation, size, global_batch)


def _routed(workload: Workload, laid_out: Parallelism, named: Collection[str]) -> Parallelism:
    """Return a layout in which GPUs of a tensor-parallel group route their own tokens, which experts need."""
    needs = workload.model.experts is not None and laid_out.tp > 1
    if not needs or "parallelism.sequence_parallel" in named:
        return laid_out
    return replace(laid_out, sequence_parallel=True)


def _with_batch(
    workload: Workload, laid_out: Parallelism, recomputation: Recomputation, size: int, global_batch: int | None
) -> Iterator[Workload]:
    """Yield the workload with a microbatch, where the global batch is a multiple of it."""
    microbatches, rest = workload.num_microbatches, 0
    if global_batch is not None:
        microbatches, rest = divmod(global_batch, laid_out.dp * size)
    if not rest and microbatches:
        yield replace(
            workload,
            parallelism=laid_out,
            recomputation=recomputation,
            microbatch_size=size,
            num_microbatches=microbatches,
        )


def degrees(workload: Workload, tp: int | None = None, pp: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield tensor and pipeline parallelism by rising number of GPUs, shorter pipelines first; either may be given."""
    layers = workload.model.num_layers
    groups = [tp] if tp else workload.gpu.linked_degrees
    stages = [pp] if pp else [2**n for n in range(MOST_GPUS.bit_length()) if 2**n <= layers]
    pairs = [(tp, pp) for tp in groups for pp in stages if tp * pp <= MOST_GPUS]
    yield from sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair[1]))
