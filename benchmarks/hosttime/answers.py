"""Operators and communicators that compute once and from then on answer at once, so that only the engine takes time.

What is left is what the engine does around the functions that it launches: passes, turns, values by name, records,
collectives as objects. An answer costs a call of Python, which counts as the engine's. Communicators answer whole: how
they launch the collectives of each sequence (`TokenCollectives`), with sequence parallelism, is left out, too.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

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
        self.before, self.after, self.arguments = operator.before, operator.after, operator.arguments


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


class AnsweringCommunicator:
    """A communicator that answers."""

    def __init__(self, communicator: Any, answers: Answers) -> None:
        self.size, self.rank = communicator.size, communicator.rank
        self.all_reduce, self.all_gather, self.reduce_scatter, self.gather_tokens, self.scatter_tokens = (
            _answering(method, answers)
            for method in (
                communicator.all_reduce,
                communicator.all_gather,
                communicator.reduce_scatter,
                communicator.gather_tokens,
                communicator.scatter_tokens,
            )
        )


def _answering(method: Callable[..., Any], answers: Answers) -> Callable[..., Any]:
    def answer(*arguments: Any) -> Any:
        take = answers.take
        return answers.keep(method(*arguments)) if take is None else take()

    return answer


def answering_steps(layers: Sequence[Sequence[LayerStep]], answers: Answers) -> list[list[LayerStep]]:
    """Return the steps of layers, with operators that answer."""
    return [
        [dataclasses.replace(step, operator=AnsweringOperator(step.operator, answers)) for step in layer]  # type: ignore[arg-type]
        for layer in layers
    ]
