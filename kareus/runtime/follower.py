"""What a stage must do next, and at which clock: holds a pipeline to the order of its plan.

A library runs the pipeline; a plan is only worth something if it runs in the planned order. So every instruction asks
here before it starts, and a departure stops the run.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kareus.device.controller import ClockControl
from kareus.errors import EngineError
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.schedules.work import Work, described
from kareus.plans.document import Plan
from kareus.workload.config import Workload


@dataclass(frozen=True, slots=True)
class Cue:
    """One instruction of a stage."""

    work: Work
    frequency_mhz: int | None
    """Clock that it is planned at; None where nothing is planned."""


def cues_of(workload: Workload, plan: Plan | None, stage: int) -> tuple[Cue, ...]:
    """Instructions of `stage` in one iteration, in order: the plan's, or the schedule's at any clock."""
    if plan is not None:
        own = plan.stages[stage].instructions
        return tuple(Cue(Work(i.direction, i.microbatch, i.chunk), i.frequency_mhz) for i in own)
    instructions = [i for i in instructions_of(workload) if i.stage == stage]
    return tuple(Cue(Work(i.direction, i.microbatch, i.chunk), None) for i in instructions)


class Conductor:
    """Leads one stage through its iterations."""

    def __init__(
        self,
        stage: int,
        cues: tuple[Cue, ...],
        clocks: ClockControl,
        wait: Callable[[], None],
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Lead `stage` through `cues`.

        Args:
            stage: number of the stage.
            cues: its instructions in one iteration.
            clocks: where frequencies are sent.
            wait: returns once the GPU has computed what was launched; the host runs ahead of it, and a clock that is
                asked for too early changes under the instruction before.
            progress: told of every instruction.
        """
        self._stage = stage
        self._cues = cues
        self._clocks = clocks
        self._wait = wait
        self._progress = progress
        self._next = 0
        self._frequency_mhz: int | None = None

    def begin(self, work: Work) -> None:
        """Announce an instruction that is about to start; asks for its clock.

        Raises:
            EngineError: it is not the one that is planned next.
            DeviceError: the clock cannot be set.
        """
        expected = self._cues[self._next] if self._next < len(self._cues) else None
        if expected is None or expected.work != work:
            planned = described(self._stage, expected.work) if expected else "the iteration's end"
            raise EngineError(
                f"{described(self._stage, work)}: the plan has {planned} here; run a plan of this pipeline schedule."
            )
        self._next += 1
        if self._progress is not None:
            self._progress(described(self._stage, work))
        if expected.frequency_mhz is not None and expected.frequency_mhz != self._frequency_mhz:
            self._wait()
            self._clocks.request(expected.frequency_mhz)
            self._frequency_mhz = expected.frequency_mhz

    def end_iteration(self) -> None:
        """Check that everything ran.

        Raises:
            EngineError: an instruction did not.
        """
        if self._next != len(self._cues):
            missing = described(self._stage, self._cues[self._next].work)
            raise EngineError(f"{missing}: planned and did not run; run a plan of this pipeline schedule.")
        self._next = 0
