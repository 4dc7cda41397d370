"""The interface of a GPU's driver."""

from collections.abc import Sequence
from typing import Protocol

PROFILES = {
    "max-p": 0,
    "max-q": 1,
    "compute": 2,
    "memory-bound": 3,
    "network": 4,
    "balanced": 5,
    "llm-training": 7,
    "hmma-dense": 11,
    "sync-balanced": 12,
    "hpc": 13,
    "max-q-1": 15,
    "network-bound": 16,
    "training": 20,
    "max-q-2": 22,
    "max-q-3": 23,
}
"""Workload power profiles for training that NVIDIA's drivers have from Blackwell on, and their numbers
(`NVML_POWER_PROFILE_*` in nvml.h, nvidia-ml-py 13.615)."""


class Device(Protocol):
    """One GPU. `kareus.device.nvml.NvmlDevice` is a real one; every call may raise a `DeviceError`."""

    @property
    def uuid(self) -> str:
        """UUID of the GPU, such as `GPU-8f6c...`."""

    @property
    def name(self) -> str:
        """Product name, such as `NVIDIA H200`."""

    @property
    def driver(self) -> str:
        """Version of the driver."""

    def supported_clocks_mhz(self) -> tuple[int, ...]:
        """SM clocks that can be locked, ascending."""

    def lock_clock(self, frequency_mhz: int) -> None:
        """Lock the SM clock; returns when the driver has accepted it, which is before the clock has moved."""

    def reset_clock(self) -> None:
        """Return the SM clock to the driver, as after boot."""

    def power_limits_w(self) -> tuple[float, float]:
        """Return the least and the largest power limit that can be set."""

    def power_limit_w(self) -> float:
        """Return the power limit now."""

    def set_power_limit(self, limit_w: float) -> None:
        """Set the power limit; returns when the driver has accepted it."""

    def default_power_limit_w(self) -> float:
        """Return the power limit after boot."""

    def power_profiles(self) -> tuple[str, ...]:
        """Return the vendor's profiles that can be asked for, by name; none where the driver knows of none."""

    def requested_power_profiles(self) -> tuple[str, ...]:
        """Return those that are asked for, by anybody."""

    def enforced_power_profiles(self) -> tuple[str, ...]:
        """Return those of them that are in force: some exclude each other."""

    def request_power_profiles(self, names: Sequence[str]) -> None:
        """Ask for profiles, beside those that are asked for."""

    def clear_power_profiles(self, names: Sequence[str]) -> None:
        """Ask for profiles no longer."""

    def clock_mhz(self) -> int:
        """The SM clock now."""

    def throttle_reasons(self) -> tuple[str, ...]:
        """Return the reasons for a clock below the locked one, such as `power-limit`; `idle` if nothing runs."""

    def energy_j(self) -> float:
        """Reading of the energy counter, which the driver updates about every 0.1 s."""

    def temperature_c(self) -> float:
        """Temperature of the chip."""
