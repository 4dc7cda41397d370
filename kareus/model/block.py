"""One transformer block: the definition that is traced and that training runs.

Hidden states are [batch, tokens, hidden], with sequence parallelism of this GPU's tokens; a nanobatch is a slice of the
batch. A block is two layers, and a layer is a straight line of operators over named values: called, it runs them one
after the other; an engine may run each apart.

What passes from layer to layer is the residual stream and the update that has yet to be added to it: the addition is
one kernel with the norm that begins the next layer. Only after the last layer of a stage it is a kernel of its own.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kareus.model.communication import Mesh, exchanging, group_size
from kareus.model.config import ActivationKind, AttentionKernel, Model, PositionKind
from kareus.model.expert_layers import Choose, Fork, GroupedLinear, Join, Merge, Permute, Router, Sort, Unsort
from kareus.model.experts import Experts, LatentAttention, RouterScore
from kareus.model.features import Branches, NormPlacement, QkNormScope
from kareus.model.latent import CutValues, LatentLinear, LatentNorm, LatentRotary
from kareus.model.layers import (
    Activation,
    BesideNorm,
    BlockColumnLinear,
    CausalAttention,
    GeGlu,
    Linear,
    Norm,
    OperatorModule,
    QueryKeyNorm,
    Residual,
    ResidualNorm,
    Rotary,
    RotaryPart,
    RotaryTable,
    RowParallelLinear,
    SplitHeads,
    SwiGlu,
    own_slopes,
)
from kareus.model.shards import Shard
from kareus.model.unfused import Dropout, Mixing, ScaledMaskedSoftmax, Scores

STREAM, UPDATE, TABLE, BALANCE = "stream", "update", "table", "balance"
"""Values that every layer starts with: the residual stream, what is to be added to it (None in the first layer of a
stage), the angles of rotary position embeddings, and what counts the tokens of experts (None where nothing does)."""
SUM, OUTPUT = "sum", "output"
"""Values that every layer ends with: the next one's residual stream, and what is to be added to it."""
ROUTE = "route"
"""Where the tokens of a layer of experts go."""
WITHOUT_GRADIENT = frozenset({TABLE, BALANCE, ROUTE})


class Wire(NamedTuple):
    """One operator of a layer, and the values that it reads and writes."""

    name: str
    operator: OperatorModule
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    cuts: bool = False
    """Whether a segment ends before it in forward, and after it in backward, if no collective is there."""
    place: int | None = None
    """Its place among those before it in the order whose reverse backward runs in; None: the last."""


class Layer(nn.Module):
    """A straight line of operators; every value is written once."""

    wires: tuple[Wire, ...]

    def _entering(self, model: Model, hidden: int, dtype: torch.dtype) -> Wire:
        """Residual addition, and the norm before the layer if there is one."""
        if model.norm_placement is NormPlacement.AFTER:
            self.residual = Residual()
            return Wire("residual", self.residual, (STREAM, UPDATE), (SUM, "normed"))
        self.norm: OperatorModule = ResidualNorm(model, hidden, dtype)
        return Wire("norm", self.norm, (STREAM, UPDATE), (SUM, "normed"))

    def _leaving(self, last: Wire, model: Model, hidden: int, dtype: torch.dtype) -> tuple[Wire, ...]:
        """The last product, and the norm after the layer if there is one."""
        if model.norm_placement is NormPlacement.BEFORE:
            return (last,)
        self.post_norm = Norm(model, hidden, dtype)
        return last._replace(writes=("summed",)), Wire("post_norm", self.post_norm, ("summed",), (OUTPUT,))

    def forward(self, stream: Tensor, update: Tensor | None, table: RotaryTable) -> tuple[Tensor, Tensor]:
        """Residual stream and update, each [batch, tokens, hidden], to the same of the next layer."""
        values: dict[str, Any] = {STREAM: stream, UPDATE: update, TABLE: table, BALANCE: None}
        for wire in self.wires:
            written = wire.operator(*(values[name] for name in wire.reads))
            values.update(zip(wire.writes, written if isinstance(written, tuple) else (written,), strict=True))
        return values[SUM], values[OUTPUT]


