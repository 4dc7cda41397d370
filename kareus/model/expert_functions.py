"""The operators of a block of experts as functions with their own backward, as `kareus.model.functions` has others.

Tokens are [batch, tokens, hidden], copies [copies, hidden]. What is sent to other GPUs says in `splits` how many rows
go to and come from each rank.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from kareus.model.communication import Communicator
from kareus.model.experts import Experts, RouterScore
from kareus.model.functions import add_or_put_off, add_product
from kareus.model.routing import Balance, Route, chosen_experts, route_of


class RouterFunction(Function):
    """Scores of all experts, x weight^T, and x itself; the gradients of both are summed in the product's epilogue."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, weight_gradient: Tensor, exact: bool) -> tuple[Tensor, Tensor]:  # noqa: FBT001 - autograd names no arguments
        """Return logits, [batch, tokens, experts], and tokens; logits are in fp32 where they are to be exact."""
        ctx.save_for_backward(x, weight)
        ctx.weight_gradient = weight_gradient
        logits = functional.linear(x.float(), weight.float()) if exact else functional.linear(x, weight)
        return logits, x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, passed: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x; add that of the weight, or put that off."""
        x, weight = ctx.saved_tensors
        rows, weight_gradient, dtype = gradient.flatten(0, 1), ctx.weight_gradient, gradient.dtype
        whole = torch.addmm(passed.flatten(0, 1).to(dtype), rows, weight.to(dtype))
        add_or_put_off(lambda: add_product(weight_gradient, rows.t(), x.flatten(0, 1).to(dtype)))
        return whole.to(x.dtype).view_as(x), None, None, None


class ChooseFunction(Function):
    """The experts of each token, their shares, and where its copies go; keeps scores in fp32, and choices."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        balance: Balance | None,
        experts: Experts,
        group: Communicator | None,
        dtype: torch.dtype,
        bias: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Route]:
        """Return shares, [batch, tokens, experts of a token], in `dtype`, and the route; `bias` as `weight_of`."""
        rows = logits.flatten(0, 1).float()
        scores = rows.sigmoid() if experts.score is RouterScore.SIGMOID else rows.softmax(-1)
        chosen = chosen_experts(scores, experts, bias[0] if bias else None)
        best = scores.gather(-1, chosen)
        route = route_of(chosen, logits.shape[-1], group)
        if balance is not None:
            balance.add(route, scores)
        ctx.save_for_backward(scores, chosen)
        ctx.balance, ctx.experts, ctx.shape, ctx.dtype = balance, experts, logits.shape, logits.dtype
        ctx.counts = bias[1] if bias and experts.bias_step else None
        shares = best / best.sum(-1, keepdim=True) if experts.normalised else best
        return (experts.share_scale * shares).to(dtype).view(*logits.shape[:2], experts.per_token), route

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the logits, with that of the balance; count choices, once for each token."""
        scores, chosen = ctx.saved_tensors
        if ctx.counts is not None:
            ctx.counts += torch.bincount(chosen.flatten(), minlength=scores.shape[-1])
        of_best = ctx.experts.share_scale * gradient.flatten(0, 1).float()
        if ctx.experts.normalised:
            best = scores.gather(-1, chosen)
            total = best.sum(-1, keepdim=True)
            of_best = (of_best - (of_best * best).sum(-1, keepdim=True) / total) / total
        of_each = torch.zeros_like(scores)
        if ctx.balance is not None:
            of_each += ctx.balance.gradient(scores.device)
        of_each.scatter_add_(-1, chosen, of_best)
        weighted = scores * of_each
        if ctx.experts.score is RouterScore.SIGMOID:
            logits = weighted * (1 - scores)
        else:
            logits = weighted - scores * weighted.sum(-1, keepdim=True)
        return logits.to(ctx.dtype).view(ctx.shape), None, None, None, None, None


class ForkFunction(Function):
    """Tokens twice; keeps nothing."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return them, and them."""
        return x.view_as(x), x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor, other: Tensor) -> Tensor:
        """Return the sum of the gradients."""
        return gradient + other


