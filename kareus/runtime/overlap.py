"""Execution of passes: one with exposed collectives, or two staggered, each overlapped with the other's collectives."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from kareus.errors import EngineError
from kareus.model.passes import CollectiveCall, Cut, Pass, PassEvent, Ready
from kareus.model.steps import Start
from kareus.runtime.schedules import Turn


@contextmanager
def _below_autograd() -> Iterator[None]:
    """Dispatch operations past autograd, as passes have their own backward, and past its notes of views and changes.

    These notes cost the host a fourth of a view's time, and as much of an operation that writes into its operand.
    """
    with torch.no_grad(), torch._C._AutoDispatchBelowADInplaceOrView():
        yield


@_below_autograd()
def run_alone(running: Pass, sm_count: int | None) -> Tensor:
    """Run one pass; a collective is hidden only behind weight gradients of its own segment, as in Megatron-LM.

    Args:
        running: the pass.
        sm_count: SMs of every collective.
    """
    nanobatch = _Nanobatch(running)
    for event in nanobatch.events:
        if isinstance(event, Ready):
            event.exchange.launch(sm_count)
        elif isinstance(event, CollectiveCall) and not event.launched:
            event.launch(sm_count)
    return nanobatch.result


@_below_autograd()
def run_staggered(running: Sequence[Pass], turns: Sequence[Turn], sm_count: int | None) -> list[Tensor]:
    """Run two passes in turns: each segment overlaps the collective that the other pass has reached.

    Args:
        running: the two passes.
        turns: of the one and the other.
        sm_count: SMs of collectives that no segment runs beside, as the last one.

    Raises:
        EngineError: the passes reach other collectives than `turns` say.
    """
    nanobatches = [_Nanobatch(each) for each in running]
    reached: list[CollectiveCall | None] = [None for _ in nanobatches]
    for turn in turns:
        ready, other = reached[turn.nanobatch], reached[1 - turn.nanobatch]
        if ready is not None and not ready.launched:
            ready.launch(sm_count)
        reached[turn.nanobatch] = nanobatches[turn.nanobatch].segment(turn, other)
    for call in reached:
        if call is not None and not call.launched:
            call.launch(sm_count)
    return [nanobatch.finish() for nanobatch in nanobatches]


class _Nanobatch:
    """A pass that is run segment by segment."""

    def __init__(self, running: Pass) -> None:
        self.result: Tensor
        self.events = self._watched(running)

    def segment(self, turn: Turn, other: CollectiveCall | None) -> CollectiveCall | None:
        """Run to the segment's end and return its collective; launch `other` beside the operator that `turn` says.

        The first and last segments of an instruction are shorter than those between: they lack the end of a block
        before, or the start of one after. Where a segment ends before its launch operator, `other` is launched there.
        """
        place, least, follows_product = 0, 0, False
        reached = None
        waiting = other if other is not None and not other.launched else None
        for event in self.events:
            if isinstance(event, Start):
                if waiting is None:
                    continue
                if not event.memory_bound:
                    place = next((n for n in turn.places.get(event.name, ()) if n >= least), place)
                elif follows_product:
                    place += 1  # memory-bound neighbours are one operator
                follows_product = not event.memory_bound
                least = place + follows_product
                if place >= turn.launch:
                    waiting.launch(turn.sm_count)
                    waiting = None
            elif isinstance(event, CollectiveCall):
                reached = event
                break
            elif isinstance(event, Cut):
                break
        if waiting is not None:
            waiting.launch(turn.sm_count)
        return _checked(turn, reached)

    def finish(self) -> Tensor:
        """Run what follows the last collective."""
        for event in self.events:
            if isinstance(event, CollectiveCall):
                raise _mismatch(None, event)
        return self.result

    def _watched(self, running: Pass) -> Generator[PassEvent, None, None]:
        self.result = yield from running


def _checked(turn: Turn, reached: CollectiveCall | None) -> CollectiveCall | None:
    if (None if reached is None else reached.exchange.kind) is not turn.ends_with:
        raise _mismatch(turn, reached)
    return reached


def _mismatch(turn: Turn | None, reached: CollectiveCall | None) -> EngineError:
    expected = turn.ends_with if turn else None
    return EngineError(
        f"the operator graph ends a segment with {expected or 'no collective'}, the model with "
        f"{reached.exchange.kind if reached else 'none'}; extract the partitions of this workload anew."
    )
