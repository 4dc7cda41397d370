"""The fork server: a process that has imported what stages need, and forks itself for each command of a workflow's run.

A run of the workflow on this machine starts one (`start`), and it ends with the run. When a command is asked for, it
imports the command's module and what that names (`modules_of`). A process that it forks is a command like any other: it
has the standard streams, the folder and the environment of the `python -m kareus` that asked, gets Ctrl-C with it, and
ends with it.

The server takes only commands that would import the same in the same way: of the same user, environment and folder.
What it does not take, and what nobody takes any more, runs by itself (`kareus.processes.run_forked`).
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kareus.cli import EVERY, main, words_of
from kareus.processes import (
    FORK_SERVER_VARIABLE,
    MOST_BYTES,
    OF_EACH_PROCESS,
    PARENT_VARIABLE,
    STANDARD_STREAMS,
    STARTED,
    collect_rarely,
    die_with_parent,
    situation,
)

THREADS = ("OMP_NUM", "GOTO_NUM", "OPENBLAS_NUM", "MKL_NUM", "VECLIB_MAXIMUM", "NUMEXPR_NUM")
"""Environment variables, without `_THREADS`, that Snakemake sets to the number of threads of a job."""
FORKED_WITHOUT_HARM = ("jemalloc_bg_thd", "polars-ooc-clea")
"""Threads that importing Polars starts: those of its allocator, which sees to itself when a process forks, and one that
removes what earlier processes left on disk. A fork has neither; Polars starts its pool when it first computes."""
OF_NUMPY = "numpy.ma"
"""What NumPy's `unique` imports when it is first called; most commands call it."""
RECEIVED_WITHIN_S = 10.0
"""Time that a command has to say what it is, once it has connected; others are served meanwhile."""
ACCEPTED_AGAIN_AFTER_S = 0.1
"""Pause after a connection that could not be taken, as where no descriptor is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """A command that somebody asks for."""

    connection: socket.socket
    """Stays open as long as who asked is there; takes the exit code."""
    argv: list[str]
    variables: dict[str, str]
    """Environment variables that may differ from the server's."""
    streams: list[int]
    """Descriptors of its standard input, output and error."""


