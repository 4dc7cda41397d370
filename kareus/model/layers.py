"""The operators of a block as modules: each leaf module is one operator, named by the attribute that holds it.

An operator is a computation on one GPU between the boundaries where its tensors pass to the others. Called, it does
all three in order; an engine that overlaps communication with computation runs them apart.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import Function

from kareus.graph.records import CollectiveKind
from kareus.model import attention, functions, fused
from kareus.model.communication import Boundary, Communicator, Kept, Mesh, entering, group_rank, leaving
from kareus.model.config import ActivationKind, Model, NormKind, RotaryScaling
from kareus.model.features import AngleScaling, AngleStretch, QkNormScope
from kareus.model.shards import Shard

INITIAL_STD = 0.02
"""Standard deviation of every weight matrix, as in GPT-2 and Megatron-LM's default."""
WEIGHT_GRADIENT_SUFFIX = "_gradient"
"""Ends the name of the buffer of a weight's gradient."""

LEAST_BLEND = 1e-9
"""Turns over which frequencies are blended at least."""

RotaryTable = tuple[Tensor, Tensor]
"""Cosines and sines of a rank's tokens, each [tokens, 1, head_dim / 2], fp32."""


class OperatorModule(nn.Module):
    """Base of all operators."""

    memory_bound: ClassVar[bool] = True
    """Whether it computes no matrix product."""
    function: type[Function]
    """The computation with its backward, of the operator's inputs, those that have a gradient first, and `settings`."""

    def __init__(self, before: Boundary | None = None, after: Boundary | None = None) -> None:
        super().__init__()
        self.before = before
        self.after = after

    def settings(self) -> tuple[Any, ...]:
        """Return the arguments of `function` that follow the inputs: weights, buffers of gradients, constants."""
        return ()

    def compute(self, *inputs: Any) -> Any:
        """Compute under autograd, between the boundaries: tensors to a tensor, or to a tuple of them."""
        return functions.apply(self.function, *inputs, *self.settings())

    def forward(self, *inputs: Any) -> Any:
        """Cross the boundary before, compute, cross the one after."""
        if self.before is not None:
            inputs = self.before.cross(inputs)
        output = self.compute(*inputs)
        return output if self.after is None else self.after.cross((output,))[0]


def add_weight(module: nn.Module, name: str, value: Tensor) -> None:
    """Give `module` the parameter `name` and the fp32 buffer `<name>_gradient` that backward adds to."""
    module.register_parameter(name, nn.Parameter(value))
    module.register_buffer(
        f"{name}{WEIGHT_GRADIENT_SUFFIX}", torch.zeros_like(value, dtype=torch.float32), persistent=False
    )


def weight_of(module: nn.Module, name: str = "weight", gradient_name: str = "weight_gradient") -> tuple[Tensor, Tensor]:
    """Return a weight that `add_weight` gave `module`, and its gradient."""
    return getattr(module, name), getattr(module, gradient_name)


class Linear(OperatorModule):
    """A matrix product with the weight [outputs, inputs] that this GPU holds."""

    memory_bound = False
    function: type[Function] = functions.LinearFunction
    weight: Tensor
    weight_gradient: Tensor
    bias: Tensor
    bias_gradient: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        dtype: torch.dtype,
        *,
        bias: bool = False,
        scale: float = 1.0,
        before: Boundary | None = None,
        after: Boundary | None = None,
    ) -> None:
        super().__init__(before, after)
        self.has_bias = bias
        self.scale = scale
        """What the result is multiplied by."""
        if scale != 1:
            self.function = functions.ScaledLinearFunction
        add_weight(self, "weight", torch.empty(outputs, inputs, dtype=dtype).normal_(std=INITIAL_STD))
        if bias:
            add_weight(self, "bias", torch.zeros(outputs, dtype=dtype))

    def settings(self) -> tuple[Any, ...]:
        """Of x weight^T + bias, [..., inputs] to [..., outputs], of this GPU's weight alone."""
        bias = weight_of(self, "bias", "bias_gradient") if self.has_bias else ()
        return *weight_of(self), *self._scales(), *bias

    def _scales(self) -> tuple[float, ...]:
        """Return the scale, where there is one."""
        return () if self.scale == 1 else (self.scale,)


