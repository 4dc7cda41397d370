"""The simulated testbed: sessions in virtual time, with the instruments of a real one and their flaws."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from kareus.arrays import generator
from kareus.artifacts.provenance import TestbedIdentity
from kareus.gpu_model.energy import resting_power_w
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import Behaviour, run_program
from kareus.gpu_model.thermal import Interval
from kareus.gpu_model.trust import MODEL_VERSION, trust
from kareus.graph.records import Program
from kareus.testbed.config import TestbedConfig
from kareus.testbed.protocol import ClockReport, Session

RunProgram = Callable[[Gpu, Program, float], Behaviour]
"""The laws of a GPU: what one execution of a program does at a requested clock."""

PREDECESSOR_S = 60.0
"""Time for which the standard predecessor ran: long enough for its heat to have settled."""


class SimulatedTestbed:
    """Implements `kareus.testbed.protocol.Testbed` without a GPU.

    A measurement is a pure function of its identity and the seed: noise is drawn from both, and every
    session starts as hot as one standard predecessor left the GPU.
    """

    def __init__(
        self, *, config: TestbedConfig, gpu: Gpu, predecessor_power_w: float, seed: int, run: RunProgram | None = None
    ) -> None:
        """Make a testbed of GPUs like `gpu` that follow the laws `run`; None is the GPU model.

        The programs of one workload share most of their steps, so that it remembers what a step costs.
        """
        self.config = config
        self.gpu = gpu
        self._predecessor_power_w = predecessor_power_w
        self._seed = seed
        self._run = run or functools.partial(run_program, step_costs={})

    @property
    def identity(self) -> TestbedIdentity:
        """Identity of the testbed: simulated, version of the laws, and their known errors."""
        detail = f"GPU model version {MODEL_VERSION}, {trust(self.gpu)}"
        return TestbedIdentity(kind="simulated", gpu=self.gpu.name, detail=detail)

    @contextlib.contextmanager
    def session(self, program: Program, measurement: str) -> Iterator[Session]:
        """Load `program` on a GPU that the standard predecessor has just left."""
        random = generator(self._seed, measurement)
        yield SimulatedSession(self.gpu, program, self.config, random, self._predecessor_power_w, self._run)


@dataclass(frozen=True, slots=True)
class _Noise:
    """What makes two measurements of the same thing differ."""

    time_factor: float
    power_factor: float
    counter_phase_s: float


def _draw_noise(config: TestbedConfig, random: np.random.Generator) -> _Noise:
    return _Noise(
        time_factor=1 + config.time_noise * float(random.standard_normal()),
        power_factor=1 + config.power_noise * float(random.standard_normal()),
        counter_phase_s=config.counter_period_s * float(random.random()),
    )


class SimulatedSession:
    """Implements `kareus.testbed.protocol.Session` in virtual time."""

    def __init__(
        self,
        gpu: Gpu,
        program: Program,
        config: TestbedConfig,
        random: np.random.Generator,
        predecessor_power_w: float,
        run: RunProgram,
    ) -> None:
        """Start where the standard predecessor ends."""
        self._gpu = gpu
        self._program = program
        self._config = config
        self._random = random
        self._noise = _draw_noise(config, random)
        self._run = run
        self._frequency_mhz = gpu.maximum_clock_mhz
        self._behaviour: Behaviour | None = None  # at the clock that is set, once something ran
        self._now_s = 0.0
        self._energy_j = 0.0
        self._temperature_c = gpu.ambient_c
        self._counter_j = 0.0
        self._clock = ClockReport(mean_mhz=self._frequency_mhz, throttle_reasons=())
        self._advance(PREDECESSOR_S, predecessor_power_w)

    def set_clock(self, frequency_mhz: int) -> None:
        """Lock the clock; takes no time."""
        self._frequency_mhz = frequency_mhz
        self._behaviour = None
        self._clock = ClockReport(mean_mhz=frequency_mhz, throttle_reasons=())

    def execute(self, repetitions: int) -> None:
        """Run the program back to back."""
        behaviour = self._behaviour = self._behaviour or self._run(self._gpu, self._program, self._frequency_mhz)
        reasons = ("power-limit",) if behaviour.power_limited else ()
        self._clock = ClockReport(mean_mhz=float(behaviour.mean_clock_mhz), throttle_reasons=reasons)
        duration_s = repetitions * float(behaviour.time_s) * self._noise.time_factor
        self._advance(duration_s, float(behaviour.power_w) * self._noise.power_factor)

    def rest(self, duration_s: float) -> None:
        """Idle at static power."""
        self._advance(duration_s, resting_power_w(self._gpu))

    def now_s(self) -> float:
        """Virtual time."""
        return self._now_s

    def energy_j(self) -> float:
        """The counter: energy up to its last update."""
        return self._counter_j

    def temperature_c(self) -> float:
        """Temperature of the chip."""
        return self._temperature_c

    def begin_trial(self) -> None:
        """Draw other noise; heat, time and the counter's ticks go on."""
        drawn = _draw_noise(self._config, self._random)
        self._noise = dataclasses.replace(drawn, counter_phase_s=self._noise.counter_phase_s)

    def clock_report(self) -> ClockReport:
        """What the last execution's clock did."""
        return self._clock

    def _advance(self, duration_s: float, power_w: float) -> None:
        interval = Interval(power_w, self._temperature_c, self._gpu.ambient_c, self._gpu.coefficients)
        since_update_s = self._since_update_s(self._now_s + duration_s)
        if since_update_s <= duration_s:  # else the counter has not ticked meanwhile
            self._counter_j = self._energy_j + float(interval.energy_j(duration_s - since_update_s))
        self._now_s += duration_s
        self._energy_j += float(interval.energy_j(duration_s))
        self._temperature_c = float(interval.temperature_c(duration_s))

    def _since_update_s(self, now_s: float) -> float:
        return math.fmod(now_s + self._noise.counter_phase_s, self._config.counter_period_s)
