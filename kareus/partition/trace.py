"""Tracing the model without a device: every kernel and collective of forward and backward, and its operator.

The modules that training runs are executed on tensors without memory (shapes, no data) and a fake process group (no
other ranks), as on a CPU. What is recorded is dataflow: which bytes of which buffer each kernel reads and writes.
"""

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kareus.errors import KareusError
from kareus.graph.records import TENSOR_PARALLEL, Direction
from kareus.model.block import Block, through
from kareus.model.communication import SUM, Mesh, Tensors
from kareus.model.communicators.process_group import ProcessGroupCommunicator, Works
from kareus.model.config import ActivationKind, AttentionKernel, Model, NormKind, PositionKind
from kareus.model.ends import Embedding, Head
from kareus.model.fused.dispatch import without_memory_as
from kareus.model.layers import Norm, rotary_table
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.shards import Shard, shard_of
from kareus.partition.events import TRACED_BLOCKS, Region, Trace, TracedEvent
from kareus.partition.operators import with_masks_made
from kareus.partition.structure import HEAD_VALUES, Dimensions, Structure, dimensions_of, structure_of

DTYPE = torch.bfloat16
"""Of weights and activations."""

_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_FILLS = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}  # read only a shape
_SPARSE_READS = {"embedding", "gather", "index_select"}  # read as many elements of their first input as they return
_SPARSE_WRITES = {"index_add_", "scatter_add_"}  # touch as many elements as their last input has


def trace(
    model: Model,
    parallelism: Parallelism,
    batch: int,
    sequence_length: int,
    attention_kernel: AttentionKernel | None = None,
) -> Trace:
    """Record what rank 0 does for `batch` sequences; the attention kernel is as in `structure_of`.

    Raises:
        RefusedWorkloadError: the model does not divide over `parallelism`.
        KareusError: this process already runs distributed training.
    """
    dimensions = dimensions_of(model, parallelism, batch, sequence_length)
    structure = structure_of(model, parallelism, dimensions, attention_kernel)
    return _record(model, shard_of(model, parallelism, sequence_length), parallelism, batch, structure)


def trace_structure(structure: Structure, dimensions: Dimensions) -> Trace:
    """Record what rank 0 does in a model of this structure with these sizes.

    Raises:
        KareusError: this process already runs distributed training.
    """
    head_dim = dimensions.head_pairs * HEAD_VALUES
    shard = Shard(
        hidden_size=dimensions.hidden,
        head_dim=head_dim,
        query_heads=dimensions.query_heads,
        key_value_heads=dimensions.key_value_heads,
        intermediate_size=dimensions.intermediate,
        vocab_rows=dimensions.vocabulary,
        tokens=dimensions.tokens * structure.chunks * structure.token_shards,
    )
    sharded = structure.token_shards > 1
    parallelism = Parallelism(
        dp=1,
        pp=1,
        tp=structure.token_shards if sharded else 2 if structure.tensor_parallel else 1,
        cp=structure.cp,
        layers_per_stage=None,
        sharding=Sharding.NONE,
        sequence_parallel=sharded,
    )
    model = _stand_in(structure, shard, parallelism)
    return _record(model, shard, parallelism, dimensions.batch, structure)


def _stand_in(structure: Structure, shard: Shard, parallelism: Parallelism) -> Model:
    """A model whose shard is given: of its own sizes only those that positions depend on are read."""
    learned, sloped = (structure.positions is kind for kind in (PositionKind.LEARNED, PositionKind.ALIBI))
    return Model(
        name="traced",
        hidden_size=1,
        intermediate_size=1,
        num_layers=TRACED_BLOCKS,
        num_attention_heads=shard.query_heads * parallelism.tp if sloped else 1,
        num_key_value_heads=1,
        head_dim=shard.head_dim,
        vocab_size=1,
        tie_embeddings=False,
        qk_norm=structure.qk_norm,
        qkv_bias=structure.qkv_bias,
        norm_epsilon=1e-5,
        rotary_base=1e4,
        rotary_scaling=None,
        layers_per_stage={},
        norm=NormKind.LAYERNORM if structure.layer_norm else NormKind.RMSNORM,
        activation=ActivationKind.SWIGLU if structure.gated else ActivationKind.GELU,
        positions=structure.positions,
        biases=structure.biases,
        max_positions=shard.tokens * parallelism.cp if learned else None,
        projection_bias=structure.projection_bias,
        mlp_bias=structure.mlp_bias,
        norm_bias=structure.norm_bias,
        norm_weight=structure.norm_weight,
        head_bias=structure.head_bias,
        embedding_norm=structure.embedding_norm,
        norm_placement=structure.norm_placement,
        branches=structure.branches,
    )


