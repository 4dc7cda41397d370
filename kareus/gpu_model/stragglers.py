"""The slowest GPU of a job: GPUs of one kind draw different powers for the same work, and the limit slows some more.

Power of a job differs by 6.7 % between the GPUs of a node, so with a standard deviation of 2.3 %; four tenths of that
are time, since power goes with about the 2.5th power of the clock. All GPUs of a job wait for the slowest.
"""

import math

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.power_limit import CostRows

POWER_VARIATION, TIME_VARIATION = 0.023, 0.009
"""Standard deviations of the power of GPUs of one kind, and of the time of those that the power limit holds back."""
FEW = 6.0
"""Standard deviations below the limit from which on none of a million GPUs is held back."""
_ERFC = np.vectorize(math.erfc, otypes=[np.float64])


def limited_share(gpu: Gpu, free: CostRows) -> Array:
    """Return the share of GPUs that the power limit holds back, where a mean one has this cost without any limit.

    It is 1 where a mean one is held back, and falls with the tail of the distribution of power below.
    """
    below = np.asarray((1 - free[1] / free[0] / gpu.throttling_power_w) / POWER_VARIATION)
    share = np.where(below > FEW, 0.0, 1.0)
    some = (below > 0) & (below <= FEW)
    share[some] = _ERFC(below[some] / math.sqrt(2))
    return share


def slowest_of(gpus: Array | float) -> Array:
    """Return the time of the slowest of as many GPUs that are held back, over that of a mean one.

    The largest of n normal numbers is about sqrt(2 ln n) standard deviations above their mean, less a slowly varying
    correction (Cramer 1946, section 28.6).
    """
    number = np.maximum(np.round(gpus), 2.0)
    most = np.sqrt(2 * np.log(number))
    above = np.maximum(most - (np.log(np.log(number)) + math.log(4 * math.pi)) / (2 * most), 0.5)
    slowest: Array = 1 + np.where(np.round(gpus) > 1, TIME_VARIATION * above, 0.0)
    return slowest


def with_slowest(gpu: Gpu, free: CostRows, limited: CostRows) -> CostRows:
    """Return the cost on a mean GPU of a job that waits for its slowest one.

    Args:
        gpu: a mean one, which knows of how many the job is.
        free: cost without a power limit.
        limited: cost with it.
    """
    if gpu.job_gpus <= 1:
        return limited
    slower = slowest_of(gpu.job_gpus * limited_share(gpu, free))
    waiting_s = limited[0] * (slower - 1)
    waiting: CostRows = np.stack([waiting_s, gpu.blocking_power_w * waiting_s, limited[2] * (slower - 1)])
    return limited + waiting