class AttentionLayer(Layer):
    """Residual addition, norm and attention."""

    rope: OperatorModule

    def __init__(self, model: Model, shard: Shard, mesh: Mesh, dtype: torch.dtype, kernel: AttentionKernel) -> None:
        super().__init__()
        entering = self._entering(model, shard.hidden_size, dtype)
        first: BlockColumnLinear
        if model.latent_attention is not None:
            wires = self._from_latents(model, model.latent_attention, shard, mesh, dtype)
            first, width = self.latent, shard.query_heads * model.value_head_dim
        else:
            heads, width = (shard.query_heads, shard.key_value_heads), shard.query_heads * shard.head_dim
            first = self.qkv = BlockColumnLinear(
                shard.hidden_size, (heads[0] + 2 * heads[1]) * shard.head_dim, dtype, mesh, bias=model.has_qkv_bias
            )
            self.qk_norm = QueryKeyNorm(model, heads, shard.head_dim, dtype) if model.qk_norm else None
            wires = [Wire("qkv", self.qkv, ("normed",), ("qkv",)), self._split(model, shard, mesh)]
        self.projection = RowParallelLinear(
            width,
            shard.hidden_size,
            dtype,
            mesh,
            first,
            bias=model.has_projection_bias,
            scale=model.residual_scale,
        )
        attending = self._attending(model, shard, mesh, kernel)
        if model.value_head_dim < model.head_dim:
            self.values = CutValues(model.head_dim, model.value_head_dim)
            attending = (*attending, Wire("values", self.values, ("mixed",), ("cut",)))
        projection = Wire("projection", self.projection, attending[-1].writes, (OUTPUT,))
        self.wires = (entering, *wires, *attending, *self._leaving(projection, model, shard.hidden_size, dtype))

    def _from_latents(
        self, model: Model, latent: LatentAttention, shard: Shard, mesh: Mesh, dtype: torch.dtype
    ) -> list[Wire]:
        """Queries, keys and values of this GPU's heads out of latent vectors, which every GPU makes of all tokens."""
        hidden, rank = shard.hidden_size, latent.query_rank
        plain = model.head_dim - latent.rotary_dim
        made = (rank or model.query_width) + latent.key_value_rank + latent.rotary_dim
        self.latent, self.latent_norm = LatentLinear(hidden, made, dtype, mesh), LatentNorm(model, latent, dtype)
        self.key_value_up = Linear(latent.key_value_rank, shard.query_heads * (plain + latent.value_dim), dtype)
        self.rope = LatentRotary(model, latent)
        query, ups = ("queries" if rank is None else "query_latent"), list[Wire]()
        if rank is not None:
            self.query_up = Linear(rank, shard.query_heads * model.head_dim, dtype)
            ups = [Wire("query_up", self.query_up, (query,), ("queries",))]
        place = len(("norm", "latent", "latent_norm"))  # its gradient follows that of queries
        ups.append(Wire("key_value_up", self.key_value_up, ("key_value_latent",), ("keys_values",), place=place))
        return [
            Wire("latent", self.latent, ("normed",), ("latents",)),
            Wire("latent_norm", self.latent_norm, ("latents",), (query, "key_value_latent", "turning")),
            *ups,
            Wire("rope", self.rope, ("queries", "keys_values", "turning", TABLE), ("query", "key", "value")),
        ]

    def _split(self, model: Model, shard: Shard, mesh: Mesh) -> Wire:
        """Queries, keys and values out of the output of QKV."""
        heads, attending = (shard.query_heads, shard.key_value_heads), ("query", "key", "value")
        in_part = model.rotary_dim < model.head_dim or (model.qk_norm and model.qk_norm_scope is not QkNormScope.HEAD)
        if model.positions is PositionKind.ROPE and in_part:
            self.rope = RotaryPart(heads, shard.head_dim, self.qk_norm, apart=mesh.cp is not None)
            return Wire("rope", self.rope, ("qkv", TABLE), attending)
        if model.positions is PositionKind.ROPE:
            self.rope = Rotary(heads, self.qk_norm, apart=mesh.cp is not None)
            return Wire("rope", self.rope, ("qkv", TABLE), attending)
        self.heads = SplitHeads(heads, shard.head_dim, apart=mesh.cp is not None)
        return Wire("heads", self.heads, ("qkv",), attending)

    def _attending(self, model: Model, shard: Shard, mesh: Mesh, kernel: AttentionKernel) -> tuple[Wire, ...]:
        """Attention itself, as one operator or as several."""
        slopes, masks = own_slopes(model, shard, mesh) if model.positions is PositionKind.ALIBI else (None, None)
        if kernel is AttentionKernel.FUSED:
            self.attention = CausalAttention(mesh.cp, slopes, masks, model.score_scale)
            wire = Wire("attention", self.attention, ("query", "key", "value"), ("mixed",), mesh.sequence_parallel)
            return (wire,)
        self.scores = Scores()
        self.softmax = ScaledMaskedSoftmax(shard.head_dim, slopes)
        self.mixing = Mixing()
        wires = [
            Wire("scores", self.scores, ("query", "key"), ("scores",), mesh.sequence_parallel),
            Wire("softmax", self.softmax, ("scores",), ("probabilities",)),
        ]
        weights = "probabilities"
        if kernel is AttentionKernel.UNFUSED_DROPOUT:
            self.dropout = Dropout()
            wires.append(Wire("dropout", self.dropout, (weights,), ("dropped",)))
            weights = "dropped"
        return *wires, Wire("mixing", self.mixing, (weights, "value"), ("mixed",))


