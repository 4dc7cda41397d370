"""Layouts for a model that names none: in the fewest GPUs in which it fits, or in as many as there are."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product

from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Parallelism, Sharding
from kareus.workload.config import Workload
from kareus.workload.divisibility import divisors
from kareus.workload.words import ACCUMULATION, MICROBATCH, MICROBATCHES, SHARDING

MOST_GPUS = 1024
"""Largest layout that is proposed."""
PROPOSED = (
    *(f"parallelism.{name}" for name in ("dp", "pp", "tp", "cp", "ep", "sharding", "sequence_parallel")),
    "microbatch_size",
    "num_microbatches",
    "recomputation",
)
"""Keys that a proposal may set; those that are named stay."""
NEUTRAL = (1, "none", False)
"""Values that say nothing where they are the usual ones."""
MOST_EP = 64
"""Most GPUs that share out experts."""
RECOMPUTATIONS = (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL)
"""From the one that takes least time to the one that takes least memory."""
SHARDINGS = (Sharding.OPTIMIZER, Sharding.FULL)
"""What replicas share out, from what trainers do first."""


def smallest_layouts(workload: Workload) -> Iterator[Workload]:
    """Yield a workload in layouts of one replica, by rising number of GPUs."""
    most_pp = min(MOST_GPUS, workload.model.num_layers)
    for tp, pp in _degrees(workload.gpu.linked_degrees, [2**n for n in range(most_pp.bit_length())]):
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

    Replicas share out the optimizer; weights, too, and sequences only after all others, or where FSDP trains: without a
    pipeline it shares out both. Of each layout come first those that recompute nothing, with large microbatches.

    Args:
        workload: with the values of what is named.
        gpus: of the whole job.
        global_batch: sequences of an iteration; None: of `num_microbatches`.
        named: dotted keys that stay as they are.
    """
    given, linked = workload.parallelism, workload.gpu.linked_degrees
    recomputations = (workload.recomputation,) if "recomputation" in named else RECOMPUTATIONS
    shardings = (given.sharding,) if SHARDING in named else SHARDINGS
    is_fsdp = SHARDING not in named and workload.software.usual_sharding is Sharding.FULL
    most_pp = min(gpus, workload.model.num_layers)
    stages = [given.pp] if "parallelism.pp" in named else [n for n in range(1, most_pp + 1) if not gpus % n]
    groups = [given.tp] if "parallelism.tp" in named else linked
    for sharding, cp in product(shardings, [given.cp] if "parallelism.cp" in named else linked):
        for tp, pp in _degrees(groups, stages):
            dp, rest = divmod(gpus, tp * pp * cp)
            is_tried = dp > 1 or SHARDING in named or sharding is shardings[0]
            if rest or dp < 1 or not is_tried or ("parallelism.dp" in named and dp != given.dp):
                continue
            usual = Sharding.FULL if is_fsdp and pp == 1 else sharding
            shared = usual if dp > 1 else given.sharding
            laid_out = replace(given, dp=dp, cp=cp, tp=tp, pp=pp, ep=1, sharding=shared)
            laid_out = _routed(workload, laid_out, named)
            named_ep = given.ep if "parallelism.ep" in named else None
            for ep in [named_ep] if named_ep else expert_degrees(workload, laid_out.gpus_per_stage):
                for recomputation, batch in product(recomputations, _batches(workload, dp, global_batch, named)):
                    size, microbatches = batch
                    yield replace(
                        workload,
                        parallelism=replace(laid_out, ep=ep),
                        recomputation=recomputation,
                        microbatch_size=size,
                        num_microbatches=microbatches,
                    )


def _routed(workload: Workload, laid_out: Parallelism, named: Collection[str]) -> Parallelism:
    """Return a layout in which GPUs of a tensor-parallel group route their own tokens, which experts need."""
    needs = workload.model.experts is not None and laid_out.tp > 1
    if not needs or "parallelism.sequence_parallel" in named:
        return laid_out
    return replace(laid_out, sequence_parallel=True)


def _batches(
    workload: Workload, dp: int, global_batch: int | None, named: Collection[str]
) -> Iterator[tuple[int, int]]:
    """Yield sizes and numbers of microbatches of a replica that make up the batch, large microbatches first."""
    size, microbatches = workload.microbatch_size, workload.num_microbatches
    is_cut = MICROBATCHES in named or ACCUMULATION in named
    sizes: Sequence[int] = range(size, 0, -1)
    if MICROBATCH in named:
        sizes = [size]
    elif global_batch is None:
        sizes = [size >> n for n in range(size.bit_length())]
    elif is_cut:
        sizes = [global_batch // (dp * microbatches)]
    for size in filter(None, sizes):
        number, rest = (microbatches, 0) if global_batch is None else divmod(global_batch, dp * size)
        if number and not rest and not (is_cut and number != microbatches):
            yield size, number


def nearest_batch(batch: int, replicas: Collection[int]) -> int:
    """Return the batch nearest to one that some number of replicas divides."""
    return min((max(1, round(batch / dp)) * dp for dp in sorted(replicas)), key=lambda near: abs(near - batch))


def _degrees(groups: Sequence[int], stages: Sequence[int]) -> list[tuple[int, int]]:
    """Return tensor and pipeline parallelism by rising number of GPUs, shorter pipelines first."""
    pairs = [(tp, pp) for tp, pp in product(groups, stages) if tp * pp <= MOST_GPUS]
    return sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair[1]))
