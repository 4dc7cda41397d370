"""Messages that this rank sends to other stages, one under way at a time.

PyTorch's pipeline runtime keeps each send, and with it the tensor, until the iteration ends, so that activations pile
up with the number of microbatches. Here a send is waited for before the next begins: the tensors of one are alive, as
`kareus.workload.memory` counts. This cannot lock up, since what a send waits for precedes it in the line of events that
all stages follow (`kareus.runtime.actions`). On CUDA it is the stream that waits, not the host.
"""

from collections.abc import Sequence

import torch.distributed as dist
from torch.distributed.pipelining.schedules import _batch_p2p


class Sends:
    """The send of this rank that is under way."""

    def __init__(self) -> None:
        self._works: list[dist.Work] = []

    def start(self, operations: Sequence[dist.P2POp]) -> None:
        """Release the tensors of the send before, once it has been sent, and begin to send those of `operations`."""
        self.finish()
        self._works = _batch_p2p(list(operations))

    def finish(self) -> None:
        """Wait until the last send has been sent, and release its tensors."""
        for work in self._works:
            work.wait()
        self._works = []
