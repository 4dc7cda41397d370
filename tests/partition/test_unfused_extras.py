"""What gpt-oss has and fused kernels have not: bytes that PyTorch's own kernels move for it, counted as they run."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.builders import small_model, software
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kareus.graph.number_formats import Precision
from kareus.graph.records import BlockGraph, Segment
from kareus.model.config import Model
from kareus.model.experts import Experts
from kareus.model.features import AngleScaling, AngleStretch
from kareus.model.parallelism import Parallelism, Sharding
from kareus.partition.extract import extract
from kareus.software.kernels import of_software

TOKENS, HIDDEN, WIDTH, HEADS, KEY_VALUE_HEADS, HEAD_DIM = 256, 128, 192, 16, 4, 16
ROWS = 2 * TOKENS
YARN = AngleScaling(stretch=AngleStretch.YARN, stretch_factor=32.0)
MODEL = small_model(
    hidden_size=HIDDEN,
    num_attention_heads=HEADS,
    num_key_value_heads=KEY_VALUE_HEADS,
    head_dim=HEAD_DIM,
    rotary_scaling=YARN,
    experts=Experts(count=2, per_token=2, width=WIDTH, biases=True),
)
LAYOUT = Parallelism(dp=1, pp=1, tp=1, cp=1, layers_per_stage=None, sharding=Sharding.NONE, sequence_parallel=False)
VIEWS = ("view", "split", "slice", "select", "expand", "unsqueeze", "detach", "alias", "chunk")
LARGE = 32 * TOKENS
"""Values from which on a tensor counts: biases, shares and angles do not."""


class Traffic(TorchDispatchMode):
    """Counts bytes that operators read and write, of large tensors, but for those that make views."""

    def __init__(self) -> None:
        super().__init__()
        self.read = self.written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::").removeprefix("_")
        if not name.startswith(VIEWS) or name.endswith("backward"):
            self.read += sum(map(_bytes, _tensors(args)))
            self.written += sum(map(_bytes, _tensors([result])))
        return result


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size() if tensor.numel() >= LARGE else 0


def moved(run: Any, *inputs: Tensor) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bytes read and written by a forward, and by its backward."""
    leaves = [one.detach().requires_grad_() for one in inputs]
    with Traffic() as forward:
        result = run(*leaves)
    gradient = torch.ones_like(result)
    with Traffic() as backward:
        result.backward(gradient)
    return (forward.read, forward.written), (backward.read, backward.written)


def values(*shape: int) -> Tensor:
    return torch.randn(*shape).to(torch.bfloat16)


def clamped(first: Tensor) -> Tensor:
    gate, linear = first.chunk(2, -1)
    return torch.cat((gate.clamp(max=7.0), linear.clamp(min=-7.0, max=7.0)), -1)


def biased(results: Tensor, biases: Tensor, shares: Tensor) -> Tensor:
    """Of two experts, whose shares of tokens have 32 bits."""
    sizes = [ROWS // 2] * 2
    parts = zip(results.split(sizes), biases, shares.split(sizes), strict=True)
    return torch.cat([part + bias * share for part, bias, share in parts]).to(results.dtype)


def turned(heads: Tensor) -> Tensor:
    """Of queries or keys: all of a head turns, and what is left to be put beside it is empty."""
    part, rest = heads[..., :HEAD_DIM], heads[..., HEAD_DIM:]
    angles = torch.ones(TOKENS, 1, HEAD_DIM, dtype=heads.dtype)
    first, second = part.chunk(2, -1)
    return torch.cat((part * angles + torch.cat((-second, first), -1) * angles, rest), -1)


def graph_by(model: Model, *, unfused: bool) -> BlockGraph:
    by = software("megatron-core", unfused_extras=unfused)
    (graph, *_) = extract(model, LAYOUT, 1, TOKENS, None, by).values()
    return of_software(graph, by, Precision.BF16, model, LAYOUT, 1)


def traffic(segments: tuple[Segment, ...], name: str) -> tuple[int, int]:
    """Bytes that the operators of a name read and write; none where there is no such operator."""
    of_name = [operator for segment in segments for operator in segment.operators if operator.name == name]
    return sum(operator.bytes_read for operator in of_name), sum(operator.bytes_written for operator in of_name)


UNFUSED, FUSED = graph_by(MODEL, unfused=True), graph_by(MODEL, unfused=False)


def test_a_clamp_moves_what_its_kernels_do() -> None:
    forward, backward = moved(clamped, values(ROWS, 2 * WIDTH))
    assert traffic(UNFUSED.forward, "experts_clamp") == forward
    assert traffic(UNFUSED.backward, "experts_clamp") == backward
    assert traffic(FUSED.forward, "experts_clamp") == (0, 0)


def test_biases_of_results_are_added_in_32_bits() -> None:
    forward, backward = moved(biased, values(ROWS, HIDDEN), values(2, HIDDEN), torch.rand(ROWS, 1))
    assert traffic(UNFUSED.forward, "experts_down.bias") == forward
    assert traffic(UNFUSED.backward, "experts_down.bias.wgrad") == backward
    assert traffic(FUSED.forward, "experts_down.bias") == (0, 0)
    assert traffic(FUSED.backward, "experts_down.bias.wgrad") == (2 * ROWS * HIDDEN, 0)


def test_queries_and_keys_turn_by_kernels_of_their_own_where_their_length_changes() -> None:
    parts = [moved(turned, values(TOKENS, heads, HEAD_DIM)) for heads in (HEADS, KEY_VALUE_HEADS)]
    forward, backward = (tuple(sum(part[way][n] for part in parts) for n in (0, 1)) for way in (0, 1))
    assert traffic(UNFUSED.forward, "rope") == forward
    fused = traffic(FUSED.backward, "rope")
    assert traffic(UNFUSED.backward, "rope") == tuple(a + b for a, b in zip(fused, backward, strict=True))


@pytest.mark.parametrize(
    "changes", [{"rotary_scaling": None}, {"rotary_scaling": replace(YARN, stretch=AngleStretch.LINEAR)}]
)
def test_others_turn_as_they_did(changes: dict[str, Any]) -> None:
    model = replace(MODEL, **changes)
    assert traffic(graph_by(model, unfused=True).forward, "rope") == traffic(FUSED.forward, "rope")


def test_models_without_biases_have_no_more_operators() -> None:
    assert MODEL.experts is not None
    model = replace(MODEL, rotary_scaling=None, experts=replace(MODEL.experts, biases=False))
    assert graph_by(model, unfused=True) == graph_by(model, unfused=False)
