"""NCCL with an SM budget: a communicator for each number of SMs, since NCCL takes the limit when one is made.

NCCL runs each CTA on an SM of its own, so that a limit on CTAs is one on SMs (its maintainers, issue 689). For small
messages it takes fewer.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kareus.errors import EngineError
from kareus.model.communication import SUM
from kareus.model.communicators.process_group import ProcessGroupCommunicator, Works
from kareus.model.communicators.tokens import TokenCollectives

OVERRIDES = tuple(f"NCCL_{bound}_{what}" for what in ("CTAS", "NCHANNELS", "NRINGS") for bound in ("MIN", "MAX"))
"""Environment variables that NCCL heeds before the limits of a communicator (its src/graph/connect.cc)."""


class NcclCommunicator(TokenCollectives):
    """A `Communicator` over NCCL; makes a group for a number of SMs when it is first asked for.

    Every rank of the group asks for the same numbers in the same order, as it does for collectives.
    """

    def __init__(self, axis: str, group: dist.ProcessGroup) -> None:
        """Wrap a group of NCCL, which serves what no number of SMs is given for.

        Raises:
            EngineError: torch has no NCCL, or the environment overrides what a group is made with.
        """
        if not dist.is_nccl_available():
            raise EngineError("communicator 'nccl': this torch has no NCCL; choose 'gloo', or install torch for CUDA.")
        override = next((name for name in OVERRIDES if name in os.environ), None)
        if override:
            raise EngineError(f"{override}={os.environ[override]}: overrules the SM counts of collectives; unset it.")
        self.axis = axis
        self.size = group.size()
        self.rank = group.rank()
        self._ranks = dist.get_process_group_ranks(group)
        self._default = ProcessGroupCommunicator(axis, group)
        self._by_sm_count: dict[int, ProcessGroupCommunicator] = {}

    def prepare(self, sm_counts: Iterable[int | None]) -> None:
        """Make the groups and connect them, which takes seconds, before anything is timed; None is the one given."""
        for sm_count in sorted(set(sm_counts), key=lambda n: n or 0):
            self._limited(sm_count).all_reduce((torch.zeros(1, device="cuda"),)).wait()

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = SUM) -> Works:
        """As `Communicator.all_reduce`."""
        return self._limited(sm_count).all_reduce(tensors, operation=operation)

    def all_gather(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Works:
        """As `Communicator.all_gather`."""
        return self._limited(sm_count).all_gather(tensors, into=into)

    def reduce_scatter(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Works:
        """As `Communicator.reduce_scatter`."""
        return self._limited(sm_count).reduce_scatter(tensors, into=into)

    def all_to_all(
        self, rows: Tensor, sends: Sequence[int], receives: Sequence[int], sm_count: int | None = None
    ) -> Works:
        """As `Communicator.all_to_all`."""
        return self._limited(sm_count).all_to_all(rows, sends, receives)

    def _limited(self, sm_count: int | None) -> ProcessGroupCommunicator:
        if sm_count is None:
            return self._default
        if sm_count not in self._by_sm_count:
            group = dist.new_group(
                self._ranks,
                backend="nccl",
                pg_options=nccl_options(sm_count),
                use_local_synchronization=True,  # other groups of the job need other numbers
                group_desc=f"{self.axis}-{sm_count}-sms",
            )
            self._by_sm_count[sm_count] = ProcessGroupCommunicator(self.axis, group)
        return self._by_sm_count[sm_count]


def nccl_options(channels: int, cga: int | None = None) -> Any:
    """Return options of a group whose communicators have exactly that number of channels, each of one CTA.

    Args:
        channels: of rings and trees, and at most so many of NVLS, which NCCL clamps to them.
        cga: CTAs of a cluster, which have to divide the channels; None leaves them to NCCL.
    """
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.min_ctas = options.config.max_ctas = channels
    if cga is not None:
        options.config.cga_cluster_size = cga
    return options
