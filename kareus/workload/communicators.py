"""GPU memory of NCCL's communicators, which PyTorch's allocator does not know of.

A communicator has channels, each run by one SM, and every connection of a channel has buffers. In NCCL's sources
(`src/init.cc`, `src/include/device.h`) they are, unless its environment says otherwise: 4 MiB for the protocol Simple
(`NCCL_BUFFSIZE`), 120 x 640 x 8 x 8 bytes for LL128, and 8 x 512 x 8 x 16 bytes for LL, all with the receiver, together
rounded up to 2 MiB (`src/transport/p2p.cc`); the sender has 2 MiB of its own. Where GPUs read from each other the
buffer of Simple is the sender's, and the sum the same. Logs of NCCL on H100s show these sizes (its issue 1685).

NCCL connects an algorithm when it is first used (`NCCL_RUNTIME_CONNECT`), and large messages go by rings: a connection
from one neighbour and one to the other. What NVLink SHARP takes beside them is left to the reserve. A communicator that
is limited to SMs has as many channels, and there is one for each number of SMs and axis (`kareus.model.communicators`).
Which numbers a plan uses is not known before it is planned, so all that the search space has are counted.
"""

from kareus.schedule.config import sm_allocations
from kareus.workload.config import Workload

MIB = 2**20
_GRANULARITY = 2 * MIB
_PROTOCOLS_BYTES = 4 * MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16
RECEIVED_BYTES = -(-_PROTOCOLS_BYTES // _GRANULARITY) * _GRANULARITY
"""Bytes of one channel of a connection on the GPU that receives."""
SENT_BYTES = _GRANULARITY
"""Bytes of one channel of a connection on the GPU that sends."""
RING_BYTES = RECEIVED_BYTES + SENT_BYTES
"""Bytes of one channel of a ring on each of its GPUs."""
MESSAGE_CHANNELS = 8
"""Channels of messages between stages; NCCL's own choice inside a node may be 32, which hold as many SMs while a
receive waits for its sender."""
SUM_CHANNELS = 1
"""Channels of sums of single numbers."""


def communicator_bytes(workload: Workload, stage: int) -> int:
    """Return what the communicators of one GPU of a stage take at most.

    Args:
        workload: whose search space has the numbers of SMs. NCCL's own number of channels, which collectives outside
            of the blocks have, is taken for `testbed.default_collective_sm_count`.
        stage: of the pipeline.
    """
    parallelism, own = workload.parallelism, workload.testbed.default_collective_sm_count
    channels = 0
    for size in (parallelism.tp, parallelism.cp):
        if size > 1:
            channels += own + sum({*sm_allocations(size, workload.space), own})
    channels += own * ((parallelism.dp > 1) + (parallelism.copies > 1))
    channels += SUM_CHANNELS * (parallelism.tp > 1)
    if parallelism.pp > 1:
        tied = workload.model.tie_embeddings and parallelism.head_stage > 0
        channels += MESSAGE_CHANNELS + own * (tied and stage in (0, parallelism.head_stage))
    return RING_BYTES * channels + _message_bytes(workload, stage)


def _message_bytes(workload: Workload, stage: int) -> int:
    """Return what messages take: each way, a connection from the neighbours that send and to those that receive."""
    stages = workload.parallelism.pp
    if stages == 1:
        return 0
    around = workload.chunks > 1 and not workload.parallelism.folded  # the last stage sends to the first one, too
    neighbours = 2 if around else (stage > 0) + (stage < stages - 1)
    return neighbours * MESSAGE_CHANNELS * (RECEIVED_BYTES + SENT_BYTES)