class ColumnParallelLinear(Linear):
    """Outputs are divided over the group, inputs are whole on every GPU; backward all-reduces their gradient.

    With sequence parallelism inputs are gathered, and their gradient is reduce-scattered.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        dtype: torch.dtype,
        mesh: Mesh,
        *,
        bias: bool = False,
        scale: float = 1.0,
        in_order: bool = True,
    ) -> None:
        """Make the product; `in_order` if what reads its outputs tells tokens apart."""
        super().__init__(inputs, outputs, dtype, bias=bias, scale=scale, before=entering(mesh, in_order=in_order))


class BlockColumnLinear(ColumnParallelLinear):
    """The one of a sublayer, which keeps of a gathered input this GPU's tokens only.

    They are gathered once more when the sublayer's backward starts, by the `RowParallelLinear` that ends it.
    """

    def __init__(
        self, inputs: int, outputs: int, dtype: torch.dtype, mesh: Mesh, *, bias: bool = False, in_order: bool = True
    ) -> None:
        """As `ColumnParallelLinear`."""
        super().__init__(inputs, outputs, dtype, mesh, bias=bias, in_order=in_order)
        self.kept: Kept | None = None
        """Of the last forward under autograd."""
        if mesh.sequence_parallel:
            self.function = functions.GatheredLinearFunction

    def forward(self, x: Tensor) -> Tensor:
        """As `compute`, of this rank's tokens."""
        if self.before is None or not self.before.by_token:
            product: Tensor = super().forward(x)
            return product
        kept = self.kept = Kept(x.detach())
        product = self.compute(*self.before.cross((x,)), kept.take)
        return product


