"""Operators and communicators that compute once and from then on answer at once, so that only the engine takes time.

What is left is what the engine does around the functions that it launches: passes, turns, values by name, records,
collectives as objects. An answer costs a call of Python, which counts as the engine's.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from kareus.model.functions import Context, add_or_put_off, weight_gradients_put_off
from kareus.model.steps import LayerStep


class Answers:
    """What functions and communicators returned in a first run, which later runs get in the same order."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._left: Iterator[Any] | None = None

    def begin(self) -> None:
        """Begin a run; the first one computes."""
        self._left = iter(self._kept) if self._kept else None

    def answer(self, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Return what `compute` returns, of the arguments of the first run."""
        if self._left is not None:
            return next(self._left)
        self._kept.append(compute(*arguments))
        return self._kept[-1]


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
        return self._answers.answer(self._function.forward, context, *arguments)

    def backward(self, context: Context, *gradients: Tensor) -> Any:
        result, puts_off = self._answers.answer(self._run_backward, context, *gradients)
        if puts_off:
            add_or_put_off(_nothing)
        return result

    def _run_backward(self, context: Context, *gradients: Tensor) -> tuple[Any, bool]:
        with weight_gradients_put_off() as later:
            result = self._function.backward(context, *gradients)
        return result, bool(later)


def _nothing() -> None:
    """Add no weight gradient."""


class AnsweringCommunicator(NamedTuple):
    """A communicator that answers."""

    communicator: Any
    answers: Answers

    def __getattr__(self, name: str) -> Any:
        """Methods and attributes of the communicator."""
        found = getattr(self.communicator, name)
        return (lambda *arguments: self.answers.answer(found, *arguments)) if callable(found) else found


def answering_steps(layers: Sequence[Sequence[LayerStep]], answers: Answers) -> list[list[LayerStep]]:
    """Return the steps of layers, with operators that answer."""
    return [[step._replace(operator=AnsweringOperator(step.operator, answers)) for step in layer] for layer in layers]  # type: ignore[arg-type]
