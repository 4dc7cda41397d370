"""Heat of profiles: what their windows measure of a chip.

A window begins right after a cooldown. So a program that draws little is measured at a lower temperature than one that
draws much, and leaks less for that alone: at 40 degC at 220 W, at 52 at 380 W (A100). So do real GPUs.
"""

from dataclasses import replace

import numpy as np

from kareus.gpu_model.energy import resting_power_w
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import Behaviour
from kareus.gpu_model.thermal import Interval
from kareus.profile.config import MeasurementProtocol
from kareus.testbed.simulated_testbed import PREDECESSOR_S

COUNTED_SHARE = 0.75
"""Of the time that the chip settles before an energy counter is read, which is twice the counter's interval: what it
says is half an interval old on average."""


def as_profiled(gpu: Gpu, protocol: MeasurementProtocol, behaviour: Behaviour) -> Behaviour:
    """Return what the protocol measures of a behaviour, without noise: its energy is at the temperature of its window.

    The same phases in the same order as `kareus.profile.measure.measure_once` on a simulated session.

    Args:
        gpu: GPU that is measured.
        protocol: phases of a measurement.
        behaviour: of programs at the GPU's reference temperature; arrays of any shape.
    """
    c, ambient_c, runs = gpu.coefficients, gpu.ambient_c, behaviour.time_s > 0
    time_s = np.where(runs, behaviour.time_s, 1.0)
    power_w, idle_w = behaviour.energy_j / time_s, resting_power_w(gpu)
    warming_s = time_s * (1 + np.maximum(1.0, np.ceil(protocol.warmup_s / time_s)))
    repetitions = np.maximum(1.0, np.ceil(protocol.window_s / time_s))
    cooldown_s = max(protocol.cooldown_s, protocol.settle_s)

    before_c = Interval(protocol.predecessor_power_w, ambient_c, ambient_c, c).temperature_c(PREDECESSOR_S)
    warm_c = Interval(power_w, before_c, ambient_c, c).temperature_c(warming_s)
    cooldown = Interval(idle_w, Interval(idle_w, warm_c, ambient_c, c).temperature_c(protocol.settle_s), ambient_c, c)
    window = Interval(power_w, cooldown.temperature_c(cooldown_s), ambient_c, c)
    settling = Interval(idle_w, window.temperature_c(repetitions * time_s), ambient_c, c)
    # The counter is read once the chip has settled; that is taken off at the idle power of the cooldown.
    rested_w = cooldown.energy_j(cooldown_s) / cooldown_s if cooldown_s else 0.0
    counted_s = COUNTED_SHARE * protocol.settle_s
    settled_j = settling.energy_j(counted_s) - rested_w * counted_s
    energy_j = (window.energy_j(repetitions * time_s) + settled_j) / repetitions
    return replace(behaviour, energy_j=np.where(runs, energy_j, 0.0))
