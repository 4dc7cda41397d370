"""Processes of a workflow: they end with their parent, and they start without importing what another has imported.

Importing NumPy, Polars and the package takes longer than most stages. A run of the workflow on this machine therefore
starts a fork server (`kareus/cli/fork_server.py`); `python -m kareus` hands its command to it and waits, as if it ran
the command itself. This module is the part of that which every command needs, and imports next to nothing.
"""

import ctypes
import gc
import os
import signal
import sys

TYPE_CHECKING = False  # as of `typing`, which takes as long to import as all of this
if TYPE_CHECKING:
    import socket

PARENT_VARIABLE = "KAREUS_PARENT"
"""Environment variable in which a parent passes its process ID to a child, for `die_with_parent`."""
FORK_SERVER_VARIABLE = "KAREUS_FORK_SERVER"
"""Environment variable with the name of the abstract socket on which the fork server of this run listens."""
OF_EACH_PROCESS = {
    "_",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "TMPDIR",
    "TEMPDIR",
    "TEMP",
    "TMP",
    PARENT_VARIABLE,
    FORK_SERVER_VARIABLE,
}
"""Environment variables that shells and Snakemake change for a job, and that nothing reads while it imports."""
STARTED = b"started"
"""What a process of the fork server sends before it runs the command."""
MOST_BYTES = 200_000
"""Longest request; a longer command runs by itself."""
STANDARD_STREAMS = [0, 1, 2]
"""Descriptors that go with a request."""
MOST_DIGITS = 3
"""Characters of an exit code."""
ANSWER_WITHIN_S = 60.0
"""Time in which the fork server must start a command, importing it for the first time included."""
KILLED = 128 + signal.SIGKILL
"""Exit code of a command whose process ended without saying how."""
NEW_OBJECTS = 50_000
"""New objects after which Python looks for garbage among them."""


def collect_rarely() -> None:
    """Have Python look for garbage after many new objects, in a process of ours.

    Records of operators and plans are many and have no cycles. Looking for those after every 700 objects, as Python
    does by itself, takes a tenth of the time of an answer.
    """
    gc.set_threshold(NEW_OBJECTS)


def die_with_parent() -> None:
    """Ask Linux to terminate this process when its parent dies, so that no orphan writes after a `kill -9`.

    A parent that died before Linux was asked has been replaced by another one: then this process ends at once. That
    includes a parent that died before the first line of Python ran, if it passed its number in `PARENT_VARIABLE`.
    """
    said = os.environ.pop(PARENT_VARIABLE, "")  # popped, for it is not the parent of this process's children
    parent = int(said) if said.isdecimal() else os.getppid()
    if sys.platform == "linux":
        parent_death_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def start_of(process: int) -> int:
    """Return when a process started, in clock ticks after the machine did; 0 if this cannot be seen.

    Numbers of processes are used again; with this one, a number means one process.
    """
    try:
        with open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123 - importing pathlib takes longer
            return int(file.read().rpartition(b")")[2].split()[19])  # field 22 of proc(5); the name may have spaces
    except OSError:
        return 0


def is_running(process: int, start: int) -> bool:
    """Return whether the process that had this number and this start (`start_of`) runs, as far as can be seen."""
    now = start_of(process)
    if now:
        return now == start
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):  # the latter of a number that no process has
        return False
    except PermissionError:
        pass
    return True  # of another user whose processes are hidden, or a system without /proc


def situation() -> dict[str, object]:
    """Return what decides which modules a process imports, and how they behave; the server's must be the same."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_EACH_PROCESS}
    return {"prefix": sys.prefix, "version": sys.version, "folder": os.getcwd(), "environment": environment}  # noqa: PTH109


def run_forked(argv: list[str]) -> int | None:
    """Run a command in a process that the fork server forks, with this process's standard streams.

    That process gets SIGTERM when this one ends, however it does.

    Returns:
        The exit code; None if there is no fork server, or it does not take the command, of which nothing has run then.
    """
    address = os.environ.pop(FORK_SERVER_VARIABLE, "")  # popped, for it serves the jobs of the run, not their children
    if not address or sys.platform != "linux":
        return None
    import socket  # noqa: PLC0415 - commands without a fork server do without

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the other process as well
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            return _exit_code(connection) if _start(connection, address, argv) else None
    finally:
        signal.signal(signal.SIGINT, before)


def _start(connection: "socket.socket", address: str, argv: list[str]) -> bool:
    """Ask the fork server for a command; returns whether a process of it is about to run the command."""
    import json  # noqa: PLC0415 - as above
    from socket import send_fds  # noqa: PLC0415 - as above

    variables = {name: value for name, value in os.environ.items() if name in OF_EACH_PROCESS}
    request = json.dumps({"argv": argv, "situation": situation(), "variables": variables}).encode()
    if len(request) > MOST_BYTES:
        return False
    try:
        connection.settimeout(ANSWER_WITHIN_S)
        connection.connect(f"\0{address}")
        send_fds(connection, [request], STANDARD_STREAMS)
        return connection.recv(len(STARTED)) == STARTED
    except OSError:  # nobody listens any more, or not in time
        return False


def _exit_code(connection: "socket.socket") -> int:
    """Wait until the process of the fork server ends."""
    connection.settimeout(None)
    try:
        said = connection.recv(MOST_DIGITS)
        connection.recv(1)  # nothing, once the process has ended
    except OSError:
        said = b""
    return int(said) if said else KILLED