class JoinFunction(Function):
    """The sum of two results; keeps the second and what it is scaled by, where its gate does."""

    @staticmethod
    def forward(ctx: Any, routed: Tensor, shared: Tensor, *gate: Tensor) -> Tensor:
        """Return the sum, [batch, tokens, hidden]; a gate, [batch, tokens, 1], scales the second result."""
        if not gate:
            return routed + shared
        opened = gate[0].sigmoid()
        ctx.save_for_backward(shared, opened)
        return torch.addcmul(routed, shared, opened)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of both, and of the gate."""
        if not ctx.saved_tensors:
            return gradient, gradient
        shared, opened = ctx.saved_tensors
        of_gate = (gradient * shared).sum(-1, keepdim=True) * opened * (1 - opened)
        return gradient, gradient * opened, of_gate


class PermuteFunction(Function):
    """Copies of tokens in the order of their experts; keeps nothing but the route."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, route: Route) -> Tensor:
        """Return copies, [tokens x experts of a token, hidden]."""
        ctx.route, ctx.shape, ctx.splits = route, tokens.shape, (route.sends, route.receives)
        return tokens.flatten(0, 1)[route.order // route.per_token]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of tokens, the sum over those of their copies."""
        route = ctx.route
        copies = gradient[route.place].view(-1, route.per_token, gradient.shape[-1])
        return copies.sum(1).view(ctx.shape), None


class SortFunction(Function):
    """Copies that came from several ranks in the order of this rank's experts."""

    @staticmethod
    def forward(ctx: Any, copies: Tensor, route: Route) -> Tensor:
        """Return them in that order."""
        ctx.route = route
        return copies[route.sorting]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients in the order in which copies came."""
        return gradient[ctx.route.unsorting], None


class UnsortFunction(Function):
    """Results in the order in which the copies came."""

    @staticmethod
    def forward(ctx: Any, results: Tensor, route: Route) -> Tensor:
        """Return them in that order."""
        ctx.route, ctx.splits = route, (route.receives, route.sends)
        return results[route.unsorting]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients in the order of this rank's experts."""
        return gradient[ctx.route.sorting], None


class GroupedLinearFunction(Function):
    """A matrix product for each expert of a rank with the rows of its copies, of which there may be none.

    `weight` is [experts x outputs, inputs], one expert's below the other's, `weight_gradient` as it, fp32.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, route: Route, weight: Tensor, weight_gradient: Tensor) -> Tensor:
        """Return x weight^T of each expert, [copies, outputs]."""
        ctx.save_for_backward(x, weight)
        ctx.route, ctx.weight_gradient, ctx.splits = route, weight_gradient, (route.receives, route.sends)
        weights = weight.view(len(route.rows), -1, weight.shape[-1])
        product = x.new_empty(len(x), weights.shape[1])
        for rows, expert, out in zip(
            torch.split(x, route.rows), weights, torch.split(product, route.rows), strict=True
        ):
            torch.mm(rows, expert.t(), out=out)
        return product

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x; add those of the weights, or put that off."""
        x, weight = ctx.saved_tensors
        counts, weight_gradient = ctx.route.rows, ctx.weight_gradient
        shape = (len(counts), -1, weight.shape[-1])
        x_gradient = torch.empty_like(x)
        rows = torch.split(gradient, counts)
        for each, expert, out in zip(rows, weight.view(shape), torch.split(x_gradient, counts), strict=True):
            torch.mm(each, expert, out=out)

        def add() -> None:
            totals = weight_gradient.view(shape)
            for total, left, right in zip(totals, rows, torch.split(x, counts), strict=True):
                if len(left):
                    add_product(total, left.t(), right)

        add_or_put_off(add)
        return x_gradient, None, None, None


class MergeFunction(Function):
    """The sum of a token's results, each times its share; keeps both."""

    @staticmethod
    def forward(ctx: Any, results: Tensor, shares: Tensor, route: Route, scale: float) -> Tensor:
        """Return `scale` times that sum, [batch, tokens, hidden]; results are in the order of experts."""
        ctx.save_for_backward(results, shares)
        ctx.route, ctx.scale = route, scale
        by_token = results[route.place].view(*shares.shape, results.shape[-1])
        return torch.einsum("btkh,btk->bth", by_token, shares) * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of results and shares."""
        results, shares = ctx.saved_tensors
        route, gradient = ctx.route, gradient * ctx.scale
        by_token = results[route.place].view(*shares.shape, results.shape[-1])
        of_shares = torch.einsum("btkh,bth->btk", by_token, gradient)
        of_results = (shares[..., None] * gradient[:, :, None]).flatten(0, 2)
        return of_results[route.order], of_shares, None, None
