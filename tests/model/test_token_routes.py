"""Tokens reach the experts that they chose on other ranks, however they choose, and their gradients come back."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.builders import small_model
from helpers.examples import drawn
from helpers.worlds import departure, gradients_of, randomise, spawn
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from kareus.model.block import Block
from kareus.model.communication import Mesh
from kareus.model.communicators.process_group import ProcessGroupCommunicator
from kareus.model.experts import Experts, RouterScore
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.passes import Tape, backward_pass, forward_pass
from kareus.model.routing import inverse, route_of
from kareus.model.shards import shard_of
from kareus.model.steps import steps_of
from kareus.runtime.overlap import run_alone

HIDDEN, WIDTH, COUNT = 8, 6, 8
SIGMOIDS = {"score": RouterScore.SIGMOID, "share_scale": 2.5}
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"shared_width": 4, "shared_gate": True},
    {"groups": 4, "groups_per_token": 2, "shared_width": 4},
    {**SIGMOIDS, "groups": 2, "groups_per_token": 1},
    {**SIGMOIDS, "groups": 4, "groups_per_token": 3, "shared_width": 4},
)
"""Routers and shared experts: of Mixtral, Qwen 2, DeepSeek-V2 and V3."""
TABLE = (torch.empty(0), torch.empty(0))
"""Attention, which rotates, is left out."""
ALONE = Parallelism(dp=1, pp=1, tp=1, cp=1, layers_per_stage=(1,), sharding=Sharding.NONE, sequence_parallel=False)
SHARD = shard_of(small_model(hidden_size=HIDDEN), ALONE, 4)


def one_by_one(tokens: Tensor, weights: dict[str, Tensor], experts: Experts) -> Tensor:
    """Norm and experts of each token by itself, [tokens, hidden]."""
    normed = functional.rms_norm(tokens, (HIDDEN,), weights["norm.weight"], 1e-6)
    gate_up = weights["experts_gate_up.weight"].view(experts.count, 2 * WIDTH, HIDDEN)
    down = weights["experts_down.weight"].view(experts.count, HIDDEN, WIDTH)
    rows = []
    for token in normed:
        logits = weights["router.weight"] @ token
        scores = logits.sigmoid() if experts.score is RouterScore.SIGMOID else logits.softmax(0)
        chosen = torch.tensor(chosen_one_by_one(scores.detach(), weights.get("choose.bias"), experts))
        best = scores[chosen]
        shares = experts.share_scale * (best / best.sum() if experts.normalised else best)
        results = []
        if experts.shared_width:
            gate, up = (weights["shared_gate_up.weight"] @ token).chunk(2)
            shared = weights["shared_down.weight"] @ (functional.silu(gate) * up)
            results.append(
                (weights["shared_gate.weight"] @ token).sigmoid() * shared if experts.shared_gate else shared
            )
        for share, number in zip(shares, chosen.tolist(), strict=True):
            gate, up = (gate_up[number] @ token).chunk(2)
            results.append(share * (down[number] @ (functional.silu(gate) * up)))
        rows.append(sum(results))
    return tokens + torch.stack(rows)


def chosen_one_by_one(scores: Tensor, bias: Tensor | None, experts: Experts) -> list[int]:
    """Experts of a token: those of the best groups, which are ranked by their best scores, then the best of these."""
    moved = scores.tolist() if bias is None else (scores + bias.detach()).tolist()
    size, counted = COUNT // experts.groups, 1 if bias is None else 2
    groups = [range(first, first + size) for first in range(0, COUNT, size)]
    groups.sort(key=lambda group: -sum(sorted((moved[n] for n in group), reverse=True)[:counted]))
    allowed = [n for group in groups[: experts.groups_per_token] for n in group]
    return sorted(allowed, key=lambda n: -moved[n])[: experts.per_token]


def check_tokens(rank: int, ranks: int) -> None:
    group = ProcessGroupCommunicator("ep", dist.group.WORLD) if ranks > 1 else None

    @drawn(12)
    @given(
        seed=st.integers(0, 2**16),
        batch=st.integers(1, 2),
        tokens=st.integers(1, 5),
        per_token=st.integers(1, COUNT),
        normalised=st.booleans(),
        alike=st.booleans(),
        kind=st.sampled_from(KINDS),
    )
    @example(seed=0, batch=1, tokens=1, per_token=1, normalised=False, alike=False, kind=KINDS[0])
    @example(seed=0, batch=2, tokens=5, per_token=2, normalised=True, alike=True, kind=KINDS[0])
    @example(seed=0, batch=1, tokens=1, per_token=2, normalised=True, alike=False, kind=KINDS[-1])
    def check(
        *, seed: int, batch: int, tokens: int, per_token: int, normalised: bool, alike: bool, kind: dict[str, Any]
    ) -> None:
        per_token = min(per_token, COUNT * kind.get("groups_per_token", 1) // kind.get("groups", 1))
        several = per_token > 1  # the share of a single one, normalised, has no gradient but that of rounding
        experts = Experts(count=COUNT, per_token=per_token, width=WIDTH, normalised=normalised and several, **kind)
        model = small_model(hidden_size=HIDDEN, experts=experts)
        whole = Block(model, SHARD, Mesh(), torch.float32, experts=experts)
        randomise(whole, seed)
        block = Block(model, SHARD, Mesh(ep=group, counts=group), torch.float32, experts=experts)
        copied = {name: mine(name, value, rank, ranks) for name, value in whole.named_parameters()}
        block.load_state_dict(copied)
        generator = torch.Generator().manual_seed(seed)
        given_tokens = torch.randn(ranks, batch, tokens, HIDDEN, generator=generator)
        if alike:  # all choose the same experts: most have no token, and with few of them some ranks
            given_tokens[:] = given_tokens[0, 0, 0]
        arriving = torch.randn(given_tokens.shape, generator=generator)
        tape: Tape = []
        steps = steps_of([block])[1:]
        result = run_alone(forward_pass(steps, given_tokens[rank], TABLE, tape), None)
        leaving = run_alone(backward_pass(tape, arriving[rank]), None)
        weights = {name.removeprefix("mlp."): p.detach().requires_grad_() for name, p in whole.named_parameters()}
        inputs = given_tokens.flatten(0, 2).requires_grad_()
        expected = one_by_one(inputs, weights, experts).view(given_tokens.shape)
        expected.backward(arriving)
        gradients = {n: g for n, g in gradients_of(block).items() if n.startswith("mlp.")}
        for name, gradient in gradients.items():
            if ranks > 1 and "experts" not in name:  # of this rank's tokens only
                dist.all_reduce(gradient)
        theirs = {
            name: mine(name, gradient_of(weights[name.removeprefix("mlp.").removesuffix("_gradient")]), rank, ranks)
            for name in gradients
        }
        ours = {"result": result, "leaving": leaving, **gradients}
        own_inputs = inputs.grad.view(given_tokens.shape)[rank]
        assert departure(ours, {"result": expected[rank].detach(), "leaving": own_inputs, **theirs}) <= 1e-5

    check()


def gradient_of(weight: Tensor) -> Tensor:
    """Its gradient, zeros where nothing is computed with it: scores are only moved by it for choosing."""
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def mine(name: str, value: Tensor, rank: int, ranks: int) -> Tensor:
    """A rank's part of a weight or of its gradient: of experts those that it has."""
    return value.chunk(ranks)[rank].clone() if "experts" in name else value.clone()


