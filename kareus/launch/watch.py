"""All ranks end when one fails, and one line says why.

A rank that waits in a collective for one that has gone may wait for ever. So a thread of every rank says in the store
of the rendezvous that it lives and how far it is, and looks there for failures. The first failure ends all: rank 0
prints the reason, and all restore their clocks. What fails is noticed by whom it cannot silence:

- an error, by the rank itself;
- a process that ends, however it does, by the other ranks of its machine, which the kernel tells (pidfd_open(2));
- one that is stopped, or whose whole machine is gone, by rank 0, for its heartbeats cease; rank 0's own by all others;
- a main thread that hangs, by rank 0, for heartbeats come without progress;
- the store, which the process or the machine of rank 0 holds, by all.

Torch's elastic agent watches less: it sees the ranks of its own machine only, ends them with the first that fails
before any can say why, and misses those that are stopped or hang. It is told of a failure in its record of errors.
"""

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

from kareus.artifacts.records import canonical_json
from kareus.errors import ConfigError
from kareus.launch.heartbeats import LifeSigns, Patience
from kareus.launch.monitor import RankMonitor
from kareus.launch.start_store import (
    BEAT,
    DONE,
    ENDED,
    FAILURES,
    HELLO,
    LEFT,
    LOOK_S,
    PROCESS,
    WELCOME,
    Beat,
    Failure,
    Process,
    SharedStore,
    StartStore,
    Urgency,
    failure_of,
    failures_of,
    joined,
    read,
    tell,
    wait_until,
)
from kareus.processes import start_of

_GRACE_S = 1.0
"""Time between the first failure and the end: the loss of a peer is often noticed before its cause."""
_REPLY_TIMEOUT_S = 10.0
"""Longest wait for the rank that prints the reason."""
_LOOKS_PER_S = 5000
"""Looks of all ranks that the store answers in a second, far below what it can."""
_DIED = "died; all others end,"


@contextlib.contextmanager
def watched(
    store: SharedStore, rank: int, size: int, name: str, patience: Patience | None = None
) -> Iterator[RankMonitor]:
    """Watch all ranks while the context is open; every rank enters it.

    Args:
        store: shared by all ranks of this start, and by no other.
        rank: of this process.
        size: number of ranks.
        name: of the program, the start of every message.
        patience: timeouts of ranks; by default those of `Patience`.

    Raises:
        EngineError: rank 0 does not come.
    """
    monitor = RankMonitor(rank, name)
    if size == 1:
        yield monitor
        return
    watch = RankWatch(monitor, size, store, patience or Patience())
    try:
        yield monitor
    except BaseException as error:
        watch.fail(error)
        raise
    watch.finish()


