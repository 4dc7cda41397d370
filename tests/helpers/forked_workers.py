"""Workers of pytest-xdist, forked from one process that has collected the tests.

Importing PyTorch and its like, and all test files, takes a worker eight seconds, and what starts its ranks four. One
process does it for all of them and forks itself for each. Workers start as usual where it cannot collect, or where that
leaves threads that a fork would lack.
"""

import ast
import contextlib
import gc
import json
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from execnet.gateway_base import get_execmodel, init_popen_io
from execnet.gateway_base import serve as serve_execnet

from kareus.cli.fork_server import other_threads
from kareus.processes import MOST_BYTES, STANDARD_STREAMS, STARTED

SERVER = """
import json, sys
given = json.loads(sys.argv[1])
sys.path[:] = given["path"]
from helpers.forked_workers import serve, work
if serve(given["listener"], given["arguments"]):
    work()
"""
"""Ends as the server, or, in what it forks, as a worker."""
CLIENT = """
import os, signal, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    try:
        server.connect(chr(0) + sys.argv[1])
        socket.send_fds(server, [b"worker"], [0, 1, 2])
        started = server.recv(100)
    except OSError:  # there is no server any more
        started = b""
    if started:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker gets it as well
        os.closerange(0, 2)  # so that its end is seen
        server.recv(1)  # nothing, once it has ended
        sys.exit()
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""What execnet starts and kills: stands for a worker of the server, or becomes one."""


class ForkedWorker(NamedTuple):
    """A worker that the server has forked."""

    process: int
    client: socket.socket
    """Open as long as somebody wants the worker."""


def fork_workers(config: pytest.Config, specs: list[Any]) -> None:
    """Have the workers of these specifications of execnet forked, in a hook `pytest_xdist_setupnodes`."""
    if sys.platform != "linux":
        return
    address = f"kareus-tests-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen(socket.SOMAXCONN)
        arguments = [os.fspath(argument) for argument in config.invocation_params.args]
        given = {"path": sys.path, "listener": listener.fileno(), "arguments": arguments}
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, json.dumps(given)],
            cwd=config.invocation_params.dir,
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,  # closed when this process ends, and the server with it
            stdout=subprocess.DEVNULL,
        )
    config.add_cleanup(server.communicate)
    for spec in specs:
        if spec.popen and not spec.python:
            spec.python = shlex.join([sys.executable, "-c", CLIENT, address])


def serve(listener: int, arguments: list[str]) -> bool:
    """Collect the tests that arguments of pytest select, and fork a worker for each client.

    Returns:
        True in a worker, which has its client's standard streams; False once there is nothing more to serve.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its parent
    environment = dict(os.environ)
    collected = pytest.main([*arguments, "--collect-only", "-qq", "-n0"])
    sys.stdout.flush()  # else what is forked prints the rest of the list of tests as well
    if collected != pytest.ExitCode.OK or other_threads():
        return False
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=listener) as clients:
        streams = _forked(clients)
    if streams:
        _fork_server_of_ranks()
        for number, stream in zip(STANDARD_STREAMS, streams, strict=True):
            os.dup2(stream, number)
            os.close(stream)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(environment)
    return bool(streams)


def work() -> None:
    """Answer xdist as a worker of execnet until it ends, with the module of execnet that is imported here.

    The first line is the source of that module, for hosts without it: it is read, and not run.
    """
    del sys.argv[1:]
    sys.stdin.readline()
    model = get_execmodel("main_thread_only")  # as xdist asks for
    streams = init_popen_io(model)
    streams.write(b"1")  # execnet waits for it
    serve_execnet(streams, id="forked-worker")


def _fork_server_of_ranks() -> None:
    """Start what `multiprocessing` forks ranks from (`worlds.py`) by forking it as well, which spares its imports."""
    multiprocessing.resource_tracker.ensure_running()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing.forkserver.util, "spawnv_passfds", _forked_instead)
        multiprocessing.forkserver.ensure_running()


def _forked_instead(_: bytes, command: list[str], descriptors: list[int]) -> int:
    """Process that a command `python -c "...; main(...)"` would start, with these descriptors alone; says nothing."""
    call = ast.parse(command[-1]).body[-1]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    arguments = [ast.literal_eval(argument) for argument in call.value.args]
    options: dict[str, Any] = {}
    for option in call.value.keywords:
        value = ast.literal_eval(option.value)
        options |= value if option.arg is None else {option.arg: value}
    process = os.fork()
    if process == 0:
        for descriptor in {int(opened.name) for opened in Path("/proc/self/fd").iterdir()} - {*descriptors}:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(descriptor)
        for _ in STANDARD_STREAMS:
            os.open(os.devnull, os.O_RDWR)
        try:
            multiprocessing.forkserver.main(*arguments, **options)
        finally:
            os._exit(0)  # its end is an exception, which nobody here waits for
    return process


def _forked(clients: socket.socket) -> list[int]:
    """Fork for each client; returns the client's descriptors in what is forked, none at the end of the parent."""
    workers: dict[int, ForkedWorker] = {}  # by a descriptor that can be read from once the process has ended
    while True:
        waited_for = [clients, sys.stdin, *workers, *(worker.client for worker in workers.values())]
        ready = select.select(waited_for, [], [])[0]
        _let_go(workers, ready)
        if sys.stdin in ready:
            _let_go(workers, [*workers])
            return []
        if clients in ready:
            client, _ = clients.accept()
            streams = list(socket.recv_fds(client, MOST_BYTES, len(STANDARD_STREAMS))[1])
            process = os.fork() if streams else None  # without them it has been killed
            if process == 0:
                for other in (client, *(worker.client for worker in workers.values())):
                    other.close()
                return streams
            if process is not None:
                with contextlib.suppress(OSError):  # it has just been killed
                    client.send(STARTED)
                workers[os.pidfd_open(process)] = ForkedWorker(process, client)
            for stream in streams:
                os.close(stream)


def _let_go(workers: dict[int, ForkedWorker], ready: list[Any]) -> None:
    """Wait for the workers that have ended, or that nobody wants any more, and tell their clients."""
    for descriptor, (process, client) in list(workers.items()):
        if client in ready:
            os.kill(process, signal.SIGKILL)
        if client in ready or descriptor in ready:
            os.waitpid(process, 0)
            del workers[descriptor]
            client.close()
            os.close(descriptor)
