"""The fork server: its commands are like any other, end with who asked, and run by themselves where it is no help."""

import contextlib
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kareus.cli import fork_server
from kareus.processes import FORK_SERVER_VARIABLE, KILLED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has abstract sockets")

ARGUMENTS = """
import atexit, os, signal, sys, time

def add_arguments(parser):
    parser.add_argument("what")

def modules_of(argv):
    return ("imported_late",)

def run(arguments):
    print(os.getpid(), os.getppid(), os.environ.get("TMPDIR"), flush=True)
    match arguments.what:
        case "exit-code":
            atexit.register(print, "last", flush=True)
            return 7
        case "error":
            raise ValueError("of the command")
        case "wait":
            time.sleep(60)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "late":
            print(sys.modules["imported_late"].importer)
        case "words":
            print(sys.argv[1:])
        case "input":
            print(sys.stdin.read(), file=sys.stderr)
"""
"""A command with all that commands may do."""


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[int]:
    """Start a server, which knows the command `resolve` as the one above; its process ID."""
    (tmp_path / "sitecustomize.py").write_text(
        "import kareus.cli.commands as c\nc.EVERY['resolve'] = c.Command('of_the_test', 'test')\n"
    )
    (tmp_path / "of_the_test.py").write_text(ARGUMENTS)
    (tmp_path / "imported_late.py").write_text("import os\nimporter = os.getpid()\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(fork_server.__file__).parents[2]}")
    for name in fork_server.THREADS:
        monkeypatch.setenv(f"{name}_THREADS", "1")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # which changes while the server runs
    monkeypatch.setenv(FORK_SERVER_VARIABLE, "set by the server, and taken back after the test")
    started = fork_server.start()
    yield started.pid
    started.kill()
    started.wait()