class RowParallelLinear(Linear):
    """Inputs are divided over the group, outputs are summed over it; with sequence parallelism, reduce-scattered."""

    added: Tensor
    """Zeros, which all GPUs but the first add instead of the bias, so that the sum over the group has it once."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        dtype: torch.dtype,
        mesh: Mesh,
        first: BlockColumnLinear | None = None,
        *,
        bias: bool = False,
        scale: float = 1.0,
    ) -> None:
        """Make the last product of a sublayer, of which `first` is the first.

        A bias is whole on every GPU, and so is the output gradient, so that its gradient is the same on all.
        """
        in_order = first is None or first.before is None or first.before.in_order
        super().__init__(inputs, outputs, dtype, bias=bias, scale=scale, after=leaving(mesh, in_order=in_order))
        self._first = (first,)  # a tuple, so that its weights have one name
        self._adds = group_rank(mesh.tp) == 0
        if bias and not self._adds:
            self.register_buffer("added", torch.zeros(outputs, dtype=dtype), persistent=False)

    def settings(self) -> tuple[Any, ...]:
        """As `Linear.settings`; the bias is `added` on all GPUs of the group but the first."""
        if not self.has_bias or self._adds:
            return super().settings()
        _, bias_gradient = weight_of(self, "bias", "bias_gradient")
        return *weight_of(self), *self._scales(), self.added, bias_gradient

    def forward(self, x: Tensor) -> Tensor:
        """As `compute`, summed over the group."""
        product: Tensor = self.compute(x)
        (first,) = self._first
        return product if self.after is None else self.after.cross((product,), first.kept if first else None)[0]


class Norm(OperatorModule):
    """RMSNorm or LayerNorm over the last dimension."""

    rms_function: type[Function] = functions.RmsNormFunction
    layer_function: type[Function] = functions.LayerNormFunction
    weight: Tensor
    weight_gradient: Tensor
    bias: Tensor
    bias_gradient: Tensor

    def __init__(self, model: Model, size: int, dtype: torch.dtype) -> None:
        """Normalise rows of `size` values as `model` does."""
        super().__init__()
        self.epsilon = model.norm_epsilon
        self.has_bias = model.has_norm_bias
        self._centres = model.norm is NormKind.LAYERNORM
        self.function = self.layer_function if self._centres else self.rms_function
        if model.norm_weight:
            add_weight(self, "weight", torch.ones(size, dtype=dtype))
        else:  # as if it had one that is not trained
            self.register_buffer("weight", torch.ones(size, dtype=dtype), persistent=False)
            self.register_buffer("weight_gradient", torch.zeros(size, dtype=torch.float32), persistent=False)
        if self.has_bias:
            add_weight(self, "bias", torch.zeros(size, dtype=dtype))

    def settings(self) -> tuple[Any, ...]:
        """Of the norm of x, [..., size]."""
        weight, weight_gradient = weight_of(self)
        if not self._centres:
            return weight, weight_gradient, self.epsilon
        bias, bias_gradient = weight_of(self, "bias", "bias_gradient") if self.has_bias else (None, None)
        return fused.Affine(weight, bias), fused.Affine(weight_gradient, bias_gradient), self.epsilon


class ResidualNorm(Norm):
    """Addition of an update to the residual stream, and norm of the sum: one kernel.

    Of stream and update, [batch, tokens, hidden], to their sum and what is normalised. Where nothing is added, as in
    the first layer of a stage, the update is None, and the sum the stream itself.
    """

    rms_function: type[Function] = functions.ResidualNormFunction
    layer_function: type[Function] = functions.ResidualLayerNormFunction


class BesideNorm(Norm):
    """Norm of the residual stream, and addition of an update, which the norm does not see (attention beside the MLP).

    Of stream and update, [batch, tokens, hidden], to their sum and what is normalised. It may have the weights of
    another norm.
    """

    rms_function: type[Function] = functions.BesideNormFunction
    layer_function: type[Function] = functions.BesideLayerNormFunction

    def __init__(self, model: Model, size: int, dtype: torch.dtype, shared: Norm | None) -> None:
        """Normalise rows of `size` values, with the weights of `shared` where there is one."""
        super().__init__(model, size, dtype)
        self._shared = (shared,)  # a tuple, so that its weights have one name
        if shared is not None:
            for name in [*dict(self.named_parameters()), *dict(self.named_buffers())]:
                delattr(self, name)

    def settings(self) -> tuple[Any, ...]:
        """As `Norm.settings`."""
        (shared,) = self._shared
        return super().settings() if shared is None else shared.settings()


class Residual(OperatorModule):
    """Addition of an update to the residual stream, which a layer reads as it is (norms after attention and MLP).

    Of stream and update, [batch, tokens, hidden], to their sum, twice. The update may be None, as in `ResidualNorm`.
    """

    function: type[Function] = functions.ResidualFunction


class QueryKeyNorm(nn.Module):
    """Weights of the RMSNorm of every query and key head (Qwen 3), or of all of a token, which `Rotary` applies.

    A GPU sees its own heads only: the gradients of both weights have to be summed over the tensor-parallel group
    before the optimizer steps.
    """

    query_weight: Tensor
    query_weight_gradient: Tensor
    key_weight: Tensor
    key_weight_gradient: Tensor

    def __init__(self, model: Model, heads: tuple[int, int], head_dim: int, dtype: torch.dtype) -> None:
        """Make weights for `heads` (queries, keys) of this GPU."""
        super().__init__()
        self.epsilon = model.norm_epsilon
        shared = model.qk_norm_scope is QkNormScope.HEAD
        for name, count in zip(("query_weight", "key_weight"), heads, strict=True):
            add_weight(self, name, torch.ones(head_dim if shared else count * head_dim, dtype=dtype))


class Rotary(OperatorModule):
    """Queries, keys and values out of what QKV makes: norm of queries and keys, if the model has one, and RoPE."""

    def __init__(self, heads: tuple[int, int], norm: QueryKeyNorm | None, *, apart: bool) -> None:
        """Rotate `heads` (queries, keys); `apart` if keys and values are sent to other GPUs."""
        super().__init__()
        self.heads = heads
        self.apart = apart
        self._norm = (norm,)  # a tuple, so that its weights have one name
        self.function = functions.RotateFunction if norm is None else functions.NormRotateFunction

    def settings(self) -> tuple[Any, ...]:
        """Of [batch, tokens, heads * head_dim] and a `RotaryTable` to three of [batch, tokens, heads, head_dim]."""
        plain = (self.heads, self.apart)
        (norm,) = self._norm
        if norm is None:
            return plain
        query, query_gradient = weight_of(norm, "query_weight", "query_weight_gradient")
        key, key_gradient = weight_of(norm, "key_weight", "key_weight_gradient")
        return *plain, fused.HeadNorm(query, key, norm.epsilon), (query_gradient, key_gradient)


class RotaryPart(OperatorModule):
    """As `Rotary`, of a part of each head, or with a norm of all heads of a token."""

    function: type[Function] = functions.RotatePartFunction

    def __init__(self, heads: tuple[int, int], head_dim: int, norm: QueryKeyNorm | None, *, apart: bool) -> None:
        """Rotate `heads` (queries, keys) of `head_dim` values; `apart` if keys and values are sent to other GPUs."""
        super().__init__()
        self.heads, self.head_dim, self.apart = heads, head_dim, apart
        self._norm = (norm,)  # a tuple, so that its weights have one name

    def settings(self) -> tuple[Any, ...]:
        """Of [batch, tokens, heads * head_dim] and a `RotaryTable` to three of [batch, tokens, heads, head_dim]."""
        (norm,) = self._norm
        if norm is None:
            return self.heads, self.head_dim, self.apart, None, None
        query, query_gradient = weight_of(norm, "query_weight", "query_weight_gradient")
        key, key_gradient = weight_of(norm, "key_weight", "key_weight_gradient")
        totals = (query_gradient, key_gradient)
        return self.heads, self.head_dim, self.apart, fused.HeadNorm(query, key, norm.epsilon), totals


class SplitHeads(OperatorModule):
    """Queries, keys and values out of what QKV makes, where nothing rotates them; no kernel, unless `apart`."""

    function: type[Function] = functions.SplitHeadsFunction

    def __init__(self, heads: tuple[int, int], head_dim: int, *, apart: bool) -> None:
        """Split into `heads` (queries, keys); copy each if `apart`, where keys and values are sent to other GPUs."""
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim
        self.apart = apart

    def settings(self) -> tuple[Any, ...]:
        """Of [batch, tokens, heads * head_dim] to three of [batch, tokens, heads, head_dim]."""
        return self.heads, self.head_dim, self.apart


class CausalAttention(OperatorModule):
    """Grouped-query attention; gathers keys and values over the ranks that share a sequence, and again in backward."""

    memory_bound = False
    function: type[Function] = attention.Attention

    def __init__(
        self,
        group: Communicator | None,
        slopes: Tensor | None = None,
        masks: attention.Masks | None = None,
        scale: float | None = None,
    ) -> None:
        """Attend over `group`; `slopes` say how fast scores of this GPU's heads fall with the distance (ALiBi).

        `masks` has what was made of them, for all blocks; `scale` multiplies scores, None as usual.
        """
        gathers = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
        super().__init__(before=Boundary(group, *gathers, first=1) if group else None)
        self.group = group
        self._slopes = slopes
        self._masks = masks
        self._scale = scale

    def settings(self) -> tuple[Any, ...]:
        """Of three of [batch, tokens, heads, head_dim] to [batch, tokens, query heads * head_dim]; see `Attention`."""
        shared = (self.group, self._slopes, self._masks, self._scale)
        return (None, *shared) if self.group is None else shared  # where a group is, what gathers is an input

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """As `compute`, of this rank's keys and values."""
        boundary = self.before
        if boundary is None:
            attended: Tensor = self.compute(query, key, value)
            return attended
        kept = (key.detach(), value.detach())
        keys, values = boundary.cross((key, value))
        attended = self.compute(query, keys, values, lambda: boundary.collect(kept))
        return attended


