"""Running a program over and over on one device."""

from collections.abc import Mapping

import torch

from kareus.graph.records import Operator, Program, Step
from kareus.testbed.cuda.collectives import Collectives, Starter
from kareus.testbed.cuda.memory_bound import Launch
from kareus.testbed.cuda.operators import prepare
from kareus.testbed.cuda.scratch import Scratch


class Executor:
    """A program with all its memory, ready to run."""

    def __init__(self, program: Program, collectives: Collectives, device: torch.device) -> None:
        """Allocate, prepare and run once: Triton compiles and libraries make their handles, which nothing should time.

        Raises:
            KareusError: the program has an operator that no model makes.
        """
        self._device = device
        scratch = Scratch(device)
        parts = [part for step in program.steps for part in step.parts]
        operators = {operator for part in parts for operator in part.operators}
        # The largest first, so that the buffers seldom grow while views of smaller ones are held.
        largest_first = sorted(operators, key=lambda o: (-o.bytes_read - o.bytes_written, o.name))
        launches = {operator: prepare(operator, scratch) for operator in largest_first}
        starters: dict[object, Starter] = {}
        for part in parts:
            if part.collective is not None and (part.collective, part.sm_count) not in starters:
                starters[part.collective, part.sm_count] = collectives.prepare(part.collective, part.sm_count)
        self._steps = [_prepared(step, launches, starters) for step in program.steps]
        self._launch()

    def run(self, repetitions: int) -> None:
        """Run the program that often, back to back, and wait for its end."""
        for _ in range(repetitions):
            self._launch()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _launch(self) -> None:
        for step in self._steps:
            step()


def _prepared(step: Step, launches: Mapping[Operator, Launch], starters: Mapping[object, Starter]) -> Launch:
    along = [starters[inner.collective, inner.sm_count] for inner in step.along]
    within = [_prepared(inner, launches, starters) for inner in step.within]
    before = [launches[o] for o in step.operators[: step.launch]] + within
    beside = [launches[o] for o in step.operators[step.launch :]]
    start = starters.get((step.collective, step.sm_count))

    def run() -> None:
        handles = [begin() for begin in along]
        for launch in before:
            launch()
        if start:
            handles.append(start())
        for launch in beside:
            launch()
        for handle in handles:
            handle.wait()

    return run