def _record(model: Model, shard: Shard, parallelism: Parallelism, batch: int, structure: Structure) -> Trace:
    with _fake_mesh(parallelism) as mesh, _without_memory():
        embedding, head = Embedding(model, shard, mesh, DTYPE), Head(model, shard, mesh, DTYPE)
        blocks = [Block(model, shard, mesh, DTYPE, structure.attention_kernel) for _ in range(TRACED_BLOCKS)]
        table = rotary_table(model, shard.tokens, mesh.cp)
        ids = torch.empty(batch, shard.tokens, dtype=torch.long)
        tokens = shard.tokens // parallelism.token_shards
        hidden = torch.empty(batch, tokens, shard.hidden_size, dtype=DTYPE, requires_grad=True)
        first: nn.Module = embedding
        if model.embedding_norm:
            first = nn.Sequential(OrderedDict(embedding=embedding, norm=Norm(model, shard.hidden_size, DTYPE)))
        recorder = KernelRecorder({"embedding": first, "blocks": nn.ModuleList(blocks), "head": head})
        recorder.run(lambda _: first(ids), None)
        recorder.run(lambda x: through(blocks, x, table), hidden)
        recorder.run(lambda x: head(x, ids), hidden)
    events = with_masks_made(recorder.events) if structure.reads_mask else tuple(recorder.events)
    return Trace(events, frozenset(recorder.lasting))


@contextmanager
def _without_memory() -> Iterator[None]:
    """Make tensors that have a shape and no data; PyTorch's fake tensors are slower, since Python works them out."""
    with without_memory_as("cpu"), torch.device("meta"):
        yield


@contextmanager
def _fake_mesh(parallelism: Parallelism) -> Iterator[Mesh]:
    """Process groups of rank 0 whose collectives do nothing; torch knows only one set of groups at a time."""
    tp, cp = parallelism.tp, parallelism.cp
    if dist.is_initialized():
        raise KareusError("tracing: this process already runs distributed training; extract partitions in another.")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=tp * cp)
    try:
        yield Mesh(
            tp=_fake_communicator("tp", range(tp)) if tp > 1 else None,
            cp=_fake_communicator("cp", range(0, tp * cp, tp)) if cp > 1 else None,
            sequence_parallel=parallelism.token_shards > 1,
        )
    finally:
        dist.destroy_process_group()


def _fake_communicator(axis: str, ranks: Iterable[int]) -> ProcessGroupCommunicator:
    return _TracedCommunicator(axis, dist.new_group(list(ranks), group_desc=axis))


