"""Options of a training in the operator graph: adapters, packing, gradients, recomputed modules, a loss in chunks.

What they change follows from sizes; it is neither traced nor measured. Frozen weights have no gradients: their
operators `.wgrad` go, those of their inputs stay. Beside a product with an adapter run the two products of the adapter,
in 16 bits, and the sum; so do their gradients (Hu et al., ICLR 2022, section 4.1; peft, `peft.tuners.lora`). Dropout of
adapters is left out. Of packed documents each attends to itself alone, so that attention has the pairs of these. A
module that runs again runs before the backward of its block, with its collectives. Of a loss in chunks, head and loss
run for a part of the tokens after the other, and the gradient of the head's weights is added up as often; the sums that
a vocabulary-parallel loss reduces are taken as those of one piece.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from functools import partial

from kareus.graph.number_formats import BF16_BYTES
from kareus.graph.recomputation import AGAIN_SUFFIX
from kareus.graph.records import (
    BIAS_GRADIENT_SUFFIX,
    INPUT_GRADIENT_SUFFIX,
    WEIGHT_GRADIENT_SUFFIX,
    BlockGraph,
    Direction,
    Operator,
    OperatorKind,
    PartlyRecomputedGraph,
    Segment,
)
from kareus.model.config import Model
from kareus.model.low_rank import Adapter, adapters
from kareus.model.packed_documents import twice_pairs
from kareus.model.parallelism import Parallelism
from kareus.model.training_options import FrozenWeights, RecomputedModule, TrainingOptions
from kareus.partition.latent import UP_PROJECTIONS
from kareus.partition.made import moved, product, weight_gradient
from kareus.partition.mean_block import ATTENTION, ROTATION, attended_share, mean_window
from kareus.software.record import Software

ADAPTER = "lora"
"""In the names of an adapter's operators."""
NORM, PROJECTION, ROUTER, MERGE, EXPERTS_ACTIVATION = "norm", "projection", "router", "merge", "experts_activation"
"""Names of operators, with which modules begin or end."""
PRODUCTS = (OperatorKind.GEMM, OperatorKind.GROUPED_GEMM)
WHOLE_MODULES = (RecomputedModule.MLP, RecomputedModule.MOE)
"""Modules whose collectives run again, too."""


def with_training_options(
    graph: BlockGraph,
    options: TrainingOptions,
    model: Model,
    parallelism: Parallelism,
    software: Software,
    sequence_length: int,
) -> BlockGraph:
    """Return the operator graph of a training with options, from that of one with the usual ones."""
    if not options.changed:
        return graph
    if options.packs:
        graph = _packed(graph, model, options, sequence_length)
    saved_bytes = software.gradient_bytes - options.gradient_bytes(software.gradient_bytes)
    if saved_bytes:
        smaller = partial(_of_smaller_gradient, software, saved_bytes)
        graph = _backwards(graph, lambda segment: _each(segment, smaller))
    if options.trains_adapters:
        graph = _with_adapters(graph, adapters(model, parallelism, options))
    if options.frozen_weights is not FrozenWeights.BF16:
        cast = partial(_of_cast_weights, options.frozen_weights)
        names = ("forward", "backward")
        graph = replace(graph, **{name: tuple(_each(s, cast) for s in getattr(graph, name)) for name in names})
    if options.loss_chunks > 1:
        graph = replace(
            graph,
            head_forward=tuple(_in_chunks(segment, options.loss_chunks) for segment in graph.head_forward),
            head_backward=tuple(_in_chunks(segment, options.loss_chunks) for segment in graph.head_backward),
        )
    if modules := options.recompute_modules:
        graph = replace(
            graph,
            backward=(*_again(graph.forward, modules), *graph.backward),
            dense_backward=(*_again(graph.dense_forward, modules), *graph.dense_backward),
        )
    if not options.recomputes_part:
        return graph
    values = {part.name: getattr(graph, part.name) for part in fields(BlockGraph)}
    return PartlyRecomputedGraph(**values, every=options.recompute_every, first=options.recompute_blocks)


def _each(segment: Segment, change: Callable[[Operator], Operator]) -> Segment:
    return replace(segment, operators=tuple(map(change, segment.operators)))


def _backwards(graph: BlockGraph, change: Callable[[Segment], Segment]) -> BlockGraph:
    """Return the graph with other segments in the backward of its blocks and of its head."""
    return replace(
        graph,
        backward=tuple(map(change, graph.backward)),
        dense_backward=tuple(map(change, graph.dense_backward)),
        head_backward=tuple(map(change, graph.head_backward)),
    )


