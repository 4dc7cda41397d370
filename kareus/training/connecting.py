"""Connecting a rank to the others before anything is timed, by the messages that an iteration has.

NCCL connects lazily and takes seconds: a communicator when it is first used, each of its algorithms, which the kind and
the size of a message decide, and each pair of stages when it first sends. So every communicator is given a message of
each kind and size that it will have, and every pair of neighbouring stages exchanges one in both directions. All ranks
go through groups and messages in one order, so that none waits for another in a circle.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from kareus.graph.number_formats import BF16_BYTES, FP32_BYTES
from kareus.graph.records import CollectiveKind, Scope
from kareus.model.communication import Communicator
from kareus.model.parameters import embedding_parameters, expert_parameters, reduced_parameters
from kareus.pipeline.transfers import gathered_parts
from kareus.runtime.boundary import Shapes
from kareus.runtime.chunk_stage import StagePlace
from kareus.runtime.messages import begin
from kareus.training.optimizer_sharding import shard_length
from kareus.workload.config import Workload


class Message(NamedTuple):
    """A collective of the blocks."""

    kind: CollectiveKind
    size_bytes: int
    """Bytes of the full buffer on one GPU, as of `kareus.graph.records.Collective`."""
    fused: int
    """Number of equal tensors that are sent in one launch."""


def block_messages(workload: Workload) -> dict[str, tuple[Message, ...]]:
    """Return the collectives of a block by axis, for a microbatch and, where it can be halved, for a nanobatch.

    Tensor parallelism all-reduces hidden states. With sequence parallelism it gathers them, in backward together with
    inputs of matrix products, and scatters them, each sequence by itself. Context parallelism gathers keys and values,
    fused, and scatters their gradients. Hidden states that stages send each other in parts are gathered, too. Experts
    get as many copies of tokens as the mean, and as many come back.
    """
    model, parallelism, batch = workload.model, workload.parallelism, workload.microbatch_size
    sequences = [batch] if batch % 2 else [batch, batch // 2]
    hidden = BF16_BYTES * workload.sequence_length // parallelism.cp * model.hidden_size
    heads = 2 * model.num_key_value_heads // parallelism.tp
    gathered = BF16_BYTES * workload.sequence_length * heads * model.head_dim
    kinds = gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    if parallelism.token_shards > 1:
        tensor = [Message(gather, each * n * hidden, each * n) for each in (1, 2) for n in sequences]
        tensor += [Message(scatter, n * hidden, n) for n in sequences]
    else:
        tensor = [Message(CollectiveKind.ALL_REDUCE, n * hidden, 1) for n in sequences]
        values = batch * hidden // BF16_BYTES
        if parallelism.pp > 1 and gathered_parts(values, parallelism) > 1:
            tensor.append(Message(gather, batch * hidden, 1))
    copies = 0 if model.experts is None else model.experts.per_token * hidden // parallelism.token_shards
    return {
        "tp": tuple(tensor),
        "cp": tuple(Message(kind, n * gathered, 2) for kind in kinds for n in sequences),
        "ep": tuple(Message(CollectiveKind.ALL_TO_ALL, n * copies, 1) for n in sequences),
    }


def weight_messages(workload: Workload, stage: int) -> dict[str, tuple[Message, ...]]:
    """Return the collectives of a stage's weights by group: gradients in fp32, of a block, the embedding and the head.

    Those of learned positions are apart.

    `data` sums them over replicas; `shards` scatters the sums and gathers the new weights, and `cp` sums the shards
    over context parallelism; `tp` sums those of norms that are partial on the GPUs of a tensor-parallel group; `ends`
    sums the gradient of a tied embedding over the first and the last stage. `expert-data` and `expert-shards` are
    `data` and `shards` of the experts of a block.
    """
    model, parallelism = workload.model, workload.parallelism
    sizes = reduced_parameters(model, parallelism)
    scopes = {
        Scope.BLOCK,
        *([Scope.EMBEDDING] if stage == 0 else []),
        *([Scope.HEAD] if stage == parallelism.head_stage else []),
    }
    parameters = sorted({size for scope in scopes for size in sizes[scope] if size})
    experts = [size] if (size := expert_parameters(model, parallelism)) else []
    table = Message(CollectiveKind.ALL_REDUCE, FP32_BYTES * embedding_parameters(model, parallelism), 1)
    shards = [shard_length(n, parallelism.dp) for n in parameters] if parallelism.shards_states else []
    return {
        "data": _reduced(parameters),
        "shards": _shared_out(parameters),
        "expert-data": _reduced(experts),
        "expert-shards": _shared_out(experts),
        "cp": tuple(Message(CollectiveKind.ALL_REDUCE, FP32_BYTES * n, 1) for n in shards),
        "tp": tuple(Message(CollectiveKind.ALL_REDUCE, FP32_BYTES * n, 1) for n in _partial_sizes(workload)),
        "ends": (table,),
    }


def _reduced(parameters: Iterable[int]) -> tuple[Message, ...]:
    """Sums of gradients of so many parameters each."""
    return tuple(Message(CollectiveKind.ALL_REDUCE, FP32_BYTES * n, 1) for n in parameters)


def _shared_out(parameters: Sequence[int]) -> tuple[Message, ...]:
    """Sums of gradients that are scattered, and new weights that are gathered."""
    scattered = tuple(Message(CollectiveKind.REDUCE_SCATTER, FP32_BYTES * n, 1) for n in parameters)
    return (*scattered, *(Message(CollectiveKind.ALL_GATHER, BF16_BYTES * n, 1) for n in parameters))


def _partial_sizes(workload: Workload) -> list[int]:
    """Sizes of the weights whose gradients are partial with tensor parallelism: the weights of norms."""
    model, parallelism = workload.model, workload.parallelism
    sizes = [
        *([model.hidden_size] if parallelism.token_shards > 1 else []),
        *([model.head_dim] if model.qk_norm else []),
    ]
    return sizes if parallelism.tp > 1 else []


def connect_group(
    communicator: Communicator, messages: Sequence[Message], sm_counts: Iterable[int | None], device: torch.device
) -> None:
    """Exchange every message of zeros on every number of SMs, in order; None leaves the number to the library."""
    for sm_count in sorted(set(sm_counts), key=lambda count: count or 0):
        for kind, size_bytes, fused in messages:
            shape = (communicator.size, size_bytes // BF16_BYTES // communicator.size // fused)
            whole = [torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(fused)]
            if kind is CollectiveKind.ALL_REDUCE:
                communicator.all_reduce(whole, sm_count).wait()
            elif kind is CollectiveKind.ALL_GATHER:
                communicator.all_gather([tensor[0] for tensor in whole], sm_count).wait()
            elif kind is CollectiveKind.ALL_TO_ALL:
                (rows,), alike = whole, [1] * communicator.size
                communicator.all_to_all(rows, alike, alike, sm_count).wait()
            else:
                communicator.reduce_scatter(whole, sm_count).wait()


def connect_stages(place: StagePlace, shapes: Shapes, chunks: int) -> None:
    """Exchange a boundary tensor in both directions with each neighbouring stage, as the pipeline does.

    Args:
        place: of this rank's stage.
        shapes: of what passes between stages.
        chunks: of a stage; with several, the last stage sends to the first one, too.
    """
    if place.stages == 1:
        return
    boundary = torch.zeros(shapes.message, dtype=shapes.dtype, device=place.device)
    pairs = [(stage, (stage + 1) % place.stages) for stage in range(place.stages if chunks > 1 else place.stages - 1)]
    for pair in pairs:
        for sender, receiver in (pair, pair[::-1]):
            if place.stage in (sender, receiver):
                sends = place.stage == sender
                peer = dist.get_global_rank(place.group, receiver if sends else sender)
                operation = dist.P2POp(dist.isend if sends else dist.irecv, boundary, peer, place.group)
                begin(operation, place.backward_group).wait()
