"""Messages between stages, which wait for nothing that the instruction DAG does not know of.

In the DAG (`kareus.pipeline.solver.dag`) a message starts when the instruction that leaves it has ended, whatever its
receiver computes then. NCCL's send and receive are kernels, which wait for what precedes them on their communicator's
stream, and for what the stream that computes had been given when they were begun. Hence:

- Messages to later and to earlier stages have process groups of their own, and each is begun by itself. PyTorch's NCCL
  makes of a group a communicator, with a stream, for every pair of ranks that exchange single messages: what two stages
  send each other at the same time does not queue.
- A receive is begun before the instruction that is planned to run when the message is sent (`kareus.runtime.actions`).
  It waits for the instructions before that one, which are planned to have ended by then, and for no later one. Begun
  earlier still, its kernel would keep SMs from computation while it waits for the sender.
- What uses a message waits for it only once the plan follower has asked for its clock, so that a clock changes while
  the message is under way.

A rank waits for a send before it begins the next one, where PyTorch's runtime would keep all sends, and with them
their tensors, until the iteration ends: the tensors of one are alive, as `kareus.workload.memory` counts. This cannot
lock up, since what a send waits for precedes it in the line of events that all stages follow. On CUDA it is the stream
that waits, not the host.
"""

from collections.abc import Hashable, Sequence

import torch.distributed as dist


def begin(operation: dist.P2POp, backward: dist.ProcessGroup) -> dist.Work:
    """Begin to send or receive.

    Args:
        operation: of the group of messages to later stages.
        backward: the same ranks, for messages to earlier stages.
    """
    own_rank, peer = operation.group.rank(), operation.group_peer
    if operation.op is dist.isend:
        work = dist.isend(operation.tensor, group=operation.group if own_rank < peer else backward, group_dst=peer)
    else:
        work = dist.irecv(operation.tensor, group=operation.group if peer < own_rank else backward, group_src=peer)
    assert work is not None
    return work


class Sends:
    """The send of this rank that is under way."""

    def __init__(self, backward: dist.ProcessGroup) -> None:
        """Send messages to earlier stages over `backward`."""
        self._backward = backward
        self._works: list[dist.Work] = []

    def start(self, operations: Sequence[dist.P2POp]) -> None:
        """Release the tensors of the send before, once it has been sent, and begin to send those of `operations`."""
        self.finish()
        self._works = [begin(operation, self._backward) for operation in operations]

    def finish(self) -> None:
        """Wait until the last send has been sent, and release its tensors."""
        for work in self._works:
            work.wait()
        self._works = []


class Receives:
    """The receives of this rank whose messages are not used yet."""

    def __init__(self, backward: dist.ProcessGroup) -> None:
        """Receive messages from later stages over `backward`."""
        self._backward = backward
        self._works: dict[Hashable, list[dist.Work]] = {}

    def start(self, message: Hashable, operations: Sequence[dist.P2POp]) -> None:
        """Begin to receive."""
        self._works[message] = [begin(operation, self._backward) for operation in operations]

    def finish(self, message: Hashable) -> None:
        """Have what is computed from now on wait until a message is there; nothing if it comes from this rank."""
        for work in self._works.pop(message, ()):
            work.wait()