@pytest.mark.parametrize("ranks", [1, 2])
def test_tokens_of_any_choice_compute_what_each_does_alone(ranks: int, tmp_path: Path) -> None:
    spawn(ranks, check_tokens, tmp_path, ranks)


@given(
    tokens=st.integers(1, 9),
    experts=st.sampled_from([4, 6, 8]),
    ranks=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
)
def test_copies_that_are_sent_are_those_that_arrive(tokens: int, experts: int, ranks: int, seed: int) -> None:
    """Every rank's copies, sent and sorted, are those of its experts, one expert's after the other's."""
    generator = torch.Generator().manual_seed(seed)
    chosen = [torch.rand(tokens, experts, generator=generator).topk(2).indices for _ in range(ranks)]
    counts = torch.stack([torch.bincount(c.flatten(), minlength=experts) for c in chosen])
    routes = [route_of(c, experts, None) for c in chosen]
    routes = [dataclasses.replace(r, sent=counts.tolist(), rank=n) for n, r in enumerate(routes)]
    sent = [c.flatten()[r.order].split(r.sends) for c, r in zip(chosen, routes, strict=True)]
    for rank, route in enumerate(routes):
        arrived = [parts[rank] for parts in sent]
        assert [len(part) for part in arrived] == route.receives
        numbers = torch.cat(arrived)[route.sorting]
        first = rank * route.groups
        expected = [first + n for n, rows in enumerate(route.rows) for _ in range(rows)]
        assert numbers.tolist() == expected
        assert torch.equal(route.sorting[route.unsorting], torch.arange(len(numbers)))
        assert torch.equal(inverse(route.order), route.place)
