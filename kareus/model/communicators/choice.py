"""Choosing the library that communicates."""

from collections.abc import Sequence
from enum import StrEnum

import torch.distributed as dist

from kareus.model.communication import Communicator
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.communicators.mscclpp import MscclppCommunicator
from kareus.model.communicators.nccl import NcclCommunicator
from kareus.model.communicators.process_group import ProcessGroupCommunicator


class Library(StrEnum):
    """Libraries with a communicator."""

    GLOO = "gloo"
    """Collectives on CPUs."""
    NCCL = "nccl"
    """SM budgets through limits of communicators."""
    MSCCLPP = "mscclpp"
    """SM budgets through the size of a kernel's grid."""
    LOOPBACK = "loopback"
    """One GPU alone, which pretends."""


def make_communicator(library: Library, axis: str, ranks: Sequence[int], scratch_bytes: int) -> Communicator | None:
    """Make the communicator of one group; every rank in it calls this, and no other has to.

    Args:
        library: who communicates.
        axis: `tp`, `cp` or `dp`.
        ranks: of the group; one rank needs no communicator.
        scratch_bytes: the largest message, for libraries that copy through a buffer.

    Raises:
        EngineError: the library is missing.
    """
    if len(ranks) == 1:
        return None
    if library is Library.LOOPBACK:
        return LoopbackCommunicator(axis, len(ranks))
    backend = "nccl" if library is Library.NCCL else "gloo"
    group = dist.new_group(list(ranks), backend=backend, use_local_synchronization=True, group_desc=axis)
    if library is Library.NCCL:
        return NcclCommunicator(axis, group)
    if library is Library.MSCCLPP:
        others = dist.new_group(list(ranks), backend="nccl", use_local_synchronization=True, group_desc=f"{axis}-nccl")
        return MscclppCommunicator(axis, group, scratch_bytes, NcclCommunicator(axis, others))
    return ProcessGroupCommunicator(axis, group)