def _packed(graph: BlockGraph, model: Model, options: TrainingOptions, sequence_length: int) -> BlockGraph:
    pairs = twice_pairs(model, options, sequence_length)
    share = Fraction(sum(pairs), len(pairs) * sequence_length**2)
    fewer = share / attended_share(model, sequence_length)

    def packed(operator: Operator) -> Operator:
        if operator.kind not in ATTENTION:
            return operator
        *_, keys, _ = operator.shape[:6]
        shape = (*operator.shape[:6], mean_window(share, keys)) if share < 1 else operator.shape
        return replace(operator, shape=shape, flops=round(operator.flops * fewer))

    names = ("forward", "backward", "dense_forward", "dense_backward")
    return replace(graph, **{name: tuple(_each(s, packed) for s in getattr(graph, name)) for name in names})


def _of_smaller_gradient(software: Software, saved_bytes: int, operator: Operator) -> Operator:
    """Return a weight gradient whose sum takes so many bytes less a weight, moved by it or by a kernel of its own."""
    if not operator.is_weight_gradient or operator.kind not in PRODUCTS:
        return operator
    grouped = operator.kind is OperatorKind.GROUPED_GEMM
    weights = operator.shape[0] * (math.prod(operator.shape[2:]) if grouped else operator.shape[1])
    if not software.fused_accumulation:
        return replace(operator, copied_bytes=operator.copied_bytes - 2 * saved_bytes * weights)
    return replace(
        operator,
        bytes_read=operator.bytes_read - saved_bytes * weights,
        bytes_written=operator.bytes_written - saved_bytes * weights,
    )


def _with_adapters(graph: BlockGraph, beside: Sequence[Adapter]) -> BlockGraph:
    """Return the graph of frozen weights with adapters."""
    graph = _backwards(graph, lambda segment: _with_gradients(segment, beside))
    forward = tuple(replace(s, operators=tuple(_adapted(s.operators, beside))) for s in graph.forward)
    return replace(graph, forward=forward, embedding_backward=())


def _adapted(operators: Sequence[Operator], beside: Sequence[Adapter]) -> Iterator[Operator]:
    for operator in operators:
        yield operator
        for number, adapter in enumerate(adapter for adapter in beside if adapter.operator == operator.name):
            name, rows = f"{operator.name}.{ADAPTER}{number or ''}", operator.shape[0]
            yield product(f"{name}.a", rows, adapter.rank, adapter.inputs)
            yield product(f"{name}.b", rows, adapter.outputs, adapter.rank)
            yield moved(f"{name}.sum", 2 * rows * adapter.outputs, rows * adapter.outputs)


def _with_gradients(segment: Segment, beside: Sequence[Adapter]) -> Segment:
    """Return a segment of a backward without the gradients of frozen weights, with those of adapters."""
    tail = len(segment.operators) - segment.independent_tail
    kept, independent = list[Operator](), 0
    for place, operator in enumerate(segment.operators):
        made = list(_gradients(operator, beside))
        kept += made
        independent += len(made) * (place >= tail)
    return replace(segment, operators=tuple(kept), independent_tail=independent)


def _gradients(operator: Operator, beside: Sequence[Adapter]) -> Iterator[Operator]:
    frozen = operator.is_weight_gradient
    if not frozen:
        yield operator
    if operator.name.endswith(BIAS_GRADIENT_SUFFIX):
        return
    stem = operator.name.removesuffix(WEIGHT_GRADIENT_SUFFIX).removesuffix(INPUT_GRADIENT_SUFFIX)
    if stem == operator.name:
        return
    for number, adapter in enumerate(adapter for adapter in beside if adapter.operator == stem):
        name = f"{stem}.{ADAPTER}{number or ''}"
        if frozen:
            tokens = operator.shape[2]
            yield weight_gradient(f"{name}.b", adapter.outputs, adapter.rank, tokens)
            yield weight_gradient(f"{name}.a", adapter.rank, adapter.inputs, tokens)
        else:
            rows = operator.shape[0]
            yield product(f"{name}.b{INPUT_GRADIENT_SUFFIX}", rows, adapter.rank, adapter.outputs)
            yield product(f"{name}.a{INPUT_GRADIENT_SUFFIX}", rows, adapter.inputs, adapter.rank)
            yield moved(f"{name}.sum{INPUT_GRADIENT_SUFFIX}", 2 * rows * adapter.inputs, rows * adapter.inputs)


