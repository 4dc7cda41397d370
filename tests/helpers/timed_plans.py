"""Plans of two stages whose instructions have given times and energies."""

import dataclasses
from collections.abc import Sequence

from helpers.report_tables import plan
from kareus.plans.document import Plan

GPUS_OF_A_STAGE = 8


def timed_plan(costs: Sequence[Sequence[tuple[float, float, float]]], time_s: float) -> Plan:
    """A plan whose stages run instructions of these (gap before, time, energy)."""
    base = plan("fastest", 0)
    first = base.stages[0].instructions[0]
    stages = []
    for stage, own in zip(base.stages, costs, strict=True):
        at_s, instructions = 0.0, []
        for gap_s, duration_s, energy_j in own:
            instructions.append(dataclasses.replace(first, start_s=at_s + gap_s, time_s=duration_s, energy_j=energy_j))
            at_s += gap_s + duration_s
        stages.append(dataclasses.replace(stage, instructions=tuple(instructions)))
    prediction = dataclasses.replace(base.prediction, time_s=time_s)
    return dataclasses.replace(base, stages=tuple(stages), prediction=prediction)
