"""Where tokens go in a block of experts, and the loss that keeps experts evenly busy.

A router gives each token scores of all experts; the best of them get a copy each. `Route` says where copies are: in the
order of experts on the GPU that sends them, and in the order of its experts on the one that computes them. `Balance` is
transformers' loss (`load_balancing_loss_func`; Fedus et al., JMLR 2022, section 2.2) of one microbatch: the number of
experts times the sum over experts of the share of tokens that chose one and its mean probability, both over all tokens
of all blocks. Its gradient needs the choices of all ranks that run a part of the microbatch; they are summed on the
host after its forwards, and awaited by its first backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kareus.errors import EngineError
from kareus.model.communication import Communicator, Handle, group_rank
from kareus.model.experts import Experts, RouterScore


@dataclass(frozen=True, kw_only=True)
class Route:
    """Copies of one nanobatch's tokens on their way to experts and back."""

    order: Tensor
    """Of each copy, in the order of experts, its number in the order of tokens: token x experts of a token + rank."""
    place: Tensor
    """Of each copy, in the order of tokens, its place in the order of experts."""
    per_token: int
    sent: Sequence[Sequence[int]]
    """By rank of the expert-parallel group, how many copies it sends to each expert of the model."""
    rank: int
    """This one's in that group."""

    @cached_property
    def groups(self) -> int:
        """Experts of a rank."""
        return len(self.sent[0]) // len(self.sent)

    @cached_property
    def sends(self) -> list[int]:
        """Copies that go to each rank."""
        return [sum(counts) for counts in self._parts(self.rank)]

    @cached_property
    def receives(self) -> list[int]:
        """Copies that come from each rank."""
        return [sum(counts) for counts in self._arriving]

    @cached_property
    def rows(self) -> list[int]:
        """Copies that each expert of this rank computes."""
        return [sum(counts) for counts in zip(*self._arriving, strict=True)]

    @cached_property
    def sorting(self) -> Tensor:
        """Of each copy that was received, in the order of this rank's experts, its place as it came."""
        counts = torch.tensor(self._arriving).flatten()
        experts = torch.arange(self.groups).repeat(len(self.sent)).repeat_interleave(counts)
        return experts.argsort(stable=True).to(self.order.device, non_blocking=True)

    @cached_property
    def unsorting(self) -> Tensor:
        """Of each copy that was received, as it came, its place in the order of this rank's experts."""
        return inverse(self.sorting)

    @property
    def _arriving(self) -> list[Sequence[int]]:
        """By rank, the copies that it sends to each expert of this one."""
        return [self._parts(rank)[self.rank] for rank in range(len(self.sent))]

    def _parts(self, rank: int) -> list[Sequence[int]]:
        """By receiver, the copies that a rank sends to each of its experts."""
        counts, groups = self.sent[rank], self.groups
        return [counts[first : first + groups] for first in range(0, len(counts), groups)]


RANKING = 2
"""Best experts of a group by whose sum groups are ranked where scores are sigmoids (DeepSeek-V3, section 2.1.2)."""


def chosen_experts(scores: Tensor, experts: Experts, bias: Tensor | None) -> Tensor:
    """Return the numbers of each token's experts, [tokens, experts of a token], best first.

    Groups come first where there are any: by their best expert where scores are shares (DeepSeek-V2, section 2.2.2),
    by the sum of their two best where they are sigmoids.

    Args:
        scores: [tokens, experts], fp32.
        experts: of the model's block.
        bias: what scores are moved by for choosing, [experts]; None: nothing.
    """
    if bias is not None:
        scores = scores + bias
    if experts.groups_per_token < experts.groups:
        grouped = scores.view(len(scores), experts.groups, -1)
        ranked = min(RANKING, grouped.shape[-1]) if experts.score is RouterScore.SIGMOID else 1
        best = grouped.topk(ranked, dim=-1).values.sum(-1).topk(experts.groups_per_token, dim=-1).indices
        left_out = torch.ones(grouped.shape[:2], dtype=torch.bool, device=scores.device).scatter_(-1, best, value=False)
        scores = grouped.masked_fill(left_out[..., None], -torch.inf).flatten(1)
    return scores.topk(experts.per_token, dim=-1).indices