class SwiGlu(OperatorModule):
    """The gated activation of [..., 2 n], gate first, to [..., n]."""

    function: type[Function] = functions.SwiGluFunction


class Activation(OperatorModule):
    """An activation without a gate, of [..., n] to the same."""

    function: type[Function] = functions.ActivationFunction

    def __init__(self, kind: ActivationKind) -> None:
        super().__init__()
        self.kind = kind

    def settings(self) -> tuple[Any, ...]:
        """Which activation it is."""
        return (self.kind,)


class GeGlu(Activation):
    """As `SwiGlu`, with a GELU for the gate."""

    function: type[Function] = functions.GeGluFunction


def rotary_table(model: Model, tokens: int, group: Communicator | None) -> RotaryTable:
    """Angles of the tokens that this rank holds of each sequence."""
    turning = model.rotary_dim if model.latent_attention is None else model.latent_attention.rotary_dim
    frequencies = model.rotary_base ** -(torch.arange(0, turning, 2) / turning)
    if isinstance(model.rotary_scaling, RotaryScaling):
        frequencies = _stretched(frequencies, model.rotary_scaling)
    elif model.rotary_scaling is not None:
        frequencies = frequencies * _shrunk(turning, model.rotary_base, model.rotary_scaling)
    angles = (attention.positions(tokens, group)[:, None] * frequencies)[:, None, :]
    scale = model.rotary_scaling.turned_scale if isinstance(model.rotary_scaling, AngleScaling) else 1.0
    return scale * angles.cos(), scale * angles.sin()


