"""The plan follower: holds a pipeline stage to the order of its plan, and asks for the planned clocks.

PyTorch runs the pipeline; a plan is only worth something if it runs in the planned order. Every instruction is
announced here before it starts, and one out of order stops the run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mode

from kareus.device.controller import ClockControl
from kareus.errors import EngineError
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction
from kareus.pipeline.instructions import instructions_of
from kareus.plans.document import Plan
from kareus.workload.config import Workload
from kareus.workload.slices import cut


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One instruction of a stage and its clock."""

    key: InstructionKey
    frequency_mhz: int | None
    """Planned SM clock; None where nothing is planned."""


def planned_steps(workload: Workload, plan: Plan | None, stage: int) -> tuple[PlannedStep, ...]:
    """Return the steps of `stage` in one iteration, in order: the plan's, or the schedule's without clocks."""
    if plan is not None:
        return tuple(PlannedStep(key, mhz) for key, mhz in plan.clocks(stage))
    keys = (i.key for i in instructions_of(cut(workload, "pipeline")))
    return tuple(PlannedStep(key, None) for key in keys if key.stage == stage)


class PlanFollower:
    """Follows one stage through its iterations."""

    def __init__(
        self,
        steps: tuple[PlannedStep, ...],
        clocks: ClockControl,
        wait: Callable[[], None],
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Follow a stage through `steps`.

        Args:
            steps: instructions of the stage in one iteration, in order.
            clocks: where frequencies are sent.
            wait: returns once the GPU has computed what was launched; the host runs ahead of it, and a clock that is
                requested too early changes during the instruction before.
            progress: called with every instruction in words.
        """
        self._steps = steps
        self._clocks = clocks
        self._wait = wait
        self._progress = progress
        self._next = 0
        self._frequency_mhz: int | None = None

    @property
    def expected(self) -> PlannedStep | None:
        """The step that is planned next; None where the iteration is planned to end."""
        return self._steps[self._next] if self._next < len(self._steps) else None

    def follow(self, steps: tuple[PlannedStep, ...]) -> None:
        """Take other steps from the next iteration on; call it between two iterations.

        Where none of them has a clock, the one that was asked for last is left to the driver.
        """
        assert not self._next, "an iteration is under way"
        self._steps = steps
        if self._frequency_mhz is not None and all(step.frequency_mhz is None for step in steps):
            self._wait()
            self._clocks.leave()
            self._frequency_mhz = None

    @property
    def order(self) -> tuple[InstructionKey, ...]:
        """Instructions of the stage in one iteration."""
        return tuple(step.key for step in self._steps)

    def begin(self, key: InstructionKey) -> None:
        """Check an instruction that is about to start, and request its clock.

        Raises:
            EngineError: it is not the one that is planned next.
            DeviceError: the clock cannot be set.
        """
        expected = self.expected
        if expected is None or expected.key != key:
            planned = expected.key if expected else "the iteration's end"
            raise EngineError(f"{key}: the plan has {planned} here; run a plan of this pipeline schedule.")
        self._next += 1
        if self._progress is not None:
            self._progress(str(key))
        self._request(expected.frequency_mhz)

    def begin_evaluation(self) -> None:
        """Request the clock that most of the forwards have, for forwards that no step is planned for.

        The update that they follow has the lowest clock of all, which is right for it alone.

        Raises:
            DeviceError: the clock cannot be set.
        """
        forwards = [step.frequency_mhz for step in self._steps if step.key.direction is Direction.FORWARD]
        if forwards:
            self._request(mode(forwards))

    def _request(self, frequency_mhz: int | None) -> None:
        if frequency_mhz is not None and frequency_mhz != self._frequency_mhz:
            self._wait()
            self._clocks.request(frequency_mhz)
            self._frequency_mhz = frequency_mhz

    def abandon_iteration(self) -> None:
        """Begin anew, as an iteration that failed amid its instructions is run again."""
        self._next = 0

    def end_iteration(self) -> None:
        """Check that every planned instruction ran, and that its clock could be set.

        Raises:
            EngineError: one did not run.
            DeviceError: the clock that was asked for last was refused; there may be no other request that says so.
        """
        if self._next != len(self._steps):
            missing = self._steps[self._next].key
            raise EngineError(f"{missing}: planned and did not run; run a plan of this pipeline schedule.")
        self._next = 0
        self._clocks.check()
