"""The GPU model: what a program does at a requested clock, once the power limit has had its say."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from kareus.testbed.program import Program, Step
from kareus.testbed.simulated import energy
from kareus.testbed.simulated.overlap import step_time_s
from kareus.workload.config import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """One execution of a program on one GPU, at the reference temperature, free of noise."""

    time_s: float
    energy_j: float
    mean_clock_mhz: float
    """Mean of the clock over time; below the requested one if the power limit pulled it down."""
    power_limited: bool

    @property
    def power_w(self) -> float:
        """Mean power."""
        return self.energy_j / self.time_s


class GpuModel:
    """Evaluates programs on one kind of GPU, remembering steps that it has seen."""

    def __init__(self, gpu: Gpu) -> None:
        """Make a model of `gpu`."""
        self.gpu = gpu
        self._steps: dict[tuple[Step, float], tuple[float, float]] = {}

    def evaluate(self, program: Program, frequency_mhz: float) -> Behaviour:
        """What one execution of `program` does when `frequency_mhz` is asked for.

        At the power limit the clock alternates between the requested one and a lower one so that mean power
        meets the limit. Power is convex in the clock, so that costs more than a steady clock of the same
        mean (paper, appendix A).
        """
        requested = self.steady(program, frequency_mhz)
        limit_w = self.gpu.power_limit_w
        if requested.power_w <= limit_w:
            return requested
        lower = self._under_limit(program, frequency_mhz)
        if lower.power_w >= limit_w:
            return dataclasses.replace(lower, power_limited=True)
        excess_j = requested.energy_j - limit_w * requested.time_s
        reserve_j = limit_w * lower.time_s - lower.energy_j
        share = reserve_j / (excess_j + reserve_j)
        time_s = share * requested.time_s + (1 - share) * lower.time_s
        clock_cycles = share * requested.time_s * frequency_mhz + (1 - share) * lower.time_s * lower.mean_clock_mhz
        return Behaviour(
            time_s=time_s,
            energy_j=share * requested.energy_j + (1 - share) * lower.energy_j,
            mean_clock_mhz=clock_cycles / time_s,
            power_limited=True,
        )

    def steady(self, program: Program, frequency_mhz: float) -> Behaviour:
        """What `program` does at a steady clock, with no power limit."""
        results = [self._step(step, frequency_mhz) for step in program.steps]
        time_s, switching_j = (sum(column) for column in zip(*results, strict=True))
        power_w = self.gpu.static_power_w + energy.clock_power_w(self.gpu, frequency_mhz)
        energy_j = switching_j + power_w * time_s
        if program.whole_instruction:
            time_s, energy_j = self.gpu.whole_instruction(time_s, energy_j)
        return Behaviour(time_s=time_s, energy_j=energy_j, mean_clock_mhz=frequency_mhz, power_limited=False)

    def _step(self, step: Step, frequency_mhz: float) -> tuple[float, float]:
        """Time and switching energy of one step."""
        if (step, frequency_mhz) not in self._steps:
            switching_j = sum(energy.operator_energy_j(self.gpu, o, frequency_mhz) for o in step.operators)
            if step.collective:
                switching_j += energy.collective_energy_j(self.gpu, step.collective, frequency_mhz)
            self._steps[step, frequency_mhz] = (step_time_s(self.gpu, step, frequency_mhz), switching_j)
        return self._steps[step, frequency_mhz]

    def _under_limit(self, program: Program, frequency_mhz: float) -> Behaviour:
        """The first clock, in throttle steps down from the requested one, at which power is within the limit."""
        lower = None
        for clock_mhz in self._throttled_clocks(frequency_mhz):
            lower = self.steady(program, clock_mhz)
            if lower.power_w <= self.gpu.power_limit_w:
                break
        assert lower is not None
        return lower

    def _throttled_clocks(self, frequency_mhz: float) -> Iterable[float]:
        step = self.gpu.coefficients.throttle_step_mhz
        lowest = step  # a GPU never stops: below this it would exceed its limit for a while
        clock_mhz = frequency_mhz - step
        while clock_mhz > lowest:
            yield clock_mhz
            clock_mhz -= step
        yield lowest
