"""Locking SM clocks: asynchronously, with acknowledgement, and undone however the process ends.

A training loop asks for the clock of its next microbatch and goes on; a thread tells the driver, which takes
milliseconds. Nothing is ever silent: an answer can be waited for, a refusal is raised by the next request, and
everything that was really set is kept for whoever drains it, with the clock that was read back.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from kareus.device.claims import Claim, DeviceSetting, claim
from kareus.device.protocol import Device
from kareus.device.termination import keep_watching, on_termination
from kareus.errors import DeviceError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockChange:
    """Result of one request. Times are seconds since the epoch, as `time.time` gives them."""

    frequency_mhz: int
    """Clock that was asked for."""
    requested_s: float
    locked_s: float | None
    """When the driver had accepted it; None if a later request came first, and it was never set."""
    observed_mhz: int | None = None
    """The SM clock that was read before the next one was locked; None if it was not read."""


class ClockControl(Protocol):
    """Control of a GPU's clock that a plan's frequencies are sent to."""

    @property
    def rests(self) -> bool:
        """Whether the clock is left to the driver for now, whatever is requested."""

    def request(self, frequency_mhz: int) -> Future[ClockChange]:
        """Ask for a clock without waiting.

        Raises:
            DeviceError: the GPU has no such clock, or an earlier request failed.
        """

    def leave(self) -> None:
        """Leave the clock to the driver without waiting, until the next request.

        Raises:
            DeviceError: an earlier request failed.
        """

    def check(self) -> None:
        """Raise what an earlier request failed with, once.

        Raises:
            DeviceError: the driver refused.
        """

    def drain(self) -> list[ClockChange]:
        """Return the results of requests since the last call, in order."""


class GuardedGpu:
    """A claimed GPU that gets back what it had before it was set, whoever asks for that. Made by `guarded`."""

    def __init__(self, device: Device, claimed: Claim) -> None:
        """Guard `device`, of which nothing is set yet; what will be is noted in `claimed` first."""
        self._device, self._claim = device, claimed
        self._driver = threading.Lock()  # held while the driver is told something
        self._rests = self._closed = False
        self.endings = 0
        """How often a signal, or what else ends this process, has restored the GPU."""

    @property
    def rests(self) -> bool:
        """Whether the GPU was restored, by a signal or by `restore`."""
        return self._rests

    def check(self) -> None:
        """Raise what a thread failed with meanwhile; nothing unless there is one."""

    def restore(self) -> None:
        """Undo what is set, for good; may be called from any thread, more than once, and when it is closed.

        Raises:
            DeviceError: the driver refuses. The claim's file goes on saying what is set.
        """
        with self._driver:
            self._rests = True
            self._undo()

    def _undo(self) -> None:
        setting = None if self._closed else self._claim.setting()
        if setting is not None:
            undo(self._device, setting)
            self._claim.clear()

    def restore_or_say(self) -> None:
        """Restore, from a daemon thread; if that fails, the claim's file keeps what is set."""
        self.endings += 1
        try:
            self.restore()
        except (DeviceError, OSError) as error:
            logger.error("%s Run `kareus clocks reset`.", error)

    def close(self) -> None:
        """Restore, as the claim is let go of next, whose descriptor may become any other file's."""
        try:
            self.restore()
        finally:
            with self._driver:
                self._closed = True


Guarded = TypeVar("Guarded", bound=GuardedGpu)


@contextlib.contextmanager
def guarded(device: Device, guard: Callable[[Device, Claim], Guarded], *, patience_s: float = 0.0) -> Iterator[Guarded]:
    """Claim `device`, and restore it however this ends: normally, by an exception or a signal.

    What a killed process left set is restored first. Call it from the main thread.

    Args:
        device: the GPU.
        guard: what makes its guard.
        patience_s: how long to wait for another process that has the GPU; may be infinite.

    Raises:
        DeviceError: the GPU is in use, or the driver refuses.
    """
    with claim(device.uuid, patience_s=patience_s) as claimed:
        restore_left_behind(device, claimed)
        gpu = guard(device, claimed)
        with on_termination(gpu.restore_or_say):
            try:
                yield gpu
            finally:
                gpu.close()
        gpu.check()


