"""All ranks end when one fails, and rank 0 prints the reason once.

A rank that waits in a collective for one that has gone may wait for ever. So every rank keeps a connection to rank 0;
the kernel closes it when a rank dies, however it dies, or its whole machine is gone. Rank 0 then prints the reason and
tells all others, which restore their clocks and end. If rank 0 dies, all others see that.

Two failures close no connection: a process that is stopped, and a main thread that hangs. Heartbeats find both.

Torch's own store and elastic agent do not do this: the store notices no client that dies, and takes keys from anybody;
the agent sees only its own machine's ranks, and a signal reaches no main thread that waits in a collective.
"""

import contextlib
import traceback
from collections.abc import Iterator

from kareus.errors import KareusError, refused_by_system
from kareus.launch.client import CoordinatorClient
from kareus.launch.coordinator import Coordinator
from kareus.launch.heartbeats import Patience
from kareus.launch.monitor import RankMonitor
from kareus.launch.wire import AddressStore, Urgency


@contextlib.contextmanager
def watched(
    store: AddressStore, rank: int, size: int, name: str, patience: Patience | None = None
) -> Iterator[RankMonitor]:
    """Watch all ranks while the context is open; every rank enters it.

    Args:
        store: shared by all ranks.
        rank: of this process.
        size: number of ranks.
        name: of the program, the start of every message.
        patience: timeouts of ranks; by default those of `Patience`.

    Raises:
        EngineError: rank 0 cannot be reached.
    """
    patience = patience or Patience()
    monitor = RankMonitor(rank, name)
    if size == 1:
        yield monitor
        return
    side = Coordinator(monitor, size, store, patience) if rank == 0 else CoordinatorClient(monitor, store, patience)
    try:
        yield monitor
    except BaseException as error:
        side.fail(*_failure(rank, error))
        raise
    monitor.doing = None
    side.finish()


def _failure(rank: int, error: BaseException) -> tuple[Urgency, str]:
    """Return the urgency and the message of an error; one that a user cannot act on has its traceback."""
    if isinstance(error, KareusError):
        return Urgency.FATAL, str(error)
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):  # which follows from a peer's end
        return Urgency.FATAL, f"rank {rank}: {refused_by_system(error)}"
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return Urgency.FATAL, "interrupted; start it again to go on from the last checkpoint, if there is one."
    return Urgency.CONSEQUENCE, f"rank {rank}: {''.join(traceback.format_exception(error)).rstrip()}"
