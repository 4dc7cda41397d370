"""Operators and communicators that compute once and from then on answer at once, so that only the engine takes time.

What is left is what the engine does around the functions that it launches: passes, turns, values by name, records,
collectives as objects, and with sequence parallelism the tensors of each sequence that a collective is given
(`TokenCollectives`). An answer costs a call of Python, which counts as the engine's.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from kareus.model.communication import SUM
from kareus.model.communicators.tokens import TokenCollectives
from kareus.model.functions import Context, add_or_put_off, weight_gradients_put_off
from kareus.model.steps import LayerStep


class Answers:
    """What functions and communicators returned in a first run, which later runs get in the same order."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self.take: Callable[[], Any] | None = None
        """Returns the next answer; None in the first run, which computes."""

    def begin(self) -> None:
        """Begin a run."""
        self.take = iter(self._kept).__next__ if self._kept else None

    def keep(self, answer: Any) -> Any:
        """Keep and return what was computed."""
        self._kept.append(answer)
        return answer


class AnsweringOperator:
    """An operator whose function answers; everything else is the operator's."""

    def __init__(self, operator: Any, answers: Answers) -> None:
        self._operator = operator
        self.function = _AnsweringFunction(operator.function, answers)
        self.before, self.after, self.settings = operator.before, operator.after, operator.settings


class _AnsweringFunction:
    def __init__(self, function: Any, answers: Answers) -> None:
        self._function = function
        self._answers = answers

    def forward(self, context: Context, *arguments: Any) -> Any:
        take = self._answers.take
        return self._answers.keep(self._function.forward(context, *arguments)) if take is None else take()

    def backward(self, context: Context, *gradients: Tensor) -> Any:
        take = self._answers.take
        result, puts_off = self._answers.keep(self._run_backward(context, *gradients)) if take is None else take()
        if puts_off:
            add_or_put_off(_nothing)
        return result

    def _run_backward(self, context: Context, *gradients: Tensor) -> tuple[Any, bool]:
        with weight_gradients_put_off() as later:
            result = self._function.backward(context, *gradients)
        return result, bool(later)


def _nothing() -> None:
    """Add no weight gradient."""


class AnsweringCommunicator(TokenCollectives):
    """A communicator that answers."""

    def __init__(self, communicator: Any, answers: Answers) -> None:
        self.size, self.rank = communicator.size, communicator.rank
        self._answers = answers
        self._communicator = communicator

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = SUM) -> Any:
        """Answer."""
        take = self._answers.take
        return self._answers.keep(self._communicator.all_reduce(tensors)) if take is None else take()

    def all_gather(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Any:
        """Answer."""
        take = self._answers.take
        return self._answers.keep(self._communicator.all_gather(tensors, None, into)) if take is None else take()

    def reduce_scatter(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Any:
        """Answer."""
        take = self._answers.take
        return self._answers.keep(self._communicator.reduce_scatter(tensors, None, into)) if take is None else take()


def answering_steps(layers: Sequence[Sequence[LayerStep]], answers: Answers) -> list[list[LayerStep]]:
    """Return the steps of layers, with operators that answer."""
    return [
        [dataclasses.replace(step, operator=AnsweringOperator(step.operator, answers)) for step in layer]  # type: ignore[arg-type]
        for layer in layers
    ]