class ClockController(GuardedGpu):
    """Implements `ClockControl` for a claimed GPU. Made by `controlled_clocks`."""

    def __init__(self, device: Device, claimed: Claim, *, reads_back: bool = False) -> None:
        """Control `device`; nothing is set before the first request.

        Args:
            device: the GPU.
            claimed: its claim.
            reads_back: whether each clock is read, once, before the next one is locked and when changes are drained.
        """
        super().__init__(device, claimed)
        self._reads_back = reads_back
        self._supported_mhz = device.supported_clocks_mhz()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="clocks")
        self._requests = 0
        self._last: tuple[int, Future[ClockChange]] | None = None
        self._failure: DeviceError | None = None
        """What a request failed with that nothing has raised yet."""
        self._log = threading.Lock()  # held for a moment, where `_driver` may be for as long as a driver takes
        self._changes: list[ClockChange] = []

    def request(self, frequency_mhz: int) -> Future[ClockChange]:
        """Ask for a clock without waiting; one that was asked for last is not asked for again."""
        self.check()
        if self._last is not None and self._last[0] == frequency_mhz:
            return self._last[1]
        _check_supported(self._device, self._supported_mhz, frequency_mhz)
        self._requests += 1
        answer = self._thread.submit(self._apply, self._requests, frequency_mhz, time.time())
        self._last = frequency_mhz, answer
        return answer

    def leave(self) -> None:
        """Reset the clock without waiting; the next request locks one again."""
        self.check()
        self._requests += 1
        self._last = None
        self._thread.submit(self._apply_reset, self._requests)

    def check(self) -> None:
        """Raise what an earlier request failed with, once; then that clock may be asked for again."""
        keep_watching()
        failure = self._failure
        if failure is not None:  # only then is it taken away: another thread may set it at any time
            self._failure = self._last = None
            raise failure
        self._keep_claim()

    def _keep_claim(self) -> None:
        """Restore the claim's file if it was deleted or emptied while a clock may be locked."""
        if not self._claim.is_intact():
            with self._driver:
                if not self._rests:
                    self._claim.put_back()

    def drain(self) -> list[ClockChange]:
        """Return the results of requests since the last call, in order."""
        if self._reads_back:
            self._read_back()
        with self._log:
            drained, self._changes = self._changes, []
        return drained

    def resume(self) -> None:
        """Take requests again after `restore`, which refuses them, by the thread that makes them."""
        with self._driver:
            self._rests, self._last, self._failure = self._closed, None, None

    def close(self) -> None:
        """Wait for what was asked for, then restore."""
        try:
            self._thread.shutdown()
        finally:
            super().close()

    def _apply(self, number: int, frequency_mhz: int, requested_s: float) -> ClockChange:
        locked_s: float | None = None
        if number == self._requests:
            try:
                with self._driver:
                    self._lock(frequency_mhz)
            except DeviceError as error:
                self._failure = error
                raise
            locked_s = time.time()
        change = ClockChange(frequency_mhz=frequency_mhz, requested_s=requested_s, locked_s=locked_s)
        with self._log:
            self._changes.append(change)
        return change

    def _apply_reset(self, number: int) -> None:
        if number == self._requests:
            try:
                with self._driver:
                    self._undo()
            except DeviceError as error:
                self._failure = error

    def _lock(self, frequency_mhz: int) -> None:
        if self._rests:
            raise DeviceError(f"{self._device.uuid}: its clock was restored, as this process is ending.")
        if self._reads_back:
            self._read_back()
        self._claim.note(frequency_mhz)
        self._device.lock_clock(frequency_mhz)

    def _read_back(self) -> None:
        """Read what the last clock that was locked has become; one that cannot be read stays without."""
        try:
            observed_mhz = self._device.clock_mhz()
        except DeviceError:  # what samples the clock says so
            return
        with self._log:
            if self._changes and self._changes[-1].locked_s is not None:
                self._changes[-1] = replace(self._changes[-1], observed_mhz=observed_mhz)


