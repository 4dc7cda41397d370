"""Sums of weight gradients over ranks that share weights, bucket by bucket while the last backward runs.

A rank's gradients are of its own tokens, and those of norms of queries and keys, and of latent vectors, also of its own
heads. With sequence parallelism the tokens of the other norms are shared out within a tensor-parallel group, too. If
every loss is weighted with its tokens' share of the iteration's, plain sums are right however uneven the batches are.

A bucket is reduced as soon as its gradients are complete, in the background: by an all-reduce over all ranks with the
same weights, or with a sharded optimizer by a reduce-scatter over the replicas, after which context-parallel ranks sum
their shards. That second sum is begun when the next bucket is complete, by when the first has mostly ended; on GPUs a
stream of its own waits for it, and the computation does not, except with MSCCL++, which runs one thing at a time. The
sums of norms, routers and choices over tensor-parallel ranks wait for the end.

The experts of a block are a bucket of their own, which is reduced over the ranks of the stage that hold the same ones,
those of context and of tensor parallelism among them.
"""

import torch
import torch.distributed as dist
from torch import nn

from kareus.launch.process_groups import ProcessGroups
from kareus.model.communication import Handle
from kareus.model.communicators.process_group import Works, reduce_scatter_single
from kareus.model.expert_layers import Choose, Router
from kareus.model.latent import LatentLinear, LatentNorm
from kareus.model.layers import Norm, QueryKeyNorm
from kareus.training.optimizer_sharding import OptimizerSharding, is_expert_bucket

TIED = ("embedding.weight", "head.lm_head.weight")
"""Names of the copies of a tied embedding, on the first and on the last stage."""


class BucketReduction:
    """The sums of one stage's weight gradients; the same calls, in the same order, on all ranks of the stage."""

    def __init__(self, stage: nn.Module, sharding: OptimizerSharding, groups: ProcessGroups) -> None:
        """Reduce the gradients of `stage`, whose buckets `sharding` has, over `groups`."""
        self._sharding = sharding
        self._groups = groups
        self._names = {
            module: [name for name in sharding.buckets if name == prefix or name.startswith(f"{prefix}.")]
            for prefix, module in stage.named_modules()
        }
        of_heads, of_tokens = (QueryKeyNorm, LatentLinear, LatentNorm), (Norm, Router, Choose)
        partial = (*of_heads, *of_tokens) if groups.mesh.sequence_parallel else of_heads
        self._partial = {
            f"{prefix}.{name}"
            for prefix, module in stage.named_modules()
            if isinstance(module, partial)
            for name, _ in module.named_parameters()
        }
        self._in_flight: dict[str, Handle] = {}
        sums_context = groups.mesh.cp is not None and groups.data is None
        self._context = groups.mesh.cp if sums_context else None
        self._context_stream = None
        if sums_context and sharding.own_gradients[0].is_cuda:
            self._context_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._scattered: str | None = None
        """Bucket whose shards the replicas sum, and context-parallel ranks do not yet."""

    @property
    def in_flight(self) -> tuple[str, ...]:
        """Names of the buckets whose reduction was begun, in that order."""
        return tuple(self._in_flight)

    def ready(self, part: nn.Module) -> None:
        """Begin to reduce the gradients of the embedding, a block or the head, which are complete."""
        for name in self._names[part]:
            self._begin(name)

    def finish(self) -> None:
        """Begin what was not begun, and wait for all sums but that of tied embeddings."""
        for name in self._sharding.buckets:
            if name not in self._in_flight:
                self._begin(name)
        self._begin_over_context()
        for handle in self._in_flight.values():
            handle.wait()
        self._in_flight.clear()
        tp = self._groups.mesh.tp
        partial = [shard.gradient for shard in self._sharding.shards if shard.name in self._partial]
        if tp is not None and (filled := [gradient for gradient in partial if gradient.numel()]):
            tp.all_reduce(filled).wait()

    def exchange(self) -> None:
        """Sum the gradient of an embedding that the first and the last stage hold, so that both get the same bits.

        Both have the same shard of it, and a sum of two does not depend on their order.
        """
        tied = self._groups.tied_embeddings
        assert tied is not None
        (gradient,) = [shard.gradient for shard in self._sharding.shards if shard.name in TIED]
        if gradient.numel():
            tied.all_reduce([gradient]).wait()

    def _begin(self, name: str) -> None:
        """Begin to reduce one bucket, and go on with the one before."""
        assert name not in self._in_flight, f"the gradients of {name} are complete once in an iteration"
        self._begin_over_context()
        self._in_flight[name] = self._reduced(name)
        if self._context is not None and not is_expert_bucket(name):
            self._scattered = name

    def _begin_over_context(self) -> None:
        """Begin to sum the shards of a bucket over context-parallel ranks, once its replicas have summed them."""
        if self._context is None or self._scattered is None:
            return
        name, self._scattered = self._scattered, None
        with torch.cuda.stream(self._context_stream):  # nothing without one, as on CPUs
            self._in_flight[name].wait()
            self._in_flight[name] = self._context.all_reduce([self._sharding.buckets[name].own_gradients])

    def _reduced(self, name: str) -> Handle:
        bucket, groups = self._sharding.buckets[name], self._groups
        data, group = groups.data, groups.optimizer_shards
        if is_expert_bucket(name):
            data, group = groups.expert_data, groups.expert_shards
        if data is not None:
            return data.all_reduce([bucket.gradients])
        works: list[dist.Work] = []
        if group is not None:
            works.append(reduce_scatter_single(bucket.own_gradients, bucket.gradients, group=group, async_op=True))
        return Works(works, (bucket.own_gradients,), (bucket.gradients,))
