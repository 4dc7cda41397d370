"""Experts in the place of the MLP, in the operator graph of a block.

The graph of a block is traced with an MLP that all tokens pass: of the width of the shared expert, where there is one,
else one that is cut out. Around it go what Megatron Core runs for routed experts: the router and its choice (with the
auxiliary loss), copies of each token in the order of its experts (`permute`), their exchange with the GPUs that hold
these experts (`ep`), a second order by expert (`sort`), two grouped products with the activation between them, and
all of it back: `unsort`, the exchange, and the weighted sum of a token's copies (`merge`). With `etp` the copies are
gathered before the experts, and their results summed after them. Tokens are those of one GPU: with sequence
parallelism a part of the sequence, for which nothing has to be gathered.

A GPU has the copies of the fullest one, `expert_imbalance` of the software times the mean: all others wait for it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kareus.graph.number_formats import BF16_BYTES, FP32_BYTES
from kareus.graph.records import (
    BIAS_GRADIENT_SUFFIX,
    EXPERT_PARALLEL,
    EXPERT_TENSOR_PARALLEL,
    INPUT_GRADIENT_SUFFIX,
    TENSOR_PARALLEL,
    AnyCollective,
    BlockGraph,
    Collective,
    CollectiveKind,
    Direction,
    Operator,
    Scope,
    Segment,
)
from kareus.model.config import Model
from kareus.model.experts import Experts
from kareus.model.parallelism import Parallelism
from kareus.partition.made import grouped_product, grouped_weight_gradient, moved, product, weight_gradient
from kareus.software.record import Software

MLP = ("gate_up", "activation", "down")
"""Operators of an MLP, forward; in a backward with the suffixes of gradients."""
SHARED = "shared_"
"""Begins the names of operators of a shared expert."""
CHOOSING_KERNELS = 6
"""Kernels of scores, of the choice of the best, of their shares, of counts and of the auxiliary loss."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Sizes of a block's experts on one GPU, and what a software launches for them."""

    tokens: int
    """Tokens of the GPU, before copies are made."""
    copies: int
    """Copies of tokens that it sends, and, were all GPUs alike, gets."""
    rows: int
    """Copies that the experts of the fullest GPU compute."""
    groups: int
    """Experts of the GPU."""
    hidden: int
    inner: int
    """Values of an expert's first product on the GPU."""
    width: int
    """Values of an expert's second factor on the GPU."""
    kernels: int
    """Kernels of a pass beyond those of its operators."""
    adds_biases: bool
    """Whether biases and the clamp before the activation are operators of their own."""
    experts: Experts
    ep: int
    etp: int


def routed_sizes(model: Model, parallelism: Parallelism, tokens: int, software: Software) -> Routed:
    """Return the sizes of a block's experts.

    Args:
        model: with experts.
        parallelism: its layout.
        tokens: of the GPU; with sequence parallelism its own.
        software: that runs them; where one GPU has all experts, its imbalance means nothing.
    """
    experts = model.experts
    assert experts is not None
    copies = tokens * experts.per_token
    fullest = round(copies * software.expert_imbalance) if parallelism.ep > 1 else copies
    return Routed(
        tokens=tokens,
        copies=copies,
        rows=fullest * parallelism.etp,
        groups=experts.count // parallelism.ep,
        hidden=model.hidden_size,
        inner=model.gated_width(experts.width) // parallelism.etp,
        width=experts.width // parallelism.etp,
        kernels=software.expert_kernels,
        adds_biases=experts.biases and software.unfused_extras,
        experts=experts,
        ep=parallelism.ep,
        etp=parallelism.etp,
    )


@dataclass(frozen=True, slots=True)
class End:
    """Where a segment ends."""

    collective: AnyCollective | None = None
    tail: int = 0
    """Last operators that the collective does not wait for."""


Stream = Sequence[Operator | End]
"""Operators and ends of segments, in order."""


