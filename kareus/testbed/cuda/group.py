"""Starting the workers of a group, calling them, and ending them all when one fails."""

import contextlib
import selectors
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kareus.errors import ConfigError, DeviceError
from kareus.testbed.config import CudaConfig
from kareus.testbed.cuda.channel import Channel

COMMAND = (sys.executable, "-m", "kareus.testbed.cuda.worker")
"""Starts a worker; the descriptor of its socket follows."""

_PATIENCE_S = 10.0
"""What a worker gets to restore its clock before it is killed."""


class WorkerGroup:
    """Workers of one layout, one for each GPU."""

    def __init__(self, config: CudaConfig, axes: Mapping[str, int], workers: int, command: Sequence[str]) -> None:
        """Start `workers` processes of `command`, laid out by `axes`.

        Raises:
            DeviceError: one of them cannot use its GPU.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="kareus-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[Channel] = []
        for _ in range(workers):
            self._start(command)
        settings = {
            "axes": dict(axes),
            "workers": workers,
            "collectives": config.collectives,
            "clocks": config.clocks,
            "rendezvous": str(Path(self._folder.name) / "rendezvous"),
        }
        for rank, channel in enumerate(self._channels):
            channel.send({"rank": rank, **settings})
        try:
            self._receive(range(workers))
            self._claiming_order = _order(self.call("identify"))
        except BaseException:
            self._end()
            raise

    def call(self, name: str, *arguments: Any) -> list[Any]:
        """Call all workers at once and return their answers, by rank.

        Raises:
            DeviceError: one refused, with its reason, or died.
        """
        return self._call(range(len(self._channels)), name, *arguments)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Have all GPUs to ourselves; an error ends the workers, which may be at work or wait for each other.

        They are claimed one after the other, in an order that all groups of a machine share: none waits in a circle.
        """
        try:
            for rank in self._claiming_order:
                self._call([rank], "claim")
            yield
            self.call("release")
        except BaseException:
            self._end()
            raise

    @property
    def alive(self) -> bool:
        """Whether it can be called."""
        return bool(self._processes)

    def close(self) -> None:
        """Close the channels, at which workers restore their clocks and exit; kill those that do not."""
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._channels, self._processes = [], []
        self._folder.cleanup()

    def _call(self, ranks: Sequence[int], name: str, *arguments: Any) -> list[Any]:
        for rank in ranks:
            try:
                self._channels[rank].send([name, *arguments])
            except BrokenPipeError:  # the worker has exited; receiving tells why
                continue
        return self._receive(ranks)

    def _receive(self, ranks: Sequence[int]) -> list[Any]:
        """Wait for all answers, or the first error: when one worker fails, the others may wait for it for ever."""
        answers: dict[int, Any] = {}
        with selectors.DefaultSelector() as selector:
            for rank in ranks:
                selector.register(self._channels[rank], selectors.EVENT_READ, rank)
            while len(answers) < len(ranks):
                for key, _ in selector.select():
                    answers[key.data] = self._answer(key.data)
                    selector.unregister(key.fileobj)
        return [answers[rank] for rank in ranks]

    def _answer(self, rank: int) -> Any:
        try:
            reply = self._channels[rank].receive()
        except (EOFError, ConnectionResetError):
            code = self._processes[rank].wait()
            raise DeviceError(
                f"GPU {rank}: its worker ended unexpectedly (exit code {code}); its last words are above."
            ) from None
        except ConfigError as error:
            raise DeviceError(f"GPU {rank}: its worker answers what is no answer ({error}).") from None
        if "error" in reply:
            raise DeviceError(reply["error"])
        return reply["answer"]

    def _end(self) -> None:
        """Stop workers that may be inside a collective whose peer has gone."""
        for process in self._processes:
            process.terminate()
        self.close()

    def _start(self, command: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            # In a process group of its own, so that Ctrl-C reaches this process only, which then ends its workers.
            self._processes.append(
                subprocess.Popen([*command, str(descriptor)], pass_fds=[descriptor], process_group=0)
            )
        self._channels.append(Channel(ours))


def _order(uuids: Sequence[str]) -> list[int]:
    """Ranks in the order of their GPUs' UUIDs."""
    return sorted(range(len(uuids)), key=lambda rank: uuids[rank])