class Mlp(Layer):
    """Residual addition, norm and feed-forward, with a gate or without."""

    def __init__(
        self, model: Model, shard: Shard, mesh: Mesh, dtype: torch.dtype, attention_norm: Norm | None = None
    ) -> None:
        """Make the layer; `attention_norm` is that of attention, whose weights it shares."""
        super().__init__()
        hidden, inner, gated = shard.hidden_size, shard.intermediate_size, model.activation.gated
        name, width = ("gate_up", 2 * inner) if gated else ("up", inner)
        first = BlockColumnLinear(hidden, width, dtype, mesh, bias=model.has_mlp_bias, in_order=False)
        if model.branches.parallel:
            self.norm = BesideNorm(model, hidden, dtype, attention_norm)
            entering = Wire("norm", self.norm, (STREAM, UPDATE), (SUM, "normed"))
        else:
            entering = self._entering(model, hidden, dtype)
        self.add_module(name, first)
        self.activation = _activation(model.activation)
        self.down = RowParallelLinear(
            inner, hidden, dtype, mesh, first, bias=model.has_mlp_bias, scale=model.residual_scale
        )
        self.wires = (
            entering,
            Wire(name, first, ("normed",), (name,)),
            Wire("activation", self.activation, (name,), ("activated",), mesh.sequence_parallel),
            *self._leaving(Wire("down", self.down, ("activated",), (OUTPUT,)), model, hidden, dtype),
        )


