"""Graphs of real models as extraction gives them, each extracted once."""

import dataclasses
from collections.abc import Iterable

from kareus.graph.records import Batch, BlockGraph, Operator, Segment
from kareus.model.config import Model
from kareus.model.parallelism import Parallelism, Sharding
from kareus.partition.extract import extract

SEQUENCE = 4096
LLAMA = Model(
    name="llama3.2-3b",
    hidden_size=3072,
    intermediate_size=8192,
    num_layers=28,
    num_attention_heads=24,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=128256,
    tie_embeddings=True,
    qk_norm=False,
    qkv_bias=False,
    norm_epsilon=1e-5,
    rotary_base=500_000.0,
    rotary_scaling=None,
    layers_per_stage={},
)
QWEN = dataclasses.replace(
    LLAMA,
    name="qwen3-1.7b",
    hidden_size=2048,
    intermediate_size=6144,
    num_attention_heads=16,
    vocab_size=151936,
    qk_norm=True,
)
EXTRACTED: dict[tuple[object, ...], dict[Batch, BlockGraph]] = {}
DEGREES = [(8, 1), (4, 2), (1, 2), (1, 1)]


def degrees(tp: int, cp: int, *, shared: bool = False) -> Parallelism:
    """Degrees of parallelism; `shared` if a tensor-parallel group shares tokens (sequence parallelism)."""
    return Parallelism(
        dp=1, pp=2, tp=tp, cp=cp, layers_per_stage=(14, 14), sharding=Sharding.NONE, sequence_parallel=shared
    )


def graphs(
    model: Model, tp: int, cp: int, microbatch_size: int = 8, *, shared: bool = False
) -> dict[Batch, BlockGraph]:
    key = (model.name, model.qkv_bias, tp, cp, microbatch_size, shared)
    if key not in EXTRACTED:
        EXTRACTED[key] = extract(model, degrees(tp, cp, shared=shared), microbatch_size, SEQUENCE)
    return EXTRACTED[key]


def nanobatch(model: Model, tp: int, cp: int, *, shared: bool = False) -> BlockGraph:
    return graphs(model, tp, cp, shared=shared)[Batch.NANOBATCH]


def named(segments: Iterable[Segment]) -> dict[str, list[str]]:
    return {s.name: [o.name for o in s.operators] for s in segments}


def operator(segments: Iterable[Segment], segment: str, name: str) -> Operator:
    return next(o for s in segments if s.name == segment for o in s.operators if o.name == name)


def total_flops(graph: BlockGraph) -> int:
    return sum(o.flops for s in (*graph.forward, *graph.backward) for o in s.operators)