def start() -> "subprocess.Popen[bytes]":
    """Start a fork server that ends with this process, and name it in the environment of this process's children.

    The socket listens before the server runs, so that no command comes too early. Its name is abstract: nothing of it
    is left on disk, however the server ends.
    """
    address = f"kareus-{secrets.token_hex(16)}"
    one_thread = {f"{name}_THREADS": "1" for name in THREADS}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen(socket.SOMAXCONN)
        server = subprocess.Popen(
            [sys.executable, "-m", "kareus.cli.fork_server", str(listener.fileno())],
            pass_fds=[listener.fileno()],
            env=os.environ | one_thread | {PARENT_VARIABLE: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a reader of this process's output need not wait for the server
            stderr=subprocess.DEVNULL,
        )
    os.environ[FORK_SERVER_VARIABLE] = address
    atexit.register(_end, server)
    return server


def _end(server: "subprocess.Popen[bytes]") -> None:
    """End a server, and wait for it, so that what its commands took counts for this process."""
    server.terminate()
    server.wait()


def serve(listener: socket.socket) -> ForkRequest:
    """Fork a process for each command; returns in these processes, and in no other."""
    expected = situation()
    silent: dict[socket.socket, float] = {}
    while True:
        for connection in _asking(listener, silent):
            streams: list[int] = []
            try:
                request = _received(connection, streams, expected)
                if request is not None and _can_fork(request.argv) and os.fork() == 0:
                    for other in (listener, *silent):
                        other.close()
                    return request
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                pass  # who asked is gone, or is no command of ours, or no process is left to fork; it sees to itself
            connection.close()
            for stream in streams:
                os.close(stream)


def _asking(listener: socket.socket, silent: dict[socket.socket, float]) -> list[socket.socket]:
    """Wait until somebody connects or asks; returns the connections that have something to be received.

    Args:
        listener: takes connections.
        silent: those that have yet to say something, with the time until when they may; changed.
    """
    first = max(min(silent.values()) - time.monotonic(), 0.0) if silent else None
    ready = _ready([listener, *silent], first)
    if listener in ready:
        try:
            connection, _ = listener.accept()
            if _user_of(connection) == os.getuid():
                silent[connection] = time.monotonic() + RECEIVED_WITHIN_S
            else:  # it could hold all descriptors by saying nothing
                connection.close()
        except OSError:  # who connected is gone again, or no descriptor is left until a command has ended
            time.sleep(ACCEPTED_AGAIN_AFTER_S)
    asking = [connection for connection in ready if connection in silent]
    for connection in asking:  # late or not: the server may have been busy importing
        del silent[connection]
    now = time.monotonic()
    for connection in [c for c, until in silent.items() if until <= now]:
        del silent[connection]
        connection.close()
    return asking


def _ready(sockets: list[socket.socket], timeout_s: float | None) -> list[socket.socket]:
    """Return the sockets that have something to be received; unlike `select`, whatever their numbers are."""
    with selectors.PollSelector() as selector:
        for listener in sockets:
            selector.register(listener, selectors.EVENT_READ)
        ready = {key.fd for key, _ in selector.select(timeout_s)}
    return [listener for listener in sockets if listener.fileno() in ready]


def _user_of(connection: socket.socket) -> int:
    """Return the number of the user who connected, which the kernel tells."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)


def _reap(*_: object) -> None:
    """Let go of processes that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:  # there are none left
        pass


def _received(connection: socket.socket, streams: list[int], expected: dict[str, object]) -> ForkRequest | None:
    """Return what is asked for, if it would run as the server does; descriptors go to `streams`."""
    connection.settimeout(0.0)  # it has something to be received
    content, received, _, _ = socket.recv_fds(connection, MOST_BYTES, len(STANDARD_STREAMS))
    streams += received
    if len(streams) != len(STANDARD_STREAMS):
        return None
    asked = json.loads(content)
    if asked["situation"] != expected or not all(isinstance(word, str) for word in asked["argv"]):
        return None
    return ForkRequest(connection=connection, argv=asked["argv"], variables=asked["variables"], streams=streams)


def _can_fork(argv: list[str]) -> bool:
    """Import what a command needs; returns whether this process may be forked, as one with threads may not."""
    words = words_of(argv)
    if words not in EVERY:
        return False
    try:
        module = importlib.import_module(EVERY[words].module)
        imported_late = module.modules_of(argv) if hasattr(module, "modules_of") else ()
        for name in (*imported_late, *([OF_NUMPY] if "numpy" in sys.modules else [])):
            importlib.import_module(name)
    except Exception:  # noqa: BLE001 - the command itself says what is wrong
        return False
    gc.freeze()  # so that collecting garbage in a forked process copies no pages
    return not other_threads()


def other_threads() -> set[str]:
    """Return the names of this process's threads that a fork would lack, and miss.

    The main thread is known by its number: threads inherit the name of the one that starts them.
    """
    others = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
    return {(task / "comm").read_text().strip() for task in others} - set(FORKED_WITHOUT_HARM)


def run(request: ForkRequest) -> NoReturn:
    """Run a command in a process that was forked for it, and end the process."""
    _become(request)
    try:
        request.connection.send(STARTED)
    except OSError:  # who asked has died
        os._exit(1)
    code = 1
    try:
        code = main(request.argv)
    except SystemExit as ended:  # of the parser of arguments
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - what Python does with it at the end of a program
        sys.excepthook(*sys.exc_info())
    # The end of a program, but for clearing its modules, which would copy the memory shared with the server.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    with contextlib.suppress(OSError):  # who asked has died
        request.connection.send(str(code).encode())
    os._exit(code)


def _become(request: ForkRequest) -> None:
    """Take over the words, the streams, the environment and the signals of the process that asked."""
    sys.argv[1:] = request.argv  # `kareus train` gives them to the ranks that it starts
    for number, stream in zip(STANDARD_STREAMS, request.streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering=1, encoding=stream.encoding, errors=stream.errors, closefd=False)  # noqa: SIM115
        for number, mode, stream in ((0, "r", sys.stdin), (1, "w", sys.stdout), (2, "w", sys.stderr))
    )
    for name in OF_EACH_PROCESS:
        os.environ.pop(name, None)
    os.environ.update(request.variables)
    tempfile.tempdir = None
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGCHLD, signal.SIG_DFL),
    ):
        signal.signal(number, handler)
    request.connection.settimeout(None)
    # The kernel sends SIGTERM when the other end closes: who asked has died.
    descriptor = request.connection.fileno()
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


if __name__ == "__main__":
    die_with_parent()
    collect_rarely()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the run, which may have jobs to end first
    signal.signal(signal.SIGCHLD, _reap)
    run(serve(socket.socket(fileno=int(sys.argv[1]))))