def with_experts(graph: BlockGraph, dense: BlockGraph | None, sizes: Routed) -> BlockGraph:
    """Return the graph of a block with experts, beside that of a block without.

    Args:
        graph: of a block with the MLP of the shared expert, or with any where there is none.
        dense: of a block with the model's MLP; None where all blocks have experts.
        sizes: of the experts.
    """
    shared = sizes.experts.shared_width > 0
    routed_graph = replace(
        graph,
        forward=_spliced(graph.forward, _forward(sizes), shared=shared),
        backward=_spliced(graph.backward, _backward(sizes), shared=shared),
    )
    if dense is None:
        return routed_graph
    forward, backward = (
        tuple(replace(segment, scope=Scope.DENSE_BLOCK) for segment in segments)
        for segments in (dense.forward, dense.backward)
    )
    return replace(routed_graph, dense_forward=forward, dense_backward=backward)


def _spliced(segments: tuple[Segment, ...], routed: Stream, *, shared: bool) -> tuple[Segment, ...]:
    """Put what experts run in the place of the MLP, or beside that of a shared expert.

    With sequence parallelism the MLP is between a gather and a scatter of tokens, which experts do without. With
    context parallelism alone a block ends with the first segment of the next; that comes first then, as in a stage,
    whose first block begins with it.
    """
    stream: list[Operator | End] = []
    for segment in segments:
        stream += [*segment.operators, End(segment.collective, segment.independent_tail)]
    places = [n for n, item in enumerate(stream) if isinstance(item, Operator) and _of_mlp(item)]
    first, last = places[0], places[-1] + 1
    if _moves_tokens(stream[last]):
        first, last = (last + 1, last + 1) if shared else (first - 1, last + 1)
        stream_with = [*map(_renamed, stream[:first]), *routed, End(), *stream[last:]]
    else:
        inside = stream[first:last] if shared else []
        stream_with = [*stream[:first], *routed, *map(_renamed, inside), *stream[last:]]
    *others, ending = _segments(stream_with, segments[0].direction)
    begins = segments[0].direction is Direction.FORWARD and ending.collective is not None
    return (ending, *others) if begins else (*others, ending)


def _segments(stream: Stream, direction: Direction) -> Iterator[Segment]:
    """Cut a stream into segments, each named after its last operator."""
    names: Counter[str] = Counter()
    operators: list[Operator] = []
    for item in stream:
        if isinstance(item, Operator):
            operators.append(item)
            continue
        if operators or item.collective is not None:
            name = operators[-1].name.partition(".")[0] if operators else str(item.collective and item.collective.group)
            names[name] += 1
            yield Segment(
                name=name if names[name] == 1 else f"{name}.{names[name]}",
                direction=direction,
                scope=Scope.BLOCK,
                operators=tuple(operators),
                collective=item.collective,
                independent_tail=item.tail,
            )
        operators = []


def _of_mlp(operator: Operator) -> bool:
    return operator.name.partition(".")[0] in MLP


def _renamed(item: Operator | End) -> Operator | End:
    """Name an operator of an MLP as one of a shared expert."""
    return replace(item, name=SHARED + item.name) if isinstance(item, Operator) and _of_mlp(item) else item


def _moves_tokens(item: Operator | End) -> bool:
    """Whether a segment ends with a collective of sequence parallelism."""
    if not isinstance(item, End) or item.collective is None or item.collective.group != TENSOR_PARALLEL:
        return False
    return item.collective.kind is CollectiveKind.REDUCE_SCATTER


def _forward(r: Routed) -> Stream:
    sent = r.copies * r.hidden
    return [
        product("router", r.tokens, r.experts.count, r.hidden),
        _choosing("choose", r),
        moved("permute", r.tokens * r.hidden, sent),
        *_ended(_exchange(r)),
        *_ordering("sort", r),
        *_ended(_gathering(r, CollectiveKind.ALL_GATHER)),
        grouped_product("experts_gate_up", r.groups, r.rows, r.inner, r.hidden),
        *([_clamped(r)] if r.adds_biases else []),
        moved("experts_activation", r.rows * r.inner, r.rows * r.width),
        grouped_product("experts_down", r.groups, r.rows, r.hidden, r.width),
        *([_biased(r)] if r.adds_biases else []),
        *_ended(_gathering(r, CollectiveKind.REDUCE_SCATTER)),
        *_ordering("unsort", r),
        *_ended(_exchange(r)),
        moved("merge", sent, r.tokens * r.hidden),
    ]


