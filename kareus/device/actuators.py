"""Actuators: what of a GPU a plan sets, if anything, and whether it held.

Locked clocks follow each instruction. Where they may not be locked, one setting lasts for a training: a power limit, or
profiles of the vendor's that the driver knows by name. It is claimed, restored and judged alike.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from kareus.artifacts.ranges import check_within
from kareus.artifacts.records import NotNegative
from kareus.device.claims import MOST_W
from kareus.device.controller import DryClocks, GuardedGpu, guarded
from kareus.device.protocol import PROFILES, Device
from kareus.errors import ConfigError, DeviceError

MOST_PROFILES = 4
"""At once: a claim names them."""
ABOVE = 1.02
"""Mean power, as a share of the limit, up to which it counts as kept: the driver holds it over tens of milliseconds."""
LOOK_S = 1.0
"""Between two looks at the clock."""

Reading = TypeVar("Reading")

logger = logging.getLogger(__name__)


class ActuatorKind(StrEnum):
    """What a plan sets on GPUs."""

    CLOCKS = "clocks"
    """SM clocks, instruction by instruction."""
    POWER = "power"
    """A power limit."""
    PROFILE = "profile"
    """Profiles of the vendor's."""
    NONE = "none"
    """Nothing: layout, SMs and launches are all that is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actuator:
    """What a plan sets, and to what.

    Example:
        >>> from kareus.device.actuators import parse_actuator
        >>> [str(parse_actuator(text)) for text in ("clocks", "power=651W", "profile=max-q+llm-training", "none")]
        ['locked clocks', 'a power limit of 651 W', 'power profiles max-q+llm-training', 'default clocks']
    """

    kind: ActuatorKind = ActuatorKind.CLOCKS
    limit_w: NotNegative = 0.0
    """Power limit of each GPU; 0 where it is another actuator, or the limit is yet to be chosen."""
    profiles: tuple[str, ...] = ()
    """Names of `PROFILES`, each once."""

    def __post_init__(self) -> None:
        has_limit, has_profiles = self.kind is ActuatorKind.POWER, self.kind is ActuatorKind.PROFILE
        if (self.limit_w and not has_limit) or bool(self.profiles) is not has_profiles:
            raise ConfigError(
                f"actuator: kind {self.kind} with limit_w={self.limit_w:g} and {len(self.profiles)} profiles."
            )
        if self.limit_w:
            check_limit(self.limit_w)
        names = set(self.profiles)
        if not names <= set(PROFILES) or len(names) < len(self.profiles) or len(names) > MOST_PROFILES:
            raise ConfigError(
                f"power profiles {'+'.join(self.profiles)}: must be one to {MOST_PROFILES}, each once, as "
                f"max-q+llm-training; allowed: {', '.join(PROFILES)}. `kareus doctor` says which the driver has."
            )

    @property
    def sets_clocks(self) -> bool:
        """Whether it locks clocks, so that instructions may differ in them."""
        return self.kind is ActuatorKind.CLOCKS

    @property
    def lasts(self) -> bool:
        """Whether what it sets stays the same for a whole training."""
        return self.kind in (ActuatorKind.POWER, ActuatorKind.PROFILE)

    @property
    def option(self) -> str:
        """What `parse_actuator` reads back as this one."""
        value = f"{self.limit_w:g}W" if self.limit_w else "+".join(self.profiles)
        return f"{self.kind}={value}" if value else str(self.kind)

    def __str__(self) -> str:
        if self.kind is ActuatorKind.POWER:
            return f"a power limit of {self.limit_w:.4g} W" if self.limit_w else "a power limit"
        if self.kind is ActuatorKind.PROFILE:
            return f"power profiles {'+'.join(self.profiles)}"
        return "locked clocks" if self.sets_clocks else "default clocks"


ACTUATOR_HELP = (
    "what the machine lets be set: clocks (default), power or power=651W (a limit), profile=max-q+llm-training (the "
    "vendor's), none; `kareus doctor` says which"
)
"""Of `--actuator`."""
CLOCKS = Actuator()
"""What plans set unless something else is asked for."""


def parse_actuator(text: str) -> Actuator:
    """Return the actuator that a user names.

    Raises:
        ConfigError: there is none.
    """
    name, _, value = str(text).partition("=")  # Python callers give None, too
    where = f"--actuator {text}"
    if name == ActuatorKind.POWER:
        return Actuator(kind=ActuatorKind.POWER, limit_w=_limit_w(value, where) if value else 0.0)
    if name == ActuatorKind.PROFILE:
        return Actuator(kind=ActuatorKind.PROFILE, profiles=tuple(value.split("+")))
    if value or name not in (ActuatorKind.CLOCKS, ActuatorKind.NONE):
        raise ConfigError(f"{where}: not known; must be clocks, power, power=651W, profile=max-q+llm-training or none.")
    return Actuator(kind=ActuatorKind(name))


def _limit_w(value: str, where: str) -> float:
    try:
        limit_w = float(value.removesuffix("W"))
    except ValueError:
        raise ConfigError(f"{where}: not understood; write the limit of one GPU in watts, as power=651W.") from None
    check_limit(limit_w)  # 0 is one that is yet to be chosen
    return limit_w


def check_limit(limit_w: float) -> None:
    """Check that a power limit is one of some GPU.

    Raises:
        ConfigError: it is not.
    """
    check_within("power limit", limit_w, 1.0, MOST_W, "W")


class ActuatedGpu:
    """A GPU with a setting that lasts, whose clock is looked at meanwhile. Made by `actuated`."""

    def __init__(self, device: Device, actuator: Actuator) -> None:
        """Begin to look."""
        self._device, self._actuator = device, actuator
        self._clocks_mhz: list[int] = []
        """Least and largest clock that was seen."""
        self._ending = threading.Event()
        self._begun_s, self._begun_j = time.monotonic(), _read(device.energy_j)
        self._thread = threading.Thread(target=self._look, name="actuator", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ending.wait(LOOK_S):
            mhz = _read(self._device.clock_mhz)
            if mhz is not None:
                self._clocks_mhz = [min([mhz, *self._clocks_mhz]), max([mhz, *self._clocks_mhz])]

    def end(self) -> None:
        """End looking; may be called more than once."""
        self._ending.set()
        self._thread.join()

    def judged(self) -> float | None:
        """End looking, say whether the setting held, and return the mean power in W; None where it was not read."""
        self.end()
        now_j, seconds = _read(self._device.energy_j), time.monotonic() - self._begun_s
        mean_w = None if now_j is None or self._begun_j is None else (now_j - self._begun_j) / seconds
        verdict, is_good = self._verdict(mean_w)
        seen = " to ".join(str(mhz) for mhz in dict.fromkeys(self._clocks_mhz))
        drawn = "mean power not known" if mean_w is None else f"{mean_w:.4g} W in the mean"
        line = f"{self._device.uuid}: {drawn}{f', clocks from {seen} MHz' if seen else ''}{verdict}"
        logger.log(logging.INFO if is_good else logging.WARNING, "%s", line)
        return mean_w

    def _verdict(self, mean_w: float | None) -> tuple[str, bool]:
        """Return what is said of the setting, and whether it was in force and kept."""
        asked = self._actuator
        if asked.kind is ActuatorKind.NONE:
            return ", nothing was set.", True
        if asked.kind is ActuatorKind.PROFILE:
            missing = set(asked.profiles) - set(_read(self._device.enforced_power_profiles) or ())
            said = f"not in force: {', '.join(sorted(missing))}; see who else sets them" if missing else "in force"
            return f", with {asked}, {said}.", not missing
        now_w = _read(self._device.power_limit_w)
        if now_w is None or abs(now_w - asked.limit_w) > 1:
            now = "not known" if now_w is None else f"{now_w:g} W"
            return f", with {asked}, which is no longer in force: now {now}; see who else sets it.", False
        if mean_w is None:
            return f", with {asked}, which is in force; whether it was kept is not known.", False
        is_kept = mean_w <= ABOVE * asked.limit_w
        return f", with {asked}, which was {'kept' if is_kept else 'not kept; see who else sets it'}.", is_kept


def _read(reading: Callable[[], Reading]) -> Reading | None:
    """Return what a driver answers; None where it refuses, which ends no training."""
    try:
        return reading()
    except DeviceError as error:
        logger.debug("%s", error)
        return None


@contextlib.contextmanager
def actuated(device: Device, actuator: Actuator, *, patience_s: float = 0.0) -> Iterator[ActuatedGpu]:
    """Claim `device`, set what lasts, and put the former setting back however this ends, as `guarded` does.

    After a signal the setting is the former one, also where the process goes on. Call it from the main thread.

    Args:
        device: the GPU.
        actuator: a power limit, profiles, or none, for which the GPU is claimed and its clock left alone.
        patience_s: how long to wait for another process that has the GPU; may be infinite.

    Raises:
        DeviceError: the GPU is in use, has no such limit or profile, or the driver refuses.
    """
    _check_has(device, actuator)
    with guarded(device, GuardedSetting, patience_s=patience_s) as guard:
        guard.set_to(actuator)
        gpu = ActuatedGpu(device, actuator)
        try:
            yield gpu
        finally:
            gpu.end()


def _check_has(device: Device, actuator: Actuator) -> None:
    if actuator.limit_w:
        least_w, most_w = device.power_limits_w()
        if not least_w <= actuator.limit_w <= most_w:
            raise DeviceError(
                f"{device.uuid}: {device.name} has no power limit of {actuator.limit_w:g} W; must be from {least_w:g} "
                f"to {most_w:g} W."
            )
    missing = set(actuator.profiles) - set(device.power_profiles() if actuator.profiles else ())
    if missing:
        raise DeviceError(
            f"{device.uuid}: {device.name} has no power profile {', '.join(sorted(missing))}; it has "
            f"{', '.join(device.power_profiles()) or 'none'}."
        )


class GuardedSetting(GuardedGpu):
    """A claimed GPU of which something is set once. Made by `actuated`."""

    def set_to(self, actuator: Actuator) -> None:
        """Set what lasts.

        Raises:
            DeviceError: the driver refuses, or this process is ending; nothing is set.
        """
        with self._driver:  # a signal restores what is set whole
            if self._rests:
                raise DeviceError(f"{self._device.uuid}: {actuator} is not set, as this process is ending.")
            try:
                self._set(actuator)
            except DeviceError:
                self._claim.clear()
                raise

    def _set(self, actuator: Actuator) -> None:
        if actuator.limit_w:
            self._claim.note(limit_w=actuator.limit_w, former_w=self._device.power_limit_w())
            self._device.set_power_limit(actuator.limit_w)
        requested = self._device.requested_power_profiles() if actuator.profiles else ()
        added = [name for name in actuator.profiles if name not in requested]  # the others are not ours to clear
        if added:
            self._claim.note(profiles="+".join(added))
            self._device.request_power_profiles(added)


@contextlib.contextmanager
def lasting_clocks(device: Device, actuator: Actuator, *, patience_s: float = 0.0) -> Iterator[DryClocks]:
    """Set what lasts for a training, as `actuated`, and judge it at the end; the clock is the driver's meanwhile.

    Raises:
        DeviceError: as `actuated`.
    """
    with actuated(device, actuator, patience_s=patience_s) as gpu:
        try:
            yield DryClocks()
        finally:
            gpu.judged()