class DryClocks:
    """Implements `ClockControl` without a GPU: sets nothing, and reports what it would set."""

    def __init__(self, say: Callable[[str], None] = logger.debug) -> None:
        """Report requests by `say`."""
        self._say = say
        self._frequency_mhz: int | None = None
        self.rests = False

    def request(self, frequency_mhz: int) -> Future[ClockChange]:
        """Report the request if it would change the clock."""
        if frequency_mhz != self._frequency_mhz:
            self._say(f"would lock the SM clock to {frequency_mhz} MHz")
        self._frequency_mhz = frequency_mhz
        answer: Future[ClockChange] = Future()
        answer.set_result(ClockChange(frequency_mhz=frequency_mhz, requested_s=time.time(), locked_s=None))
        return answer

    def leave(self) -> None:
        """Report that the clock would be the driver's, if that is a change."""
        if self._frequency_mhz is not None:
            self._say("would leave the SM clock to the driver")
        self._frequency_mhz = None

    def check(self) -> None:
        """Nothing fails."""

    def drain(self) -> list[ClockChange]:
        """Nothing, as nothing was set."""
        return []


def check_clocks(device: Device, clocks_mhz: Iterable[int | None]) -> None:
    """Check that a GPU has these SM clocks, before any of them is set; None is skipped.

    Raises:
        DeviceError: it lacks one.
    """
    supported_mhz = device.supported_clocks_mhz()
    for frequency_mhz in {mhz: None for mhz in clocks_mhz if mhz is not None}:
        _check_supported(device, supported_mhz, frequency_mhz)


def _check_supported(device: Device, supported_mhz: Collection[int], frequency_mhz: int) -> None:
    if frequency_mhz not in supported_mhz:
        near = sorted(supported_mhz, key=lambda clock: abs(clock - frequency_mhz))[:2]
        raise DeviceError(
            f"{device.uuid}: {device.name} has no SM clock of {frequency_mhz} MHz; the nearest are "
            f"{' and '.join(map(str, sorted(near)))} (`nvidia-smi -q -d SUPPORTED_CLOCKS`)."
        )


@contextlib.contextmanager
def controlled_clocks(
    device: Device, *, patience_s: float = 0.0, reads_back: bool = False
) -> Iterator[ClockController]:
    """Claim `device` and control its clock, which is restored as `guarded` does.

    Args:
        device: the GPU.
        patience_s: how long to wait for another process that has the GPU; may be infinite.
        reads_back: as of `ClockController`, for a log of clocks that is drained and read.

    Raises:
        DeviceError: the GPU is in use, or the driver refuses.
    """
    with guarded(device, partial(ClockController, reads_back=reads_back), patience_s=patience_s) as controller:
        yield controller


@contextlib.contextmanager
def dry_clocks(device: Device | None, say: Callable[[str], None]) -> Iterator[DryClocks]:
    """Claim `device` and leave its clock alone: requests are reported by `say`.

    What a killed process left set is restored first. Without a device, as on a CPU, nothing is claimed.

    Raises:
        DeviceError: the GPU is in use, or the driver refuses.
    """
    if device is None:
        yield DryClocks(say)
        return
    with claim(device.uuid) as claimed:
        restore_left_behind(device, claimed)
        yield DryClocks(say)


def restore_left_behind(device: Device, claimed: Claim) -> None:
    """Undo what the last owner of `device` set if it died before doing so."""
    left = claimed.setting()
    if left is not None:
        undo(device, left)
        claimed.clear()
        logger.warning("%s: restored the %s, which was left %s to %s", device.uuid, left.subject, left.verb, left)


def undo(device: Device, setting: DeviceSetting | None) -> None:
    """Put back what was there before a setting of `device`; None: the clock.

    Of a setting that cannot be read any kind may be in force: clock and power limit become those after boot, and no
    profile is asked for.

    Raises:
        DeviceError: the driver refuses.
    """
    if setting is not None and setting.limit_w:
        device.set_power_limit(setting.former_w)
    elif setting is not None and setting.profiles:
        device.clear_power_profiles(setting.profiles.split("+"))
    else:
        device.reset_clock()
        if setting is not None and not setting.is_known:
            _reset_what_lasts(device)


def _reset_what_lasts(device: Device) -> None:
    """Set the power limit that a GPU has after boot, and clear its profiles, where it has them."""
    default_w = now_w = 0.0
    profiles: tuple[str, ...] = ()
    with contextlib.suppress(DeviceError):  # no limit can have been set
        default_w, now_w = device.default_power_limit_w(), device.power_limit_w()
    with contextlib.suppress(DeviceError):  # nor profiles
        profiles = device.requested_power_profiles()
    if now_w != default_w:
        device.set_power_limit(default_w)
        logger.warning(
            "%s: its power limit is %g W now, as after boot: the one before it is not known.", device.uuid, default_w
        )
    if profiles:
        device.clear_power_profiles(profiles)
