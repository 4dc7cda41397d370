"""Which options of a training a workload can have, and what works in the place of those that it cannot."""

from collections.abc import Iterator

from kareus.errors import RefusedWorkloadError
from kareus.graph.number_formats import FORMATS
from kareus.graph.recomputation import Recomputation
from kareus.model.training_options import FrozenWeights, RecomputedModule
from kareus.workload.config import Workload

KEY = "training"
"""Begins the keys of the options."""


def check_training(workload: Workload) -> None:
    """Check that the options of a training can be had with the rest of a workload.

    Raises:
        RefusedWorkloadError: one cannot; with the reason, and the nearest thing that works.
    """
    options = workload.training
    if not options.changed:
        return
    problem = next((text for check in CHECKS for text in check(workload)), None)
    if problem is not None:
        raise RefusedWorkloadError(f"{KEY}.{problem}")


def _testbed(workload: Workload) -> Iterator[str]:
    if workload.testbed.cuda is not None:
        name = workload.training.changed[0]
        yield (
            f"{name}: real GPUs run programs of Kareus' engine, which trains all weights in fp32 states on sequences "
            "of one document; plan with testbed=simulated, or profile a job of another trainer in place."
        )


def _adapters(workload: Workload) -> Iterator[str]:
    model, rank = workload.model, workload.training.lora_rank
    if not rank:
        return
    if model.experts is not None or model.latent_attention is not None:
        what = "experts" if model.experts is not None else "latent attention"
        yield (
            f"lora_rank={rank}: adapters beside {what} are not predicted; the nearest are a dense model of as many "
            "active parameters with adapters, and this model with training.offload_optimizer=1."
        )
    if workload.split_backward:
        yield (
            f"lora_rank={rank}: with pipeline.schedule={workload.pipeline.schedule} weight gradients fill the waits of "
            "the pipeline, and frozen weights have none; use pipeline=1f1b or interleaved."
        )


def _quantised(workload: Workload) -> Iterator[str]:
    frozen = workload.training.frozen_weights
    if frozen is FrozenWeights.BF16:
        return
    if FORMATS[workload.precision].is_cast:
        yield (
            f"frozen_weights={frozen}: is cast to 16 bits, and precision={workload.precision} takes others; use "
            "precision=bf16."
        )


def _cast(workload: Workload) -> Iterator[str]:
    if not workload.training.cast_weights:
        return
    if not FORMATS[workload.precision].is_cast:
        yield (
            f"cast_weights=true: products in {workload.precision} cast no weights; use precision=fp8 or another format "
            "of fewer bits with it."
        )
    if workload.parallelism.shards_weights:
        yield (
            "cast_weights=true: with parallelism.sharding=full weights are gathered in 16 bits; use "
            "parallelism.sharding=optimizer."
        )


def _documents(workload: Workload) -> Iterator[str]:
    options, tokens = workload.training, workload.sequence_length
    if not options.packs:
        return
    if not workload.software.fused_attention:
        yield (
            f"document_tokens: attention of {workload.software.name} is not fused, so that scores of all pairs are "
            "computed however sequences are packed; leave it out, or use software with fused attention."
        )
    if (longest := options.document_tokens or 0) > tokens:
        yield f"document_tokens={longest:g}: must be at most sequence_length ({tokens}), which holds several documents."


def _recomputation(workload: Workload) -> Iterator[str]:
    options, kind = workload.training, workload.recomputation
    for name in ("recompute_every", "recompute_blocks"):
        if name in options.changed and kind not in (Recomputation.FULL, Recomputation.SELECTIVE):
            yield (
                f"{name}={getattr(options, name)}: says which blocks are recomputed, and recomputation={kind} is of "
                f"{'none' if kind is Recomputation.NONE else 'a stage at once'}; use recomputation=full or selective."
            )
    if options.recompute_blocks is not None and workload.model.dense_layers:
        yield (
            f"recompute_blocks={options.recompute_blocks}: blocks without experts come first in this model, and what "
            "the first blocks keep is not predicted apart; the nearest is training.recompute_every."
        )
    if options.recompute_modules and kind.repeats_blocks:
        yield (
            f"recompute_modules: recomputation={kind} runs whole blocks again; use recomputation=none or selective "
            "with it, or leave it out."
        )
    for module in options.recompute_modules:
        if module in (RecomputedModule.MOE, RecomputedModule.MOE_ACTIVATION) and workload.model.experts is None:
            yield f"recompute_modules=[{module}]: {workload.model.name} has no experts; the nearest is mlp."


def _offloading(workload: Workload) -> Iterator[str]:
    options, kind = workload.training, workload.recomputation
    if not options.offload_blocks:
        return
    if kind is Recomputation.STAGE:
        yield (
            f"offload_blocks={options.offload_blocks}: recomputation=stage keeps one tensor of a stage, not of its "
            "blocks; use recomputation=full, selective or none."
        )
    if options.recomputes_part:
        yield (
            f"offload_blocks={options.offload_blocks}: which of the recomputed blocks wait on the host is not said by "
            "training.recompute_every and recompute_blocks; use one or the other."
        )


def _loss(workload: Workload) -> Iterator[str]:
    chunks, tokens = workload.training.loss_chunks, workload.microbatch_size * workload.sequence_length
    if chunks > (local := tokens // workload.parallelism.cp):
        yield f"loss_chunks={chunks}: must be at most the {local} tokens of a microbatch on a GPU; 8 to 32 are usual."


def _ramp(workload: Workload) -> Iterator[str]:
    if not workload.training.batch_ramp:
        return
    first, step, _ = workload.training.batch_ramp
    each = workload.parallelism.dp * workload.microbatch_size
    whole = each * workload.num_microbatches
    if first > whole or (whole - first) % step or first % each or step % each:
        yield (
            f"batch_ramp={list(workload.training.batch_ramp)}: must begin at a batch from which steps lead to the "
            f"whole one ({whole} sequences); first batch and steps must be multiples of parallelism.dp x "
            f"microbatch_size ({each})."
        )


CHECKS = (_testbed, _adapters, _quantised, _cast, _documents, _recomputation, _offloading, _loss, _ramp)
"""Each yields what is wrong, after the common beginning of the keys."""