def _of_cast_weights(frozen: FrozenWeights, operator: Operator) -> Operator:
    """Return a product of a frozen matrix that is cast to 16 bits before, by a kernel of its own."""
    if operator.kind is not OperatorKind.GEMM or f".{ADAPTER}" in operator.name:
        return operator
    values = operator.shape[1] * operator.shape[2]
    moved_bytes = round((frozen.value_bytes + BF16_BYTES) * values)
    return replace(operator, copies=operator.copies + 1, copied_bytes=operator.copied_bytes + moved_bytes)


def _in_chunks(segment: Segment, chunks: int) -> Segment:
    """Return a segment whose products and losses run once for each chunk of the tokens; norms run once."""
    operators = list[Operator]()
    for operator in segment.operators:
        chunked = operator.kind is OperatorKind.GEMM or operator.name == "loss"
        operators += _chunks(operator, chunks) if chunked else [operator]
    more = len(operators) - len(segment.operators)
    tail = segment.independent_tail + (more // max(len(segment.operators) - 1, 1) if segment.independent_tail else 0)
    return replace(segment, operators=tuple(operators), independent_tail=min(tail, len(operators)))


def _chunks(operator: Operator, chunks: int) -> list[Operator]:
    """Return an operator of the head for each chunk; a product reads, or adds to, its whole matrix each time."""
    fixed_read = fixed_written = 0
    shape = operator.shape
    if operator.is_weight_gradient:
        fixed_read = operator.bytes_read - BF16_BYTES * shape[2] * (shape[0] + shape[1])
        fixed_written = operator.bytes_written
        shape = (*shape[:2], max(shape[2] // chunks, 1))
    elif operator.kind is OperatorKind.GEMM:
        fixed_read = BF16_BYTES * shape[1] * shape[2]
        shape = (max(shape[0] // chunks, 1), *shape[1:])
    part = replace(
        operator,
        shape=shape,
        flops=operator.flops // chunks,
        bytes_read=fixed_read + (operator.bytes_read - fixed_read) // chunks,
        bytes_written=fixed_written + (operator.bytes_written - fixed_written) // chunks,
        copied_bytes=operator.copied_bytes if operator.is_weight_gradient else operator.copied_bytes // chunks,
    )
    stem, dot, ending = operator.name.partition(".")
    names = [f"{stem}{f'.{n + 1}' if n else ''}{dot}{ending}" for n in range(chunks)]
    return [replace(part, name=name) for name in names]


def _again(forward: Sequence[Segment], modules: Sequence[RecomputedModule]) -> tuple[Segment, ...]:
    """Return the segments of a forward that modules' parts are cut out of, as a backward runs them again, once each."""
    places = {module: set(_of_module(forward, module)) for module in modules}
    chosen = set[int]().union(*places.values())
    sending = set[int]().union(*(places[module] for module in WHOLE_MODULES if module in places))
    segments_again, end = list[Segment](), 0
    for segment in forward:
        begin, end = end, end + len(segment.operators)
        again = [place for place in range(begin, end) if place in chosen]
        if again:
            segments_again.append(
                replace(
                    segment,
                    direction=Direction.BACKWARD,
                    operators=tuple(
                        replace(o, name=o.name + AGAIN_SUFFIX)
                        for o in (segment.operators[place - begin] for place in again)
                    ),
                    collective=segment.collective if sending.intersection(again) else None,
                    independent_tail=0,
                )
            )
    return tuple(segments_again)


def _of_module(forward: Sequence[Segment], module: RecomputedModule) -> list[int]:
    """Return the places of a module's operators among those of a forward; none of blocks that have it not."""
    operators = [operator for segment in forward for operator in segment.operators]
    stems = [operator.name.partition(".")[0] for operator in operators]
    is_latent = not set(UP_PROJECTIONS).isdisjoint(stems)
    match module:
        case RecomputedModule.LAYER_NORM:
            return [n for n, stem in enumerate(stems) if stem == NORM]
        case RecomputedModule.MLA_UP_PROJECTION:
            return [n for n, stem in enumerate(stems) if stem in UP_PROJECTIONS or (is_latent and stem == ROTATION)]
        case RecomputedModule.MOE_ACTIVATION:
            return [n for n, stem in enumerate(stems) if stem == EXPERTS_ACTIVATION]
        case RecomputedModule.MOE:
            return list(range(stems.index(ROUTER), stems.index(MERGE) + 1)) if ROUTER in stems else []
    if ROUTER in stems or PROJECTION not in stems:
        return []
    after = stems.index(PROJECTION) + 1
    products = [n for n in range(after, len(stems)) if operators[n].kind is OperatorKind.GEMM]
    norms = [n for n in range(after, products[0]) if stems[n] == NORM]
    return list(range(norms[-1] if norms else products[0], products[-1] + 1))
