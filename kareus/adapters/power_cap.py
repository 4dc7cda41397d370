"""A power limit, or profiles of the vendor's, for the GPU of a rank: kept while a training runs, restored after it.

cap = cap_power(640, model)
...  # training
cap.close()
"""

import contextlib
from multiprocessing.util import Finalize

from torch import nn

from kareus.adapters.steps import only_device
from kareus.device.actuators import ActuatedGpu, Actuator, ActuatorKind, actuated, check_limit, parse_actuator
from kareus.errors import ConfigError, EngineError
from kareus.training.clocks import gpu_of

PATIENCE_S = 15.0
"""Longest wait for the GPU, whose claim a former training's processes may still have."""


class PowerCap:
    """A setting of a rank's GPU that lasts. Made by `cap_power`."""

    def __init__(self, gpu: ActuatedGpu, released: contextlib.ExitStack) -> None:
        """Keep a setting of `gpu`, which `released` undoes."""
        self._gpu: ActuatedGpu | None = gpu
        self._released = released
        Finalize(None, self.close, exitpriority=0)

    def close(self) -> float | None:
        """Say whether the setting held, and put the former one back; may be called more than once.

        Returns:
            Mean power in W since it was set; None where it was not read, or from the second call on.
        """
        gpu, self._gpu = self._gpu, None
        try:
            return None if gpu is None else gpu.judged()
        finally:
            self._released.close()


def cap_power(limit: float | str, model: nn.Module) -> PowerCap:
    """Limit the power of the GPU that a rank computes on; every rank calls it, from the main thread.

    The GPU is claimed as by a plan: locking clocks and limiting power are not done at once. Where the cap is closed, a
    line of the log says the mean power, the clocks that were seen, and whether the limit was in force and kept.

    Args:
        limit: of one GPU, in W; or profiles of the vendor's, as `profile=max-q+llm-training`.
        model: whose weights say what the rank computes on.

    Raises:
        ConfigError: there is no such profile, or no GPU has such a limit.
        EngineError: the rank has no GPU, or several.
        DeviceError: the GPU is in use, has no such limit or profile, or the driver refuses.

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
        capped = entered.enter_context(actuated(gpu, lasting(limit), patience_s=PATIENCE_S))
        return PowerCap(capped, entered.pop_all())


def lasting(limit: float | str) -> Actuator:
    """Return what is set for a limit in W, or for the name of profiles.

    Raises:
        ConfigError: it is neither.
    """
    if not isinstance(limit, str):
        check_limit(limit)  # which 0 is none of
        return Actuator(kind=ActuatorKind.POWER, limit_w=limit)
    actuator = parse_actuator(limit)
    if not (actuator.limit_w or actuator.profiles):  # a limit is yet to be chosen, or nothing is set
        raise ConfigError(f"{limit}: sets nothing that lasts; give a limit in W, or profile=max-q+llm-training.")
    return actuator