class ExpertMlp(Layer):
    """Residual addition, norm, and experts to which a router sends each token; run by passes alone.

    Experts are whole on one GPU of an expert-parallel group, `experts_gate_up` has those of this one below each other.
    A shared expert, which all tokens pass, is an MLP beside them. It runs after them, and with sequence parallelism
    before, in forward as in backward.
    """

    def __init__(self, model: Model, experts: Experts, mesh: Mesh, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, exchanges = model.hidden_size, exchanging(mesh)
        groups = experts.count // group_size(mesh.ep)
        sorts = exchanges is not None and groups > 1
        entering = self._entering(model, hidden, dtype)
        beside = self._shared(model, experts, mesh, dtype) if experts.shared_width else []
        self.router = Router(hidden, experts.count, dtype, exact=experts.score is RouterScore.SIGMOID)
        self.choose = Choose(experts, mesh, dtype)
        self.permute = Permute(after=exchanges)
        self.experts_gate_up = GroupedLinear(groups, hidden, model.gated_width(experts.width), dtype)
        self.experts_activation = _activation(model.activation)
        self.experts_down = GroupedLinear(groups, experts.width, hidden, dtype, after=None if sorts else exchanges)
        self.merge = Merge(model.residual_scale)
        arriving, leaving = ("sorted", "results") if sorts else ("copies", "returned")
        wires = [
            Wire("router", self.router, ("routed" if beside else "normed",), ("logits", "tokens")),
            Wire("choose", self.choose, ("logits", BALANCE), ("shares", ROUTE)),
            Wire("permute", self.permute, ("tokens", ROUTE), ("copies",)),
            Wire("experts_gate_up", self.experts_gate_up, (arriving, ROUTE), ("gate_up",)),
            Wire("experts_activation", self.experts_activation, ("gate_up",), ("activated",), mesh.sequence_parallel),
            Wire("experts_down", self.experts_down, ("activated", ROUTE), (leaving,)),
        ]
        if sorts:
            self.sort, self.unsort = Sort(), Unsort(after=exchanges)
            wires.insert(3, Wire("sort", self.sort, ("copies", ROUTE), ("sorted",)))
            wires.append(Wire("unsort", self.unsort, ("results", ROUTE), ("returned",)))
        wires.append(Wire("merge", self.merge, ("returned", "shares", ROUTE), ("merged" if beside else OUTPUT,)))
        if beside:
            wires = self._woven(wires, beside, shared_first=mesh.sequence_parallel)
        self.wires = (entering, *wires[:-1], *self._leaving(wires[-1], model, hidden, dtype))

    def _shared(self, model: Model, experts: Experts, mesh: Mesh, dtype: torch.dtype) -> list[Wire]:
        """Return the wires of the shared expert."""
        hidden, width = model.hidden_size, experts.shared_width // group_size(mesh.tp)
        entering, wires = "beside", list[Wire]()
        if experts.shared_gate:
            self.shared_gate = Router(hidden, 1, dtype)
            wires.append(Wire("shared_gate", self.shared_gate, ("beside",), ("gate", "passed")))
            entering = "passed"
        name = "shared_gate_up" if model.activation.gated else "shared_up"
        first = BlockColumnLinear(hidden, model.gated_width(width), dtype, mesh, in_order=False)
        self.add_module(name, first)
        self.shared_activation = _activation(model.activation)
        self.shared_down = RowParallelLinear(width, hidden, dtype, mesh, first, scale=model.residual_scale)
        return [
            *wires,
            Wire(name, first, (entering,), (name,)),
            Wire("shared_activation", self.shared_activation, (name,), ("inner",), mesh.sequence_parallel),
            Wire("shared_down", self.shared_down, ("inner",), ("shared",)),
        ]

    def _woven(self, routed: list[Wire], beside: list[Wire], *, shared_first: bool) -> list[Wire]:
        """Return the wires of routed experts with those of a shared one, which runs first or last in both passes."""
        self.fork, self.join = Fork(), Join()
        fork = Wire("fork", self.fork, ("normed",), ("routed", "beside"))
        gate = ("gate",) if beside[0].writes[0] == "gate" else ()
        first, last = (beside, routed) if shared_first else (routed, beside)
        join = Wire("join", self.join, ("merged", "shared", *gate), (OUTPUT,))
        before = len(("norm", "fork"))
        return [fork, *first, *(wire._replace(place=before + n) for n, wire in enumerate(last)), join]


def _activation(kind: ActivationKind) -> OperatorModule:
    if kind is ActivationKind.SWIGLU:
        return SwiGlu()
    return GeGlu(kind) if kind.gated else Activation(kind)


class Block(nn.Module):
    """Attention, then MLP or experts.

    Weights are this GPU's shards: `qkv` holds rows of its queries, keys and values in this order, `gate_up` its
    gate rows before its up rows.
    """

    def __init__(
        self,
        model: Model,
        shard: Shard,
        mesh: Mesh,
        dtype: torch.dtype,
        attention_kernel: AttentionKernel = AttentionKernel.FUSED,
        experts: Experts | None = None,
        *,
        after_dense: bool = False,
    ) -> None:
        """Make a block with `experts`, or, where that is None, with an MLP; `after_dense` if it follows such a one.

        In a mixture of experts two nanobatches take turns after an MLP, which, whole on a GPU, no collective ends.
        """
        super().__init__()
        self.attention = AttentionLayer(model, shard, mesh, dtype, attention_kernel)
        if after_dense and mesh.tp is None and mesh.cp is None:
            first, *others = self.attention.wires
            self.attention.wires = (first._replace(cuts=True), *others)
        norm = self.attention.norm if model.branches is Branches.PARALLEL_ONE_NORM else None
        assert norm is None or isinstance(norm, Norm)
        self.mlp = Mlp(model, shard, mesh, dtype, norm) if experts is None else ExpertMlp(model, experts, mesh, dtype)

    def forward(self, hidden: Tensor, table: RotaryTable) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        return through((self,), hidden, table)


def through(blocks: Iterable[Block], hidden: Tensor, table: RotaryTable) -> Tensor:
    """Run blocks one after the other under autograd, [batch, tokens, hidden] to the same."""
    stream, update = hidden, None
    for block in blocks:
        for layer in (block.attention, block.mlp):
            stream, update = layer(stream, update, table)
    return stream if update is None else stream + update
