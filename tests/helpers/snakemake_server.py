"""A process that has imported Snakemake and the stages, and forks itself for each run.

    python snakemake_server.py LISTENER MODULE ...    # a socket that listens, and modules to import

Each process that runs tests keeps a connection (`preloaded.py`): a line of JSON asks for a run, and one with its exit
code answers. The server ends with the last connection. A run's fork server (`kareus.cli.fork_server`) is forked from
the same process, before Snakemake has any threads.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

import figures
from snakemake.cli import main

from kareus.artifacts.code import code_hash
from kareus.campaign.resolve import resolve_campaign
from kareus.cli import EVERY, fork_server
from kareus.processes import FORK_SERVER_VARIABLE, MOST_BYTES, collect_rarely, die_with_parent
from kareus.report import drawing

DRY_RUN, STAGE = "-n", "stage "
_prepared: set[int] = set()


def prepare(folder: Path, argv: list[str]) -> None:
    """Work out what depends on the content of files alone, which Snakemake then finds in the caches of functions."""
    content = tuple(path.read_bytes() for path in sorted((folder / "config").rglob("*.yaml")))
    name = next((word.removeprefix("campaign=") for word in argv if word.startswith("campaign=")), "quickstart")
    if hash((name, content)) not in _prepared:
        _prepared.add(hash((name, content)))
        with contextlib.suppress(Exception):  # Snakemake says what is wrong
            resolve_campaign(name, [], folder / "config")


def redirect(*places: tuple[int, str, int]) -> None:
    """Open the standard streams anew: number, file and whether it is written to."""
    for number, name, flags in places:
        os.dup2(os.open(name, flags), number)
    sys.stdin, sys.stdout, sys.stderr = (open(n, mode, closefd=False) for n, mode in enumerate("rww"))  # noqa: SIM115


def fork_servers_start() -> Any:
    """Fork a fork server to be; returns what stands for `fork_server.start`, after which it serves."""
    theirs, mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = os.fork()
    if process == 0:
        mine.close()
        serve_once_asked(theirs)
    theirs.close()

    def start() -> None:
        address = f"kareus-tests-{os.getpid()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0{address}")
            listener.listen(socket.SOMAXCONN)
            environment = os.environ | {f"{name}_THREADS": "1" for name in fork_server.THREADS}
            socket.send_fds(mine, [json.dumps(environment).encode()], [listener.fileno()])
        os.environ[FORK_SERVER_VARIABLE] = address
        atexit.register(os.waitpid, process, 0)
        atexit.register(os.kill, process, signal.SIGTERM)

    return start


def serve_once_asked(asking: socket.socket) -> NoReturn:
    """Wait for the environment and the listener of a fork server, and be it; end if nobody asks."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    redirect((0, os.devnull, os.O_RDONLY), (1, os.devnull, os.O_WRONLY), (2, os.devnull, os.O_WRONLY))
    environment, listeners, _, _ = socket.recv_fds(asking, MOST_BYTES, 1)
    if not environment:
        os._exit(0)
    asking.close()
    os.environ.clear()
    os.environ.update(json.loads(environment))
    signal.signal(signal.SIGCHLD, fork_server._reap)
    fork_server.run(fork_server.serve(socket.socket(fileno=listeners[0])))


def run(asked: dict[str, Any]) -> NoReturn:
    """Be Snakemake, as it was asked for."""
    die_with_parent()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path[0] = asked["folder"]
    if DRY_RUN not in asked["argv"]:
        fork_server.start = fork_servers_start()
    redirect((0, os.devnull, os.O_RDONLY), (1, asked["out"], os.O_WRONLY), (2, asked["error"], os.O_WRONLY))
    sys.argv = asked["argv"]
    sys.exit(main())


def answer(client: socket.socket) -> NoReturn:
    """Run what a client asks for, one after the other, until it ends."""
    die_with_parent()
    lines = client.makefile("rw")
    for line in lines:
        request = json.loads(line)
        prepare(Path(request["folder"]), request["argv"])
        gc.freeze()
        forked = os.fork()
        if forked == 0:
            run(request)
        ended = os.pidfd_open(forked)
        if client in select.select([client, ended], [], [])[0]:
            break  # the client does not wait any more: Snakemake ends with this process
        os.close(ended)
        print(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]), file=lines, flush=True)
    os._exit(0)


def serve(listener: socket.socket) -> None:
    """Fork for each client, until there is none."""
    answering: dict[int, int] = {}  # processes by a descriptor that can be read from once they have ended
    while True:
        ready = select.select([listener, *answering], [], [])[0]
        for ended in [descriptor for descriptor in answering if descriptor in ready]:
            os.waitpid(answering.pop(ended), 0)
            os.close(ended)
        if listener in ready:
            client, _ = listener.accept()
            with client:
                process = os.fork()
                if process == 0:
                    listener.close()
                    answer(client)
            answering[os.pidfd_open(process)] = process
        elif not answering:
            return


if __name__ == "__main__":
    drawing.save = figures.save_empty  # before stages import it
    collect_rarely()
    number, *modules = sys.argv[1:]
    for module in (*modules, *(command.module for name, command in EVERY.items() if name.startswith(STAGE))):
        importlib.import_module(module)
    for command in EVERY.values():
        code_hash(command.module)
    gc.freeze()
    with socket.socket(fileno=int(number)) as clients:
        serve(clients)