def _backward(r: Routed) -> Stream:
    sent, inner, whole = r.copies * r.hidden, r.rows * r.inner, r.tokens * r.hidden
    return [
        moved("merge", whole, sent),
        *_ended(_exchange(r)),
        *_ordering("unsort", r),
        *_ended(_gathering(r, CollectiveKind.ALL_GATHER)),
        *([_bias_gradient(r)] if r.experts.biases else []),
        grouped_product("experts_down" + INPUT_GRADIENT_SUFFIX, r.groups, r.rows, r.width, r.hidden),
        grouped_weight_gradient("experts_down", r.groups, r.rows, r.width, r.hidden),
        moved("experts_activation", inner + r.rows * r.width, inner + r.rows * r.width),
        *([_clamped_gradient(r)] if r.adds_biases else []),
        grouped_product("experts_gate_up" + INPUT_GRADIENT_SUFFIX, r.groups, r.rows, r.hidden, r.inner),
        grouped_weight_gradient("experts_gate_up", r.groups, r.rows, r.hidden, r.inner),
        *([moved("experts_gate_up" + BIAS_GRADIENT_SUFFIX, inner, 0)] if r.experts.biases else []),
        *_ended(_gathering(r, CollectiveKind.REDUCE_SCATTER)),
        *_ordering("sort", r),
        *_ended(_exchange(r)),
        moved("permute", sent, whole),
        _choosing("choose", r),
        product("router" + INPUT_GRADIENT_SUFFIX, r.tokens, r.hidden, r.experts.count),
        weight_gradient("router", r.experts.count, r.hidden, r.tokens),
    ]


def _ended(collective: Collective | None) -> list[Operator | End]:
    return [] if collective is None else [End(collective)]


def _exchange(r: Routed) -> Collective | None:
    """The copies that all GPUs of an expert-parallel group send each other."""
    if r.ep == 1:
        return None
    return Collective(
        kind=CollectiveKind.ALL_TO_ALL,
        group=EXPERT_PARALLEL,
        group_size=r.ep,
        message_bytes=BF16_BYTES * r.rows // r.etp * r.hidden,
        fused=1,
    )


def _gathering(r: Routed, kind: CollectiveKind) -> Collective | None:
    """Return the collective by which GPUs that share an expert gather copies, or sum results; None where none do."""
    if r.etp == 1:
        return None
    return Collective(
        kind=kind,
        group=EXPERT_TENSOR_PARALLEL,
        group_size=r.etp,
        message_bytes=BF16_BYTES * r.rows * r.hidden,
        fused=1,
    )


def _ordering(name: str, r: Routed) -> list[Operator | End]:
    """Copies in the order of experts, where they came in that of GPUs."""
    if r.ep == 1 or r.groups == 1:
        return []
    values = r.rows // r.etp * r.hidden
    return [moved(name, values, values)]


def _choosing(name: str, r: Routed) -> Operator:
    """Scores of 32 bits, and what is made of them."""
    scores = FP32_BYTES // BF16_BYTES * r.tokens * r.experts.count
    return moved(name, scores, 2 * scores, CHOOSING_KERNELS + r.kernels)


def _clamped(r: Routed) -> Operator:
    """Halves of the first products, each clamped, and put together again."""
    values = r.rows * r.inner
    return moved("experts_clamp", 2 * values, 2 * values, kernels=3)


def _clamped_gradient(r: Routed) -> Operator:
    """Gradients where nothing was clamped, by masks of a byte: three of the half with two bounds, one of the other."""
    return moved("experts_clamp", 9 * r.rows * r.width, 6 * r.rows * r.width, kernels=7)


def _biased(r: Routed) -> Operator:
    """Biases of an expert times shares of its tokens, in 32 bits; sums, of all experts together, and in 16 bits."""
    values = r.rows * r.hidden
    return moved("experts_down.bias", 7 * values, 7 * values, kernels=2 * r.groups + 2)


def _bias_gradient(r: Routed) -> Operator:
    """Sums of gradients over tokens; with shares also over values, in 32 bits, and what the products get."""
    values, name = r.rows * r.hidden, "experts_down" + BIAS_GRADIENT_SUFFIX
    return moved(name, 12 * values, 8 * values, kernels=5 * r.groups + 2) if r.adds_biases else moved(name, values, 0)
