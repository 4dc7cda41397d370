"""The truths that are searched: GPUs that the GPU model, as configured, does not describe.

Whoever plans with the GPU model must not be tested on it. Each seed draws another GPU: every coefficient of the model
is off by up to 30 %. With even seeds the laws are the model's (`perturbed`), with odd ones they differ, too
(`other-laws`).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from kareus.arrays import generator
from kareus.gpu_model import model
from kareus.gpu_model.coefficients import COEFFICIENTS, SHARES
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.laws import Array
from kareus.gpu_model.model import Behaviour
from kareus.graph.records import Partition
from kareus.testbed.simulated_testbed import RunProgram
from yardstick import other_laws

PERTURBATION = 0.3
"""Largest relative error of a coefficient."""

RunSchedules = Callable[[Gpu, Partition, Array, Array, Array], Behaviour]


class TruthKind(StrEnum):
    """What is wrong about the GPU model."""

    PERTURBED = "perturbed"
    """Its coefficients."""
    OTHER_LAWS = "other-laws"
    """Its coefficients and its laws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One GPU, and the laws that it follows."""

    kind: TruthKind
    gpu: Gpu
    run_program: RunProgram
    run_schedules: RunSchedules


def truth_of(nominal: Gpu, seed: int) -> Truth:
    """The truth of a seed; even seeds keep the laws of the GPU model, odd seeds do not."""
    gpu = perturbed(nominal, generator(seed, "truth"))
    if seed % 2 == 0:
        return Truth(
            kind=TruthKind.PERTURBED, gpu=gpu, run_program=model.run_program, run_schedules=model.run_schedules
        )
    return Truth(
        kind=TruthKind.OTHER_LAWS,
        gpu=gpu,
        run_program=other_laws.run_program,
        run_schedules=other_laws.run_schedules,
    )


def perturbed(gpu: Gpu, random: np.random.Generator) -> Gpu:
    """The GPU with every coefficient multiplied by a factor, uniform within `PERTURBATION`, as far as it is allowed."""
    values = dataclasses.asdict(gpu.coefficients)
    factors = random.uniform(1 - PERTURBATION, 1 + PERTURBATION, size=len(values)).tolist()
    drawn = {
        name: min(max(value * factor, COEFFICIENTS[name].least), 1.0 if name in SHARES else COEFFICIENTS[name].most)
        for (name, value), factor in zip(values.items(), factors, strict=True)
    }
    return dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, **drawn))
