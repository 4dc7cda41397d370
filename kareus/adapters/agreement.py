"""Agreement among the ranks of a job, over its own process group: no server, and nothing but a small gather."""

from typing import Any, Protocol, TypeVar

import torch.distributed as dist

Told = TypeVar("Told")


class Agreement(Protocol):
    """Lets all ranks of a job know what each has to say; every rank calls it at the same iterations."""

    def gather(self, told: Told) -> list[Told]:
        """Return what all ranks tell, by rank, once all have told it."""


class Alone:
    """Implements `Agreement` for a job of one process."""

    def gather(self, told: Told) -> list[Told]:
        """What this process tells."""
        return [told]


class GroupAgreement:
    """Implements `Agreement` over a process group of gloo: the host waits for other hosts, the GPU for nobody."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Agree within `group`."""
        self._group = group
        self._size = dist.get_world_size(group)

    def gather(self, told: Told) -> list[Told]:
        """Gather objects of ranks that run the same program; they are small."""
        gathered: list[Any] = [None] * self._size
        dist.all_gather_object(gathered, told, group=self._group)
        return gathered


def job_agreement() -> Agreement:
    """Return the agreement of all ranks of this job; every rank calls it, once `torch.distributed` is there."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return Alone()
    return GroupAgreement(dist.new_group(backend="gloo"))
