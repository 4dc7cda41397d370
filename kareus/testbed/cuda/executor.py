"""Running a program over and over on one device."""

from collections.abc import Sequence

import torch

from kareus.graph.records import Program, Step
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
        operators = {operator for step in program.steps for operator in step.operators}
        # The largest first, so that the buffers seldom grow while views of smaller ones are held.
        largest_first = sorted(operators, key=lambda o: (-o.bytes_read - o.bytes_written, o.name))
        launches = {operator: prepare(operator, scratch) for operator in largest_first}
        starters: dict[object, Starter] = {}
        for step in program.steps:
            if step.collective is not None and (step.collective, step.sm_count) not in starters:
                starters[step.collective, step.sm_count] = collectives.prepare(step.collective, step.sm_count)
        self._steps = [
            _prepared(step, [launches[o] for o in step.operators], starters.get((step.collective, step.sm_count)))
            for step in program.steps
        ]
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


def _prepared(step: Step, launches: Sequence[Launch], start: Starter | None) -> Launch:
    before, beside = launches[: step.launch], launches[step.launch :]

    def run() -> None:
        for launch in before:
            launch()
        handle = start() if start else None
        for launch in beside:
            launch()
        if handle:
            handle.wait()

    return run
