"""Where a rank sends the frequencies of its plan, and the GPU whose clock it is."""

import contextlib
import functools
import logging
from collections.abc import Iterator

import torch

from kareus.device.claims import claim
from kareus.device.controller import Clocks, DryClocks, controlled_clocks, restore_left_behind
from kareus.device.pairing import device_of_cuda
from kareus.device.protocol import Device
from kareus.launch.ranks import Place
from kareus.launch.watch import Watch
from kareus.launch.world import World
from kareus.testbed.config import ClockPolicy
from kareus.training.job import Job
from kareus.workload.config import Workload

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def device_and_clocks(
    job: Job, world: World, place: Place, watch: Watch, choice: str | None
) -> Iterator[tuple[Device | None, Clocks]]:
    """The GPU and where frequencies are sent; its clock is restored however this ends.

    Args:
        job: what is trained.
        world: of this rank.
        place: where it stands; one rank of each stage says what would be set, as all of them would set the same.
        watch: over it, for when it is ended from elsewhere.
        choice: `planned`, `dry` to say what would be set, `default` to leave clocks alone, or None for the workload's.

    Raises:
        DeviceError: the GPU is in use, or the driver refuses.
    """
    chosen = choice or _choice_of(job.workload)
    speaks = chosen == "dry" and place == Place(stage=place.stage, replica=0, cp=0, tp=0)
    level = logging.INFO if speaks else logging.DEBUG
    said = functools.partial(logger.log, level, "stage %d: %s", place.stage)
    device = device_of(world)
    if device is None:
        yield None, DryClocks(said)
    elif job.plan is None or chosen != "planned":
        with claim(device.uuid) as claimed:
            restore_left_behind(device, claimed)  # what a killed run had locked is nobody's choice
            yield device, DryClocks(said)
    else:
        with controlled_clocks(device) as controller:
            watch.before_end(controller.restore_or_say)
            yield device, controller


def device_of(world: World) -> Device | None:
    """The GPU of this rank as its driver shows it; None on a CPU."""
    if world.device.type == "cpu":
        return None
    return device_of_cuda(str(torch.cuda.get_device_properties(world.device).uuid))


def _choice_of(workload: Workload) -> str:
    """What was measured with clocks left alone is trained so; whoever planned it may have no right to set them."""
    cuda = workload.testbed.cuda
    return "default" if cuda is not None and cuda.clocks is ClockPolicy.DEFAULT else "planned"
