"""Ranks that agree: one that is refused ends all of them, with one line each, and none waits for ever."""

import datetime
from pathlib import Path

import pytest
import torch.distributed as dist
from helpers.worlds import spawn

from kareus.adapters import agreement as agreement_module
from kareus.adapters.agreement import Alone, job_agreement, together
from kareus.errors import DeviceError, EngineError

RANKS = 2


class Ranks:
    """Implements `Agreement` by what another rank tells."""

    def __init__(self, other: object) -> None:
        self.other = other

    def gather(self, told):  # type: ignore[no-untyped-def]
        return [told, self.other]


def refuse() -> None:
    raise DeviceError("GPU 1: in use.")


def test_what_all_ranks_can_do_is_done() -> None:
    assert together(Ranks(None), lambda: 3) == 3


def test_a_rank_that_is_refused_says_its_own_reason() -> None:
    for agreement in (Alone(), Ranks("GPU 7: in use.")):
        with pytest.raises(DeviceError, match=r"^GPU 1: in use\.$"):
            together(agreement, refuse)


def test_the_others_say_which_rank_was_refused_and_why() -> None:
    with pytest.raises(EngineError, match=r"^rank 1: GPU 7: in use\.$"):
        together(Ranks("GPU 7: in use."), lambda: 3)


def test_the_group_of_a_job_waits_for_no_rank_for_ever(tmp_path: Path) -> None:
    spawn(RANKS, left_alone, tmp_path)


def left_alone(rank: int) -> None:
    """Rank 1 does not answer, and rank 0 says so."""
    agreement_module.LONGEST_WAIT = datetime.timedelta(seconds=2)
    agreement = job_agreement()
    assert agreement.gather(rank) == list(range(RANKS))
    if rank == 0:
        with pytest.raises(
            EngineError, match=r"agreement of 2 ranks: another one has ended, or has not answered for 2 s"
        ):
            agreement.gather(rank)
    dist.barrier()
