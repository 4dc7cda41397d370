"""Observations: measured times and powers of known programs, and the temperatures at which they were measured."""

from dataclasses import dataclass

from kareus.artifacts.tables import Row
from kareus.calibrate.probes import Probe
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.thermal import window_temperature_c


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedProbe:
    """One measurement of a probe."""

    probe: Probe
    frequency_mhz: int
    time_s: float
    power_w: float | None
    """Mean power in the window; None where time alone was measured."""
    window_s: float
    before_c: float
    """Temperature at the start of the window, and at its end."""
    after_c: float

    def power_at_reference_w(self, gpu: Gpu) -> float | None:
        """Return what the power would have been at the reference temperature, by the leakage of `gpu`."""
        if self.power_w is None:
            return None
        c = gpu.coefficients
        mean_c = window_temperature_c(self.before_c, self.after_c, self.window_s, c)
        return self.power_w - c.leakage_w_per_c * (mean_c - c.reference_temperature_c)


def observed(probe: Probe, row: Row) -> ObservedProbe:
    """Return the observation of a row of `MEASUREMENTS` or of `LOOKS`.

    The latter have times alone: without a power, window and temperatures are 0, and nothing reads them.
    """
    with_energy = "energy_j" in row
    return ObservedProbe(
        probe=probe,
        frequency_mhz=row["frequency_mhz"],
        time_s=row["time_s"],
        power_w=row["energy_j"] / row["time_s"] if with_energy else None,
        window_s=row["window_s"] if with_energy else 0.0,
        before_c=row["temperature_before_c"] if with_energy else 0.0,
        after_c=row["temperature_after_c"] if with_energy else 0.0,
    )
