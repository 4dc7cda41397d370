"""The GPU of a rank, and the control of its clock that the rank's plan is followed with."""

import contextlib
import functools
import logging
from collections.abc import Iterator

import torch

from kareus.device.controller import ClockControl, controlled_clocks, dry_clocks
from kareus.device.cuda import device_of_cuda
from kareus.device.protocol import Device
from kareus.launch.mesh import MeshCoordinate
from kareus.launch.monitor import RankMonitor
from kareus.testbed.config import ClockPolicy
from kareus.training.job import TrainingJob
from kareus.workload.config import Workload

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def device_and_clocks(
    job: TrainingJob, device: torch.device, coordinate: MeshCoordinate, monitor: RankMonitor, choice: str | None
) -> Iterator[tuple[Device | None, ClockControl]]:
    """Yield the rank's GPU, None on a CPU, and the control of its clock, which is restored however this ends.

    Args:
        job: what is trained.
        device: torch device of this rank.
        coordinate: of this rank; with `dry`, one rank of each stage logs clocks, since all of them have the same.
        monitor: of this rank; restores the clock if the process is ended from a thread.
        choice: `planned`, `dry` to log what would be set, `default` to leave clocks alone, or None for the policy of
            the workload.

    Raises:
        DeviceError: the GPU is in use, or the driver refuses.
    """
    chosen = choice or _choice_of(job.workload)
    is_first = coordinate == MeshCoordinate(stage=coordinate.stage, replica=0, cp=0, tp=0)
    level = logging.INFO if chosen == "dry" and is_first else logging.DEBUG
    log = functools.partial(logger.log, level, "stage %d: %s", coordinate.stage)
    gpu = gpu_of(device)
    if gpu is None or job.plan is None or chosen != "planned":
        with dry_clocks(gpu, log) as dry:
            yield gpu, dry
    else:
        with controlled_clocks(gpu) as controller:
            monitor.before_end(controller.restore_or_say)
            yield gpu, controller


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
