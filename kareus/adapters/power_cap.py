"""A power limit for the GPU of a rank, where clocks may not be locked: kept while a training runs, restored after it.

cap = cap_power(640, model)
...  # training
cap.close()
"""

import contextlib
import logging
import time
from multiprocessing.util import Finalize

from torch import nn

from kareus.adapters.steps import only_device
from kareus.device.controller import held_power_limit
from kareus.device.protocol import Device
from kareus.errors import DeviceError, EngineError
from kareus.training.clocks import gpu_of

PATIENCE_S = 15.0
"""Longest wait for the GPU, whose claim a former training's processes may still have."""
ABOVE = 1.02
"""Mean power, as a share of the limit, up to which it counts as kept: the driver holds it over tens of milliseconds."""

logger = logging.getLogger(__name__)


class PowerCap:
    """The power limit of a rank's GPU. Made by `cap_power`."""

    def __init__(self, device: Device, limit_w: float, released: contextlib.ExitStack) -> None:
        """Begin to count the energy under a limit that is set.

        Args:
            device: the GPU.
            limit_w: its limit.
            released: what `close` lets go of.
        """
        self._device, self._limit_w, self._released = device, limit_w, released
        self._begun: tuple[float, float] | None = time.monotonic(), device.energy_j()
        Finalize(None, self.close, exitpriority=0)

    def close(self) -> float | None:
        """Put the former limit back and say whether this one was kept; may be called more than once.

        Returns:
            Mean power in W since the limit was set; None where it was not read, or from the second call on.
        """
        mean_w = None
        if self._begun is not None:
            mean_w, self._begun = self._mean_w(*self._begun), None
        self._released.close()
        return mean_w

    def _mean_w(self, since_s: float, since_j: float) -> float | None:
        try:
            mean_w = (self._device.energy_j() - since_j) / (time.monotonic() - since_s)
        except DeviceError as error:
            logger.warning("%s Whether the power limit was kept is not known.", error)
            return None
        is_kept = mean_w <= ABOVE * self._limit_w
        logger.log(
            logging.INFO if is_kept else logging.WARNING,
            "%s: %.4g W in the mean, with a power limit of %g W, which was %s.",
            self._device.uuid,
            mean_w,
            self._limit_w,
            "kept" if is_kept else "not kept; see who else sets it",
        )
        return mean_w


def cap_power(limit_w: float, model: nn.Module) -> PowerCap:
    """Limit the power of the GPU that a rank computes on; every rank calls it, from the main thread.

    The GPU is claimed as by a plan: locking clocks and limiting power are not done at once.

    Args:
        limit_w: of one GPU, in W.
        model: whose weights say what the rank computes on.

    Raises:
        EngineError: the rank has no GPU, or several.
        DeviceError: the GPU is in use, has no such limit, or the driver refuses.

    Example:
        >>> from kareus.adapters.power_cap import cap_power
        >>> cap = cap_power(640, model)
        >>> # train as before
        >>> mean_w = cap.close()
    """
    gpu = gpu_of(only_device(model.parameters()))
    if gpu is None:
        raise EngineError("power limit: this rank computes on a CPU, whose power nothing limits; use a GPU.")
    with contextlib.ExitStack() as entered:
        entered.enter_context(held_power_limit(gpu, limit_w, patience_s=PATIENCE_S))
        return PowerCap(gpu, limit_w, entered.pop_all())