def route_of(chosen: Tensor, experts: int, group: Communicator | None) -> Route:
    """Return the route of tokens to the experts that they chose; the host waits for the numbers of all ranks.

    Args:
        chosen: numbers of experts, [tokens, experts of a token].
        experts: of the model's block.
        group: ranks that share them out, as `Mesh.counts`.
    """
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=experts)
    if group is None:
        sent = counts[None]
    else:
        (sent,) = group.all_gather((counts,)).wait()
    return Route(
        order=order,
        place=inverse(order),
        per_token=chosen.shape[1],
        sent=sent.tolist(),
        rank=group_rank(group),
    )


def inverse(order: Tensor) -> Tensor:
    """Return the permutation that undoes another, [n]."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    return places


class Balance:
    """The loss that balances experts, of one microbatch on one rank, times what training adds of it."""

    def __init__(self, experts: Experts, tokens: int, weight: float) -> None:
        """Begin with no token.

        Args:
            experts: of the model's blocks.
            tokens: of the microbatch over all ranks, those of each block with experts counted.
            weight: of the microbatch's loss in that of the iteration.
        """
        self._chosen = torch.zeros(experts.count, dtype=torch.float64)
        self._probabilities: Tensor | None = None
        self._scale = weight * experts.balance_loss * experts.count / tokens**2
        self._sum: Handle | None = None
        self._is_open = True

    def add(self, route: Route, probabilities: Tensor) -> None:
        """Count tokens, [tokens, experts], of a nanobatch in a block; what a backward recomputes is counted already."""
        if not self._is_open:
            return
        self._chosen += torch.tensor(route.sent[route.rank])
        total = probabilities.sum(0)
        self._probabilities = total if self._probabilities is None else self._probabilities + total

    def close(self, group: Communicator | None) -> None:
        """Begin to sum the choices over the ranks of a microbatch, whose forwards have run here."""
        self._is_open = False
        if group is not None:
            self._sum = group.all_reduce((self._chosen,))

    def gradient(self, device: torch.device) -> Tensor:
        """Return the gradient of every token's probabilities, [experts], fp32."""
        return self._factors().to(device, non_blocking=True)

    def value(self) -> Tensor:
        """Return this rank's part of the loss."""
        if self._probabilities is None:
            return torch.zeros(())
        return (self._factors().to(self._probabilities.device) * self._probabilities).sum()

    def _factors(self) -> Tensor:
        if self._is_open:
            raise EngineError("experts: a backward began before all forwards of its microbatch; run a plan that waits.")
        if self._sum is not None:
            self._sum.wait()
            self._sum = None
        return (self._chosen * self._scale).float()


class Balances:
    """The balances of an iteration's microbatches on one rank."""

    def __init__(self, experts: Experts, *, blocks: int, tokens: int, copies: int, group: Communicator | None) -> None:
        """Make those of no microbatch.

        Args:
            experts: of the model's blocks.
            blocks: of the model that have them.
            tokens: of a microbatch over all ranks.
            copies: ranks of context parallelism, each of which has a part of a microbatch's loss.
            group: ranks that run a part of the same microbatches.
        """
        self._experts = experts
        self._tokens = blocks * tokens
        self._copies = copies
        self._group = group
        self._open: dict[int, Balance] = {}
        self._closed = 0
        self.share = 1.0
        """Of the tokens of a microbatch on this rank in those of the whole iteration."""

    def of(self, microbatch: int) -> Balance:
        """Return that of a microbatch."""
        if microbatch not in self._open:
            self._open[microbatch] = Balance(self._experts, self._tokens, self.share * self._copies)
        return self._open[microbatch]

    def close(self, microbatch: int) -> None:
        """Sum the choices of a microbatch, whose forwards through all chunks of this rank have run; in their order."""
        assert microbatch == self._closed, "ranks sum microbatches in one order"
        self._closed += 1
        self.of(microbatch).close(self._group)

    def take(self) -> Tensor:
        """Return this rank's part of the losses of an iteration that has ended, and forget its microbatches."""
        total = sum((balance.value() for balance in self._open.values()), torch.zeros(()))
        self._open.clear()
        self._closed = 0
        return total
