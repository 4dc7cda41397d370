"""Agreement among the ranks of a job, over its own process group: no server, and nothing but a small gather."""

import datetime
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch.distributed as dist

from kareus.errors import EngineError, KareusError

Told = TypeVar("Told")
Result = TypeVar("Result")

LONGEST_WAIT = datetime.timedelta(minutes=10)
"""For another rank: PyTorch's own timeout of a collective of NCCL, after which the job would end anyway."""


class Agreement(Protocol):
    """Lets all ranks of a job know what each has to say; every rank calls it at the same iterations."""

    def gather(self, answer: Told) -> list[Told]:
        """Return what all ranks tell, by rank, once all have told it."""


class Alone:
    """Implements `Agreement` for a job of one process, and for ranks that need not agree."""

    def gather(self, answer: Told) -> list[Told]:
        """What this process tells."""
        return [answer]


class GroupAgreement:
    """Implements `Agreement` over a process group of gloo: the host waits for other hosts, the GPU for nobody."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Agree within `group`."""
        self._group = group
        self._size = dist.get_world_size(group)

    def gather(self, answer: Told) -> list[Told]:
        """Gather objects of ranks that run the same program; they are small.

        Raises:
            EngineError: a rank has ended, or has not answered for `LONGEST_WAIT`.
        """
        gathered: list[Any] = [None] * self._size
        try:
            dist.all_gather_object(gathered, answer, group=self._group)
        except RuntimeError as error:  # of gloo, which has no other
            reason = str(error).partition("\n")[0]
            raise EngineError(
                f"agreement of {self._size} ranks: another one has ended, or has not answered for "
                f"{LONGEST_WAIT.total_seconds():g} s ({reason}); look for what it said."
            ) from error
        return gathered


def job_agreement() -> Agreement:
    """Return the agreement of all ranks of this job; every rank calls it, once `torch.distributed` is there."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return Alone()
    return GroupAgreement(dist.new_group(backend="gloo", timeout=LONGEST_WAIT))


def together(agreement: Agreement, run: Callable[[], Result]) -> Result:
    """Run what one rank alone may refuse; if one does, no rank goes on, and none waits for it.

    Raises:
        KareusError: this rank was refused; the reason is its own.
        EngineError: another one was; the reason is that of the first such rank.
    """
    result, refusal = None, None
    try:
        result = run()
    except KareusError as error:
        refusal = error
    reasons = agreement.gather(None if refusal is None else str(refusal))
    if refusal is not None:
        raise refusal
    refused = [rank for rank, reason in enumerate(reasons) if reason is not None]
    if refused:
        raise EngineError(f"rank {refused[0]}: {reasons[refused[0]]}")
    return result  # type: ignore[return-value]  # it was made, as nothing was refused