class RankWatch:
    """One rank's part in the watching of all."""

    def __init__(self, monitor: RankMonitor, size: int, store: SharedStore, patience: Patience) -> None:
        """Join the others of this start, take over rank 0's identity of it, and begin to watch.

        Raises:
            EngineError: rank 0 does not come.
        """
        self._monitor, self._size, self._patience = monitor, size, patience
        self._whole: SharedStore = store.clone()  # type: ignore[attr-defined]  # which the stub of torch's lacks
        if monitor.rank > 0:
            monitor.run = joined(store, monitor.rank)
        self._store, self._watched = StartStore(store, monitor.run), StartStore(self._whole, monitor.run)
        now_s = self._answered_s = time.monotonic()
        ranks = range(size) if monitor.rank == 0 else (0,)
        self._signs = {rank: LifeSigns(heard_s=now_s, moved_s=now_s) for rank in ranks}
        self._neighbours = Neighbours(monitor.rank, self._store)
        self._beats, self._beat_due_s = 0, now_s
        self._done = self._finished = self._ending = False
        for target in (self._watch, self._supervise):
            threading.Thread(target=target, daemon=True).start()

    def fail(self, error: BaseException) -> None:
        """Tell of an error of this rank, also in the record of torch's elastic agent, and wait for the end."""
        with contextlib.suppress(RuntimeError):  # the store is lost, which the other thread notices
            tell(self._store, failure_of(self._monitor.rank, error))
        if "TORCHELASTIC_ERROR_FILE" in os.environ:
            from torch.distributed.elastic.multiprocessing.errors import get_error_handler  # noqa: PLC0415

            with contextlib.suppress(OSError):
                get_error_handler().record_exception(error)
        time.sleep(_GRACE_S + _REPLY_TIMEOUT_S)

    def finish(self) -> None:
        """Say that this rank is done, and wait for all others."""
        self._monitor.doing, self._done, self._beat_due_s = None, True, 0.0
        try:
            self._store.add(DONE, 1)
            wait_until(lambda: self._store.add(DONE, 0) >= self._size)
            self._finished = True
            self._store.add(LEFT, int(self._monitor.rank > 0))
            if self._monitor.rank == 0:  # its process may hold the store, in which others still look
                wait_until(lambda: self._store.add(LEFT, 0) >= self._size - 1, _REPLY_TIMEOUT_S)
        except RuntimeError:  # the store is lost: the other thread ends this process, unless all are done
            if not self._finished:
                time.sleep(_REPLY_TIMEOUT_S)

    def _watch(self) -> None:
        """Say that this rank lives, and look for failures, until all are done."""
        pause_s = max(LOOK_S, self._size / _LOOKS_PER_S)
        while not self._finished:
            if time.monotonic() - self._answered_s > self._patience.heartbeat_s / 2:  # this process or the store slept
                for signs in self._signs.values():
                    signs.heard_s = signs.moved_s = time.monotonic()
            try:
                self._look()
            except RuntimeError:
                if not self._finished:
                    self._lose_store()
            self._answered_s = time.monotonic()
            self._neighbours.wait(pause_s)

    def _look(self) -> None:
        if time.monotonic() >= self._beat_due_s:
            self._beat_due_s = time.monotonic() + self._patience.interval_s
            self._beat()
            self._hear()
        for rank, signs in self._signs.items():
            if not signs.has_joined and self._whole.check([hello := HELLO.format(rank)]):
                word = self._whole.get(hello).decode(errors="replace")
                self._whole.set(WELCOME.format(rank, word), self._monitor.run)
        for rank in self._neighbours.ended(self._watched):
            self._miss(rank, _DIED)
        if self._watched.check([FAILURES]):
            self._ending = True
            self._end()

    def _supervise(self) -> None:
        """End where the store gives no answer: rank 0, whose process or machine holds it, is stopped or gone."""
        interval_s, last_s = self._patience.interval_s, time.monotonic()
        while not self._finished:
            time.sleep(interval_s)
            now_s, patience_s = time.monotonic(), self._patience.heartbeat_s + interval_s
            if self._ending:
                patience_s += _GRACE_S + _REPLY_TIMEOUT_S
            if now_s - last_s > self._patience.heartbeat_s / 2:  # this process was stopped itself
                self._answered_s = now_s
            elif now_s - self._answered_s > patience_s:
                says = self._monitor.rank == 1 and not self._ending
                self._monitor.end(f"rank 0 {self._patience.silence} {self._monitor.remains}" if says else None)
            last_s = now_s

    def _beat(self) -> None:
        self._beats += 1
        monitor = self._monitor
        beat = Beat(number=self._beats, steps=monitor.steps, doing=monitor.doing, done=self._done)
        self._watched.set(BEAT.format(monitor.rank), canonical_json(beat))

    def _hear(self) -> None:
        """Look for the heartbeats of others, and miss those whose signs of life cease."""
        for rank, signs in self._signs.items():
            try:
                beat = read(Beat, self._watched, BEAT.format(rank))
            except ConfigError:  # anybody who reaches the store may write to it
                self._miss(rank, _DIED)
                continue
            if beat is not None and beat.number != signs.number:
                signs.hear(beat.steps, beat.doing)
                signs.number, signs.done = beat.number, beat.done
        missed = {rank: reason for rank, signs in self._signs.items() if (reason := signs.missed(self._patience))}
        if self._monitor.rank > 0:  # rank 0 watches over progress, its own included
            missed = {rank: reason for rank, reason in missed.items() if reason == self._patience.silence}
        if missed:  # the rank that hangs stopped before those that wait for it
            rank = min(missed, key=lambda each: self._signs[each].moved_s)
            self._miss(rank, missed[rank])

    def _miss(self, rank: int, reason: str) -> None:
        """Tell that a rank is missed, unless it is done, or all are."""
        with contextlib.suppress(ConfigError):
            beat = read(Beat, self._watched, BEAT.format(rank))
            if beat is not None and beat.done:
                return
        if self._watched.add(DONE, 0) < self._size:
            tell(self._watched, Failure(urgency=Urgency.DEATH, rank=rank, message=f"rank {rank} {reason}"))

    def _lose_store(self) -> NoReturn:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            reason, says = "the store of torchrun is gone; all end,", os.environ.get("LOCAL_RANK") == "0"
        else:
            reason, says = f"rank 0 {_DIED}", self._monitor.rank == 1
        self._monitor.end(f"{reason} {self._monitor.remains}" if says else None)

    def _end(self) -> None:
        """End this process once the first rank that lives has printed the reason.

        No rank ends before that, so that a process that ends meanwhile, or a store that is lost, is a cause.
        """
        seen_s, reason = time.monotonic(), ""
        try:
            is_over = wait_until(self._is_over, _GRACE_S)
            if not is_over:
                failures = failures_of(self._watched)
                cause = min(failures)
                reason = cause.message
                if cause.urgency is Urgency.DEATH:
                    reason += f" {self._monitor.remains}"
                dead = {each.rank for each in failures if each.urgency is Urgency.DEATH}
                if self._monitor.rank == (0 in dead):
                    self._watched.set(ENDED, "")  # this process may hold the store, in which others look for it
                    wait_until(lambda: self._watched.add(LEFT, 0) >= self._size - 1 - len(dead), _GRACE_S)
                    self._monitor.end(reason)
                is_over = wait_until(lambda: self._watched.check([ENDED]), _REPLY_TIMEOUT_S)
            if is_over:
                self._watched.add(LEFT, 1)
        except RuntimeError:  # the store is lost; later, because who printed the reason had it
            if time.monotonic() - seen_s < _GRACE_S / 2:
                self._lose_store()
            is_over = True
        self._monitor.end(None if is_over or self._monitor.rank != 1 else reason)

    def _is_over(self) -> bool:
        """Return whether the reason was printed; until then, tell of processes that have ended."""
        gone = self._neighbours.ended(self._watched)
        if self._watched.check([ENDED]):
            return True
        for rank in gone:
            self._miss(rank, _DIED)
        return False


