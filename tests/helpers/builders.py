"""Small records that the tests of several rooms share."""

import dataclasses
import json
import operator
from functools import cache, reduce
from pathlib import Path
from typing import Any

import yaml

from kareus.artifacts.records import from_plain
from kareus.artifacts.seals import sealed
from kareus.gpu_model.coefficients import COEFFICIENTS, KERNELS_ONLY
from kareus.gpu_model.gpu import Gpu
from kareus.graph.records import (
    Batch,
    BlockGraph,
    Collective,
    CollectiveKind,
    Direction,
    Operator,
    OperatorKind,
    Scope,
    Segment,
)
from kareus.model.config import Model
from kareus.profile.config import MeasurementProtocol
from kareus.schedule.config import SearchSpaceConfig
from kareus.search.config import InformedSearch, PaperSearch
from kareus.software.record import Software, gpu_values
from kareus.testbed.config import TestbedConfig
from kareus.workload.huggingface import read_architecture

CONFIG = Path(__file__).parents[2] / "config"


def resealed(document: dict[str, Any]) -> dict[str, Any]:
    """A document with a seal that fits whatever it says now; its old one where it says what no seal can be made of."""
    try:
        return sealed({key: value for key, value in document.items() if key != "seal"})
    except ValueError:  # a number that is none
        return document


@cache
def _group(group: str, option: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CONFIG / group / f"{option}.yaml").read_text())
    inherited = [_group(group, parent) for parent in loaded.pop("defaults", []) if parent != "_self_"]
    return reduce(operator.or_, [*inherited, loaded])


def software(option: str = "megatron-paper", **changes: Any) -> Software:
    return dataclasses.replace(from_plain(Software, _group("software", option)), **changes)


def a100(**changes: Any) -> Gpu:
    values = gpu_values(_group("gpu", "a100-sxm4-40gb"), _group("software", "megatron-paper"))
    return dataclasses.replace(from_plain(Gpu, values), **changes)


def plain_a100(**changes: Any) -> Gpu:
    """Return the A100 without what only measured kernels tell: one tile for GEMMs, none for attention, one protocol."""
    absent = {name: known.prior.median for name, known in COEFFICIENTS.items() if known.prior.origin == KERNELS_ONLY}
    coefficients = dataclasses.replace(a100().coefficients, **absent)
    plain = a100(coefficients=coefficients, gemm_tiles=((128, 128),), attention_tile=(), narrow_head_queries=1)
    return dataclasses.replace(plain, **changes)


def simulated(**changes: Any) -> TestbedConfig:
    return dataclasses.replace(from_plain(TestbedConfig, _group("testbed", "simulated")), **changes)


def protocol(**changes: Any) -> MeasurementProtocol:
    return dataclasses.replace(from_plain(MeasurementProtocol, _group("protocol", "thermally_stable")), **changes)


def space() -> SearchSpaceConfig:
    return from_plain(SearchSpaceConfig, _group("space", "default"))


def search(option: str = "paper", **changes: Any) -> PaperSearch:
    return dataclasses.replace(from_plain(PaperSearch, _group("search", option)), **changes)


def informed_search(**changes: Any) -> InformedSearch:
    return dataclasses.replace(from_plain(InformedSearch, _group("search", "informed")), **changes)


def small_model(**changes: Any) -> Model:
    """A model that real tensors of run in milliseconds."""
    values = {
        "name": "small",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 40,
        "tie_embeddings": False,
        "qk_norm": False,
        "qkv_bias": False,
        "norm_epsilon": 1e-6,
        "rotary_base": 500_000.0,
        "rotary_scaling": None,
        "layers_per_stage": {},
    }
    return Model(**(values | changes))


def gemm(name: str, m: int, n: int, k: int) -> Operator:
    return Operator(
        name=name,
        kind=OperatorKind.GEMM,
        shape=(m, n, k),
        flops=2 * m * n * k,
        bytes_read=2 * (m * k + n * k),
        bytes_written=2 * m * n,
        kernels=1,
    )


def memory(name: str, elements: int) -> Operator:
    return Operator(
        name=name,
        kind=OperatorKind.MEMORY,
        shape=(elements,),
        flops=elements,
        bytes_read=4 * elements,
        bytes_written=4 * elements,
        kernels=1,
    )


def all_reduce(elements: int, group_size: int = 8) -> Collective:
    return Collective(
        kind=CollectiveKind.ALL_REDUCE, group="tp", group_size=group_size, message_bytes=2 * elements, fused=1
    )


