"""Clocks that a training can do without: what is refused is left to the driver on all ranks, and tried again.

A driver, or the daemon that locks for it, may be restarted in the midst of a training, and a claim's file may be lost.
No training ends for that: it goes on at the driver's own clock, as it would without Kareus.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from kareus.device.controller import ClockChange, ClockController, DryClocks, controlled_clocks
from kareus.device.protocol import Device
from kareus.errors import DeviceError

RETRY_S = 60.0
"""From a refusal until the clock is tried again."""
LOOK_S = 10.0
"""Between two looks at how many ranks are refused: each is one small request to the store of the job."""
SURVIVED_S = 600.0
"""From a signal until clocks are set again. Schedulers kill what they end within seconds or minutes, and a process
that is killed leaves its clock locked; one that lives on was not to end."""

AddToAll = Callable[[int], int]
"""Adds to the number of ranks whose clock is refused, and returns it; 0 only reads it. No other rank is waited for."""

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def yielding_clocks(
    device: Device, tally: AddToAll, *, patience_s: float = 0.0, reads_back: bool = False
) -> Iterator["YieldingClocks"]:
    """Claim `device` and control its clock, as `controlled_clocks`; refusals are logged, also of the last reset.

    Args:
        device: the GPU.
        tally: of the ranks of the job.
        patience_s: longest wait for another process that has the GPU.
        reads_back: as of `ClockController`.

    Raises:
        DeviceError: the GPU is in use, or what another process left locked cannot be reset.
    """
    with contextlib.ExitStack() as claimed:
        controller = claimed.enter_context(controlled_clocks(device, patience_s=patience_s, reads_back=reads_back))
        clocks = YieldingClocks(controller, tally)
        try:
            yield clocks
        finally:
            clocks.withdraw()
            try:
                claimed.close()
            except (DeviceError, OSError) as error:
                logger.error("%s If its clock is still locked, run `kareus clocks reset`.", error)


class YieldingClocks:
    """Implements `ClockControl` for a rank; nothing that it is asked for raises what a driver refuses.

    The clock rests, which is to say that it is the driver's, in three cases: this rank's is refused, another rank's is,
    or a signal to end came. After a signal the trainer may run on for some steps, to save a checkpoint: they are the
    driver's, since the process may be killed at any time. Clocks are looked at where iterations end.
    """

    def __init__(self, controller: ClockController, tally: AddToAll) -> None:
        """Send requests to `controller` while no rank of `tally` is refused."""
        self._controller = controller
        self._tally = tally
        self._unset = DryClocks()
        self._wanted_mhz: int | None = None
        """What was asked for last."""
        self._is_refused = False
        """Whether this rank is in the tally: from its first refusal until a clock was locked again."""
        self._trial: Future[ClockChange] | None = None
        """Answer to the request that may end a refusal."""
        self._endings = controller.endings
        """Those that are known of; a signal restores the clock without a word."""
        self._look_s = time.monotonic() + LOOK_S
        """When this rank looks next whether clocks are to rest, or may be set again."""

    @property
    def rests(self) -> bool:
        """Whether the clock is the driver's for now."""
        return self._controller.rests

    def request(self, frequency_mhz: int) -> Future[ClockChange]:
        """Ask for a clock without waiting; nothing is set while clocks rest."""
        self._wanted_mhz = frequency_mhz
        if not self.rests:
            try:
                answer = self._controller.request(frequency_mhz)
            except DeviceError as error:
                self._take_refusal(error)
            else:
                if self._is_refused and self._trial is None:
                    self._trial = answer
                return answer
        return self._unset.request(frequency_mhz)

    def leave(self) -> None:
        """Leave the clock to the driver without waiting, until the next request."""
        self._wanted_mhz = None
        if not self.rests:
            try:
                self._controller.leave()
            except DeviceError as error:
                self._take_refusal(error)
            else:
                self.withdraw()  # no request may come that ends the refusal

    def check(self) -> None:
        """Take note of what happened to the clock, and of other ranks from time to time."""
        if self._controller.endings != self._endings:
            logger.warning("a signal to end came: the clock is the driver's, for %.0f s if this goes on.", SURVIVED_S)
            self._endings = self._controller.endings
            self._rest(SURVIVED_S)
        elif not self.rests:
            self._check_set()
        elif time.monotonic() >= self._look_s:
            self._wake()

    def drain(self) -> list[ClockChange]:
        """Return the results of requests since the last call, in order."""
        return self._controller.drain()

    def restore_or_say(self) -> None:
        """Restore the clock, from any thread, as the process is ending."""
        self._controller.restore_or_say()

    def withdraw(self) -> None:
        """Leave the tally."""
        self._trial = None
        if self._is_refused:
            self._is_refused = False
            self._tally(-1)

    def _check_set(self) -> None:
        try:
            self._controller.check()
        except DeviceError as error:
            self._take_refusal(error)
            return
        if self._trial is not None and self._trial.done():
            self._judge(self._trial)
        if time.monotonic() >= self._look_s:
            self._look_s = time.monotonic() + LOOK_S
            if self._tally(0) > self._is_refused:
                logger.info("the clock of another rank is refused; the driver's own clock from here on.")
                self._rest(LOOK_S)

    def _judge(self, trial: Future[ClockChange]) -> None:
        """End the refusal if a clock was locked; a request that a later one overtook says nothing."""
        self._trial = None
        if trial.exception() is None and trial.result().locked_s is not None:
            self.withdraw()
            logger.warning("the driver takes clocks again; they are set from here on.")

    def _take_refusal(self, error: DeviceError) -> None:
        if self.rests:  # a signal came first
            return
        if not self._is_refused:
            self._is_refused = True
            self._tally(1)
            again = f"The training goes on at the driver's own clocks on all ranks; every {RETRY_S:.0f} s this is tried"
            logger.warning("%s %s again.", error, again)
        self._trial = None
        self._rest(RETRY_S)

    def _rest(self, time_s: float) -> None:
        self._look_s = time.monotonic() + time_s
        try:
            self._controller.restore()
        except (DeviceError, OSError) as error:  # the clock that was set last stays; tried again with the next one
            logger.debug("%s", error)

    def _wake(self) -> None:
        """Set the clock again, unless that of another rank is refused; one that is refused itself tries in any case."""
        self._look_s = time.monotonic() + LOOK_S
        if not self._is_refused and self._tally(0):
            return
        self._controller.resume()
        if self._controller.endings != self._endings:  # a signal came between
            self.check()
        elif self._wanted_mhz is None:
            self.withdraw()
        else:
            self.request(self._wanted_mhz)