class Neighbours:
    """The processes of the other ranks of this machine, as the kernel sees them."""

    def __init__(self, rank: int, store: SharedStore) -> None:
        """Publish the process of `rank`."""
        self._rank, self._machine, self._listed = rank, _machine(), 0
        self._running: dict[int, int] = {}
        """By descriptor of a process, its rank."""
        self._poll = select.poll()
        process = Process(rank=rank, number=os.getpid(), start=start_of(os.getpid()))
        number = store.add(PROCESS.format(self._machine, "count"), 1)
        store.set(PROCESS.format(self._machine, number), canonical_json(process))

    def ended(self, store: SharedStore) -> list[int]:
        """Return ranks whose processes have ended since the last time."""
        gone = []
        while store.check([key := PROCESS.format(self._machine, self._listed + 1)]):
            self._listed += 1
            with contextlib.suppress(ConfigError):
                process = read(Process, store, key)
                if process is not None and process.rank != self._rank and not self._follow(process):
                    gone.append(process.rank)
        for descriptor, _ in self._poll.poll(0):
            self._poll.unregister(descriptor)
            os.close(descriptor)
            gone.append(self._running.pop(descriptor))
        return gone

    def _follow(self, process: Process) -> bool:
        """Follow a process; return False if it has ended already. Where the kernel cannot, heartbeats have to do."""
        if not hasattr(os, "pidfd_open"):
            return True
        try:
            descriptor = os.pidfd_open(process.number)
        except (OSError, OverflowError):
            return False
        if start_of(process.number) != process.start:
            os.close(descriptor)
            return False
        self._running[descriptor] = process.rank
        self._poll.register(descriptor, select.POLLIN)
        return True

    def wait(self, seconds: float) -> None:
        """Wait until a process ends, for so long at most."""
        self._poll.poll(1000 * seconds)


def _machine() -> str:
    """Return what names this machine, or the container in which its ranks see each other's processes."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
        return f"{file.read().strip()}-{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116
    return f"process {os.getpid()}"