def segment(name: str, direction: Direction, operators: list[Operator], **changes: Any) -> Segment:
    values = {
        "name": name,
        "direction": direction,
        "scope": Scope.BLOCK,
        "operators": tuple(operators),
        "collective": None,
        "independent_tail": 0,
    }
    return Segment(**(values | changes))


def block_graph(tokens: int) -> BlockGraph:
    """A tensor-parallel block much like that of Llama 3.2 3B on eight GPUs, with two segments in each direction."""
    hidden, inner, qkv, vocab = 3072, 1024, 640, 16032
    reduce = all_reduce(tokens * hidden)
    forward = (
        segment(
            "attention",
            Direction.FORWARD,
            [
                memory("norm", tokens * hidden),
                gemm("qkv", tokens, qkv, hidden),
                gemm("projection", tokens, hidden, 384),
            ],
            collective=reduce,
        ),
        segment(
            "mlp",
            Direction.FORWARD,
            [
                memory("norm", tokens * hidden),
                gemm("gate_up", tokens, 2 * inner, hidden),
                memory("activation", tokens * inner),
                gemm("down", tokens, hidden, inner),
            ],
            collective=reduce,
        ),
    )
    backward = (
        segment(
            "mlp",
            Direction.BACKWARD,
            [
                memory("norm", 2 * tokens * hidden),
                gemm("down.dgrad", tokens, inner, hidden),
                gemm("gate_up.dgrad", tokens, hidden, 2 * inner),
                gemm("gate_up.wgrad", 2 * inner, hidden, tokens),
            ],
            collective=reduce,
            independent_tail=1,
        ),
        segment(
            "attention",
            Direction.BACKWARD,
            [
                memory("norm", 2 * tokens * hidden),
                gemm("projection.dgrad", tokens, 384, hidden),
                gemm("qkv.dgrad", tokens, hidden, qkv),
                gemm("qkv.wgrad", qkv, hidden, tokens),
            ],
            collective=reduce,
            independent_tail=1,
        ),
    )
    return BlockGraph(
        forward=forward,
        backward=backward,
        embedding_forward=(
            segment(
                "embedding",
                Direction.FORWARD,
                [memory("embedding", tokens * hidden)],
                scope=Scope.EMBEDDING,
                collective=reduce,
            ),
        ),
        embedding_backward=(
            segment("embedding", Direction.BACKWARD, [memory("embedding", tokens * hidden)], scope=Scope.EMBEDDING),
        ),
        head_forward=(segment("head", Direction.FORWARD, [gemm("lm_head", tokens, vocab, hidden)], scope=Scope.HEAD),),
        head_backward=(
            segment(
                "head",
                Direction.BACKWARD,
                [gemm("lm_head.dgrad", tokens, hidden, vocab), gemm("lm_head.wgrad", vocab, hidden, tokens)],
                scope=Scope.HEAD,
                collective=reduce,
                independent_tail=1,
            ),
        ),
    )


def graphs(tokens: int = 32768) -> dict[Batch, BlockGraph]:
    return {Batch.MICROBATCH: block_graph(tokens), Batch.NANOBATCH: block_graph(tokens // 2)}


def with_attention(graph: BlockGraph, tokens: int) -> BlockGraph:
    """The graph with attention in it, forward and backward, and the weight gradient that reads its output."""
    shape = {"shape": (1, 3, 1, tokens, tokens, 128), "flops": 4 * tokens, "kernels": 1}
    moved = {"bytes_read": 640 * tokens, "bytes_written": 384 * tokens}
    own = Operator(name="attention", kind=OperatorKind.ATTENTION, **shape, **moved)
    gradient = dataclasses.replace(own, kind=OperatorKind.ATTENTION_BACKWARD, flops=10 * tokens)
    forward, backward = graph.forward[0], graph.backward[1]
    later = (gemm("projection.wgrad", 3072, 384, tokens), gradient)
    return dataclasses.replace(
        graph,
        forward=(
            dataclasses.replace(forward, operators=(*forward.operators[:2], own, *forward.operators[2:])),
            graph.forward[1],
        ),
        backward=(
            graph.backward[0],
            dataclasses.replace(backward, operators=(*backward.operators[:2], *later, *backward.operators[2:])),
        ),
    )


def read_model(path: Path) -> Model:
    """The architecture that a Hugging Face `config.json` says."""
    return read_architecture(path).model


def config_json(folder: Path, config: Any) -> Path:
    """Write a `config.json` as those on Hugging Face; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path