class _TracedCommunicator(ProcessGroupCommunicator):
    """Gathers and scatters each tensor by itself, and the tokens of all sequences at once, as the launch that they are.

    Tensor-parallel GPUs gather nothing but tokens. A collective of each sequence by itself has a GPU's tokens as
    [batch, tokens, hidden]; where the engine leaves their order open (`Boundary.in_order`), as [batch tokens, hidden].
    Results are in order there, too, since the operators between are the same.
    """

    __slots__ = ()

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = SUM) -> Works:
        """As `Communicator.all_reduce`."""
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        return Works([self.group.allreduce([t], options) for t in tensors], tuple(tensors))

    def all_gather(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Works:
        """As `Communicator.all_gather`."""
        if self.axis != TENSOR_PARALLEL:
            return self._gather(tensors, tuple([t.new_empty(self.size, *t.shape) for t in tensors]))
        return self._gather([s.flatten(0, 1) for s in tensors], self._wholes(tensors))

    def reduce_scatter(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Works:
        """As `Communicator.reduce_scatter`."""
        if self.axis != TENSOR_PARALLEL:
            parts = tuple([t.new_empty(t.shape[1:]) for t in tensors])
            return self._scatter(tensors, parts, parts)
        shards = self._shards(tensors)
        return self._scatter(tensors, shards, [s.flatten(0, 1) for s in shards])

    def gather_tokens(self, shards: Sequence[Tensor], sm_count: int | None = None) -> Works:
        """As `Communicator.gather_tokens`."""
        return self._gather(shards, self._wholes(shards))

    def scatter_tokens(self, wholes: Sequence[Tensor], sm_count: int | None = None) -> Works:
        """As `Communicator.scatter_tokens`."""
        shards = self._shards(wholes)
        return self._scatter(wholes, shards, shards)

    def _gather(self, sent: Sequence[Tensor], wholes: Tensors) -> Works:
        """Gather into `wholes`, recorded in the shapes of `sent`."""
        works = [
            self.group._allgather_base(whole.view(-1, *part.shape[1:]), part)
            for whole, part in zip(wholes, sent, strict=True)
        ]
        return Works(works, wholes)

    def _scatter(self, wholes: Sequence[Tensor], shards: Tensors, received: Sequence[Tensor]) -> Works:
        """Scatter `wholes` into `shards`, recorded in the shapes of `received`."""
        works = [
            self.group._reduce_scatter_base(part, whole.view(-1, *part.shape[1:]), dist.ReduceScatterOptions())
            for part, whole in zip(received, wholes, strict=True)
        ]
        return Works(works, shards)

    def _wholes(self, shards: Sequence[Tensor]) -> Tensors:
        """Memory for the tokens of all GPUs, [batch, tokens, hidden]."""
        return tuple([s.new_empty(s.shape[0], self.size * s.shape[1], *s.shape[2:]) for s in shards])

    def _shards(self, wholes: Sequence[Tensor]) -> Tensors:
        """Memory for the tokens of this GPU, [batch, tokens, hidden]."""
        return tuple([w.new_empty(w.shape[0], w.shape[1] // self.size, *w.shape[2:]) for w in wholes])


class KernelRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records kernels while modules run, and the leaf module that each belongs to.

    A kernel of backward belongs to the module during whose forward its autograd node was made. The sum of two
    gradients, which no node makes, belongs to the node that ran last, as its epilogue.
    """

    def __init__(self, roots: dict[str, nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[TracedEvent] = []
        self.lasting: set[int] = set()
        self._alive: list[Tensor] = []  # so that no two buffers share an identity
        self._current = ("", Direction.FORWARD)
        self._assigned: set[Any] = set()
        for root, module in roots.items():
            self._keep(itertools.chain(module.parameters(), module.buffers()))
            for path, leaf in module.named_modules(prefix=root):
                if not list(leaf.children()):
                    self._follow(path, leaf)

    def run(self, forward: Callable[[Any], Tensor], hidden: Tensor | None) -> None:
        """Record `forward` of `hidden` and its backward."""
        with self:
            output = forward(hidden)
            upstream = torch.empty_like(output)
            if hidden is None:
                torch.autograd.backward(output, upstream)
                gradients: tuple[Tensor, ...] = ()
            else:
                gradients = torch.autograd.grad(output, hidden, upstream)
        self._keep((output, *gradients))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and record it if it is a kernel."""
        output = func(*args, **(kwargs or {}))
        event = self._event(func, args, kwargs or {}, output)
        if event is not None:
            self.events.append(event)
        return output

    def _event(self, func: Any, args: Any, kwargs: Any, output: Any) -> TracedEvent | None:
        space, _, kernel = func.name().split(".")[0].partition("::")
        inputs, outputs = _tensors((args, kwargs)), _tensors(output)
        self._alive += inputs + outputs
        if space == "c10d":
            group = next(g for g in map(_process_group, args) if g is not None)
            target, source = _region(inputs[0]), _region(inputs[-1])  # one tensor where it works in place
            return TracedEvent(*self._current, kernel, (source,), (target,), group.group_desc, group.size())
        arguments = zip(args, func._schema.arguments, strict=False)
        changed = _tensors([value for value, declared in arguments if declared.is_write])
        read = {_buffer(t) for t in inputs}
        reads = [_region(t) for t in inputs]
        writes = [_region(t) for t in changed or outputs if changed or _buffer(t) not in read]
        if not writes or kernel in _ALLOCATIONS:
            return None  # a view, or memory without content
        return TracedEvent(*self._current, kernel, *_exact(kernel, reads, writes))

    def _keep(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        self._alive += tensors
        self.lasting.update(_buffer(t) for t in tensors)

    def _follow(self, path: str, leaf: nn.Module) -> None:
        def enter(_module: nn.Module, _inputs: Any) -> None:
            self._current = (path, Direction.FORWARD)

        def leave(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self._assign([t.grad_fn for t in _tensors(output)], path)

        leaf.register_forward_pre_hook(enter)
        leaf.register_forward_hook(leave)

    def _assign(self, nodes: list[Any], path: str) -> None:
        """Assign to `path` the autograd nodes behind `nodes` that belong to no module yet."""

        def enter(_gradients: Any) -> None:
            self._current = (path, Direction.BACKWARD)

        while nodes:
            node = nodes.pop()
            if node is not None and node not in self._assigned:
                self._assigned.add(node)
                node.register_prehook(enter)
                nodes += [following for following, _ in node.next_functions]


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _process_group(argument: Any) -> dist.ProcessGroup | None:
    if not isinstance(argument, torch.ScriptObject) or "ProcessGroup" not in str(argument._type()):
        return None
    return dist.ProcessGroup.unbox(argument)


def _buffer(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _region(tensor: Tensor) -> Region:
    """What `tensor` shows of its buffer; a dimension that is expanded is there once."""
    elements = math.prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    item = tensor.element_size()
    # A test traces with symbolic sizes, of which `int` would make numbers.
    return Region(
        _buffer(tensor), cast(int, tensor.storage_offset()) * item, elements * item, tuple(tensor.shape), item
    )


def _exact(kernel: str, reads: list[Region], writes: list[Region]) -> tuple[tuple[Region, ...], tuple[Region, ...]]:
    """Leave out what `kernel` is given and does not touch."""
    if kernel in _FILLS:
        reads = []
    elif kernel == "copy_":
        reads = reads[1:]
    elif kernel in _SPARSE_READS:
        reads[0] = _touched(reads[0], writes[0])
    elif kernel in _SPARSE_WRITES:
        reads[0] = writes[0] = _touched(reads[0], reads[-1])
    return tuple(reads), tuple(writes)


def _touched(region: Region, like: Region) -> Region:
    """The first elements of `region`, as many as `like` has."""
    return region._replace(size_bytes=math.prod(like.shape) * region.itemsize)