def _shrunk(turning: int, base: float, scaling: AngleScaling) -> Tensor:
    """Return what frequencies of `turning` values are multiplied by, [turning / 2].

    With YaRN (Peng et al., ICLR 2024, section 3.2) it is 1 up to the frequency that turns `fast_turns` times within the
    original sequences, 1 / `stretch_factor` from the one that turns `slow_turns` times, and falls evenly between.
    """
    if scaling.stretch is not AngleStretch.YARN:
        return torch.full((turning // 2,), 1 / scaling.stretch_factor)
    assert scaling.original_sequence_length is not None, "the engine refuses others"
    longest = scaling.original_sequence_length / (2 * math.pi)
    ends = (scaling.fast_turns, scaling.slow_turns)
    fast, slow = (turning * math.log(longest / turns) / (2 * math.log(base)) for turns in ends)
    if scaling.whole_bounds:
        fast, slow = math.floor(fast), math.ceil(slow)
    first, last = max(fast, 0), min(slow, turning - 1)
    stretched = ((torch.arange(turning // 2) - first) / max(last - first, LEAST_BLEND)).clamp(0, 1)
    return 1 - stretched + stretched / scaling.stretch_factor


def _stretched(frequencies: Tensor, scaling: RotaryScaling) -> Tensor:
    """Slow down what turns seldom within the original context, as Llama 3.1 does to attend further (its model card).

    A frequency that turns `high_frequency_factor` times or more within `original_sequence_length` stays, one that
    turns `low_frequency_factor` times or less is divided by `factor`, and those between are blended. Where both are the
    same (Llama 4) there are none between.
    """
    turns = scaling.original_sequence_length * frequencies / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / max(high - low, LEAST_BLEND)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def own_slopes(model: Model, shard: Shard, mesh: Mesh) -> tuple[Tensor, attention.Masks]:
    """Slopes of ALiBi of the query heads that this GPU has, fp32, and their masks."""
    heads, count = model.num_attention_heads, shard.query_heads
    first = count * group_rank(mesh.tp)
    return attention.alibi_slopes(heads)[first : first + count], attention.shared_masks(heads, first, count)