def command(what: str, changes: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start the command, with pipes, in a folder and an environment that may differ from the server's."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    line = [sys.executable, "-m", "kareus", "resolve", what]
    return subprocess.Popen(line, text=True, cwd=cwd, env=environment | (changes or {}), **pipes)


def said(running: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Process and parent of the command that runs for another, and its folder for temporary files."""
    process, *others = running.stdout.readline().split()
    return int(process), others


def is_gone(process: int) -> bool:
    """Whether a process ends within seconds."""
    for _ in range(500):
        if not Path(f"/proc/{process}").exists():
            return True
        time.sleep(0.01)
    return False


def test_a_command_is_forked_with_its_own_streams(server):
    with command("input") as running:
        process, (parent, _) = said(running)
        out, error = running.communicate("read from the one that asked")
    assert (parent, running.returncode) == (str(server), 0)
    assert process != running.pid
    assert (out, error) == ("", "read from the one that asked\n")


def test_a_command_finds_its_own_words(server):
    with command("words") as running:
        told, words = running.communicate()[0].splitlines()
    assert told.split()[1] == str(server)
    assert words == str(["resolve", "words"])


def test_the_exit_code_comes_last(server):
    with command("exit-code") as running:
        assert running.communicate()[0].split()[-1] == "last"
    assert running.returncode == 7


def test_an_error_is_shown_with_its_traceback(server):
    with command("error") as running:
        assert running.communicate()[1].endswith("ValueError: of the command\n")
    assert running.returncode == 1


def test_variables_of_a_job_are_its_own(server):
    with command("exit-code", {"TMPDIR": "/of/the/job"}) as running:
        assert said(running)[1] == [str(server), "/of/the/job"]


def test_what_a_command_imports_late_the_server_imports(server):
    with command("late") as running:
        assert running.communicate()[0].split()[-1] == str(server)


def test_a_command_ends_when_the_one_that_asked_is_killed(server):
    with command("wait") as running:
        process, _ = said(running)
        running.kill()
        assert is_gone(process)


def test_a_command_that_is_killed_fails(server):
    with command("killed") as running:
        running.communicate()
    assert running.returncode == KILLED


def test_ctrl_c_reaches_the_command_once(server):
    with command("wait") as running:
        process, _ = said(running)
        for interrupted in (running.pid, process):  # as a terminal does to both
            os.kill(interrupted, signal.SIGINT)
        assert running.communicate()[1] == "kareus resolve: interrupted; run it again from the start.\n"
    assert running.returncode == 130


@pytest.mark.parametrize("changed", [{"OMP_NUM_THREADS": "2"}, {"PYTHONOPTIMIZE": "1"}, {"POLARS_MAX_THREADS": "1"}])
def test_another_environment_is_not_served(server, changed):
    with command("exit-code", changed) as running:
        process, (parent, _) = said(running)
        running.communicate()
    assert (process, parent, running.returncode) == (running.pid, str(os.getpid()), 7)


def test_another_folder_is_not_served(server, tmp_path):
    with command("exit-code", cwd=tmp_path) as running:
        assert said(running)[0] == running.pid


def test_without_its_server_a_command_runs_by_itself(server):
    os.kill(server, signal.SIGKILL)
    assert os.waitpid(server, 0)
    with command("exit-code") as running:
        process, _ = said(running)
        running.communicate()
    assert (process, running.returncode) == (running.pid, 7)


@pytest.mark.parametrize("content", [b"", b"nothing of ours", b"[]", b"{}", b"[" * 100_000])
def test_nonsense_does_not_end_the_server(server, content):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(f"\0{os.environ[FORK_SERVER_VARIABLE]}")
        socket.send_fds(stranger, [content or b" "], [0, 1, 2] if content else [0])
        assert stranger.recv(1) == b""
    with command("exit-code") as running:
        assert said(running)[1][0] == str(server)


def test_a_command_survives_its_server(server):
    with command("input") as running:
        process, _ = said(running)
        os.kill(server, signal.SIGKILL)
        assert Path(f"/proc/{process}").exists()
        assert running.communicate("read on")[1] == "read on\n"
    assert running.returncode == 0


def test_a_silent_connection_keeps_nobody_waiting(server):
    """A command is served while the server still waits for who says nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(f"\0{os.environ[FORK_SERVER_VARIABLE]}")
        with command("exit-code") as running:
            assert said(running)[1][0] == str(server)
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):  # it would read nothing where the server had given up
            silent.recv(1)


@pytest.fixture
def listening(monkeypatch, tmp_path) -> Iterator[tuple[socket.socket, Callable[[], socket.socket]]]:
    """A listener to which nobody is silent for long, and what connects to it."""
    monkeypatch.setattr(fork_server, "RECEIVED_WITHIN_S", 0.05)
    with contextlib.ExitStack() as opened:
        listener, *others = [
            opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in range(3)
        ]
        listener.bind(str(tmp_path / "listener"))
        listener.listen()

        def connected() -> socket.socket:
            connection = others.pop()
            connection.connect(str(tmp_path / "listener"))
            return connection

        yield listener, connected


def test_a_silent_connection_is_closed_in_time(listening):
    listener, connected = listening
    silent = connected()
    connections: dict[socket.socket, float] = {}
    assert fork_server._asking(listener, connections) == []
    assert len(connections) == 1
    time.sleep(0.1)
    silent.settimeout(10)
    connected()
    assert fork_server._asking(listener, connections) == []
    assert silent.recv(1) == b"", "the server has closed it"
    for connection in connections:
        connection.close()


def test_a_connection_of_a_high_number_is_served(listening):
    listener, _ = listening
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD, 1500)) as high:
        theirs.send(b"a command")
        assert fork_server._asking(listener, {high: time.monotonic() + 10}) == [high]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_connection_of_another_user_is_closed_at_once(listening, monkeypatch):
    listener, connected = listening
    stranger = connected()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    connections: dict[socket.socket, float] = {}
    assert fork_server._asking(listener, connections) == []
    assert connections == {}
    stranger.settimeout(10)
    assert stranger.recv(1) == b""


def test_who_spoke_in_time_is_heard_by_a_late_server(listening):
    """A server that imports torch for one command hears the others when that is done."""
    listener, connected = listening
    connections: dict[socket.socket, float] = {}
    asking = connected()
    assert fork_server._asking(listener, connections) == []
    asking.send(b"a command")
    time.sleep(0.1)
    (heard,) = fork_server._asking(listener, connections)
    assert heard.recv(20) == b"a command"
    assert connections == {}
    heard.close()


def test_a_server_without_descriptors_serves_again_later(server):
    with command("exit-code") as running:
        assert said(running)[1][0] == str(server)
    before = resource.prlimit(server, resource.RLIMIT_NOFILE)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (3, before[1]))
    with command("exit-code") as running:
        time.sleep(1)  # it has connected, and nobody can take it
        resource.prlimit(server, resource.RLIMIT_NOFILE, before)
        assert said(running)[1][0] == str(server)


def test_threads_are_counted_whatever_their_names():
    code = """
import _thread, threading
from kareus.cli.fork_server import other_threads
print(len(other_threads()))
begun = threading.Event()
_thread.start_new_thread(lambda: (begun.set(), threading.Event().wait()), ())  # inherits the name
begun.wait()
print(len(other_threads()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]
