"""The GPU of a rank, and the control of its clock that the rank's plan is followed with."""

import contextlib
import functools
import logging
from collections.abc import Iterator

import torch
from torch.distributed.distributed_c10d import Store

from kareus.device.actuators import lasting_clocks
from kareus.device.controller import ClockControl, ClockController, check_clocks, controlled_clocks, dry_clocks
from kareus.device.cuda import device_of_cuda
from kareus.device.protocol import Device
from kareus.device.yielding import YieldingClocks, yielding_clocks
from kareus.launch.mesh import MeshCoordinate
from kareus.launch.monitor import RankMonitor
from kareus.launch.rendezvous import shared_tally
from kareus.testbed.config import ClockPolicy
from kareus.training.job import TrainingJob
from kareus.training.settings import TrainingSettings
from kareus.workload.config import Workload

REFUSED = "refused-clocks"
"""Name of the number of ranks whose clock is refused, in the store of a job."""

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def device_and_clocks(
    job: TrainingJob,
    device: torch.device,
    coordinate: MeshCoordinate,
    monitor: RankMonitor,
    settings: TrainingSettings,
    store: Store,
) -> Iterator[tuple[Device | None, ClockControl]]:
    """Yield the rank's GPU, None on a CPU, and the control of its clock, which is restored however this ends.

    Args:
        job: what is trained.
        device: torch device of this rank.
        coordinate: of this rank; with `dry`, one rank of each stage logs clocks, since all of them have the same.
        monitor: of this rank; restores the clock if the process is ended from a thread.
        settings: whether clocks are `planned`, `dry` to log what would be set, or `default` to leave them alone; None
            is the policy of the workload. With `strict_clocks` a clock that the driver refuses ends the training.
        store: shared by all ranks.

    Raises:
        DeviceError: the GPU is in use, has not all clocks of the plan, or with `strict_clocks` the driver refuses.
    """
    chosen = settings.clocks or _choice_of(job.workload)
    is_first = coordinate == MeshCoordinate(stage=coordinate.stage, replica=0, cp=0, tp=0)
    level = logging.INFO if chosen == "dry" and is_first else logging.DEBUG
    log = functools.partial(logger.log, level, "stage %d: %s", coordinate.stage)
    gpu = gpu_of(device)
    if gpu is None or job.plan is None or chosen != "planned":
        with dry_clocks(gpu, log) as dry:
            yield gpu, dry
        return
    if not job.plan.actuator.sets_clocks:
        with lasting_clocks(gpu, job.plan.actuator) as left:
            yield gpu, left
        return
    check_clocks(gpu, (i.frequency_mhz for i in job.plan.stages[coordinate.stage].instructions))
    with contextlib.ExitStack() as claimed:
        clocks: ClockController | YieldingClocks
        if settings.strict_clocks:
            clocks = claimed.enter_context(controlled_clocks(gpu, reads_back=True))
        else:
            clocks = claimed.enter_context(yielding_clocks(gpu, shared_tally(store, REFUSED), reads_back=True))
        monitor.before_end(clocks.restore_or_say)
        yield gpu, clocks


def gpu_of(device: torch.device) -> Device | None:
    """Return the GPU `device` as its driver shows it; None for a CPU."""
    if device.type == "cpu":
        return None
    return device_of_cuda(str(torch.cuda.get_device_properties(device).uuid))


def _choice_of(workload: Workload) -> str:
    """Return the workload's clock policy: if it was profiled at default clocks, train at default clocks.

    Without the right to set clocks, a workload can only be profiled at default clocks.
    """
    cuda = workload.testbed.cuda
    return "default" if cuda is not None and cuda.clocks is ClockPolicy.DEFAULT else "planned"
