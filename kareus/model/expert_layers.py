"""The operators of a block of experts as modules, as `kareus.model.layers` has those of other blocks."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kareus.model import expert_functions
from kareus.model.communication import Boundary, Communicator, Mesh
from kareus.model.experts import Experts, RouterScore
from kareus.model.layers import Linear, OperatorModule, add_weight, weight_of


class Router(Linear):
    """Scores of all experts for each token; whole on every GPU.

    With sequence parallelism a GPU sees its own tokens only: the gradient of the weight has to be summed over the
    tensor-parallel group before the optimizer steps. Where scores are sigmoids, the product is in fp32, as transformers
    and DeepSeek-V3 have it.
    """

    function: type[Function] = expert_functions.RouterFunction

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, *, exact: bool = False) -> None:
        super().__init__(inputs, outputs, dtype)
        self._exact = exact

    def settings(self) -> tuple[Any, ...]:
        """Of x weight^T, and whether it is in fp32."""
        return *super().settings(), self._exact


class Choose(OperatorModule):
    """The experts of each token, their shares, and where its copies go, which GPUs tell each other.

    Scores that are sigmoids have a bias, with which experts are chosen and nothing is computed: no gradient changes it.
    It is in fp32: bf16 would round differences of experts off. Where updates move it (`Experts.bias_step`), the buffer
    of its gradient has how many tokens chose each expert (DeepSeek-V3, section 2.1.2).
    """

    function: type[Function] = expert_functions.ChooseFunction
    bias: Tensor
    bias_gradient: Tensor

    def __init__(self, experts: Experts, mesh: Mesh, dtype: torch.dtype) -> None:
        super().__init__()
        self._experts, self._counts, self._dtype = experts, mesh.counts, dtype
        self.has_bias = experts.score is RouterScore.SIGMOID
        if self.has_bias:
            add_weight(self, "bias", torch.zeros(experts.count))

    def settings(self) -> tuple[Experts, Communicator | None, torch.dtype, tuple[Tensor, Tensor] | None]:
        """Of logits [batch, tokens, experts] and the balance of the microbatch, if there is one."""
        bias = weight_of(self, "bias", "bias_gradient") if self.has_bias else None
        return self._experts, self._counts, self._dtype, bias


class Permute(OperatorModule):
    """Copies of tokens in the order of their experts, which go to the GPUs of these."""

    function: type[Function] = expert_functions.PermuteFunction


class Sort(OperatorModule):
    """Copies that came from several GPUs in the order of this one's experts."""

    function: type[Function] = expert_functions.SortFunction


class Unsort(OperatorModule):
    """Results in the order in which copies came; they go back to where these came from."""

    function: type[Function] = expert_functions.UnsortFunction


class GroupedLinear(Linear):
    """A matrix product for each expert of this GPU; the weight has one expert's outputs below the other's."""

    function: type[Function] = expert_functions.GroupedLinearFunction

    def __init__(
        self, experts: int, inputs: int, outputs: int, dtype: torch.dtype, *, after: Boundary | None = None
    ) -> None:
        super().__init__(inputs, experts * outputs, dtype, after=after)


class Fork(OperatorModule):
    """Tokens for routed experts, and for a shared one."""

    function: type[Function] = expert_functions.ForkFunction


class Join(OperatorModule):
    """The sum of what routed experts and a shared one give, the latter times the sigmoid of its gate if it has one."""

    function: type[Function] = expert_functions.JoinFunction


class Merge(OperatorModule):
    """The sum of a token's results, each times its share."""

    function: type[Function] = expert_functions.MergeFunction

    def __init__(self, scale: float) -> None:
        super().__init__()
        self._scale = scale

    def settings(self) -> tuple[float]:
        """What the sum is multiplied by."""
        return (self._scale,)
