"""Times by a GPU's events, on the host's clock, from events that are made up."""

from dataclasses import dataclass

import pytest
import torch

from kareus.adapters.stopwatch import CudaStopwatch, Mark, stopwatch_of


@dataclass
class MadeUpEvent:
    """An event of CUDA: the GPU's clock when it was reached, in milliseconds."""

    reached_ms: float = 0.0
    done: bool = True

    def query(self) -> bool:
        return self.done

    def elapsed_time(self, later: "MadeUpEvent") -> float:
        return later.reached_ms - self.reached_ms


def marks(*moments: tuple[float, float]) -> list[Mark]:
    """Marks that the host asked for, and that the GPU reached, at these seconds of their own clocks."""
    return [Mark(host_s, MadeUpEvent(1e3 * reached_s)) for host_s, reached_s in moments]  # type: ignore[arg-type]


def test_a_host_ahead_of_the_gpu_does_not_move_times() -> None:
    # The GPU's clock is 100 s behind. The host waits before the first mark, then runs ahead by up to 3 s.
    found = CudaStopwatch().times_s(marks((1000.0, 900.0), (1000.1, 902.0), (1001.0, 904.0)))
    assert found == pytest.approx([1000.0, 1002.0, 1004.0])


def test_the_mark_that_the_host_waited_for_tells_the_clocks() -> None:
    found = CudaStopwatch().times_s(marks((1000.0, 901.5), (1003.0, 903.0), (1003.5, 905.0)))
    assert found == pytest.approx([1001.5, 1003.0, 1005.0])


def test_marks_that_the_gpu_has_not_reached_have_no_times() -> None:
    several = marks((1000.0, 900.0), (1001.0, 901.0))
    several[0].event.done = False  # type: ignore[union-attr]
    watch = CudaStopwatch()
    assert watch.times_s(several) is None
    several[0].event.done = True  # type: ignore[union-attr]
    assert watch.times_s(several) == pytest.approx([1000.0, 1001.0])


def test_events_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[MadeUpEvent] = []

    def event(*, enable_timing: bool) -> MadeUpEvent:
        assert enable_timing
        made.append(MadeUpEvent())
        return made[-1]

    monkeypatch.setattr(MadeUpEvent, "record", lambda self: None, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", event)
    watch = stopwatch_of(torch.device("cuda"))
    for _ in range(3):
        assert watch.times_s([watch.mark(), watch.mark()]) is not None
    assert len(made) == 2


def test_a_cpu_has_run_what_it_was_given() -> None:
    watch = stopwatch_of(torch.device("cpu"))
    first, second = watch.mark(), watch.mark()
    assert watch.times_s([first, second]) == [first.host_s, second.host_s]
