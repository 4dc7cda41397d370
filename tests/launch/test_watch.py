"""When one rank fails all end, whatever they hang in, and one line says why."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kareus.launch import client, coordinator, heartbeats, wire
from kareus.launch.client import CoordinatorClient
from kareus.launch.coordinator import Coordinator
from kareus.launch.heartbeats import Patience
from kareus.launch.monitor import RankMonitor
from kareus.launch.wire import RankMessage, Urgency, receive_greeting, send

PROBES = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
RANK = """
import json, os, signal, socket, sys, time
from pathlib import Path
from kareus.launch import monitor, watch
from kareus.launch.heartbeats import Patience
from kareus.errors import DeviceError, EngineError

rank, size, folder, act = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]

class Store:
    def set(self, key, value):
        if act == "haunted":
            self.stranger = socket.create_connection([json.loads(value)[key] for key in ("host", "port")])
        (folder / "new").write_text(value)
        (folder / "new").rename(folder / key)
    def get(self, key):
        while not (folder / key).exists():
            time.sleep(0.01)
        return (folder / key).read_bytes()

def refuse():
    if act == "refused":
        raise DeviceError("GPU-1: no right to set clocks.")

def block():
    if act == "blocked":
        time.sleep(100)

if act == "blocked":
    monitor._EXIT_TIMEOUT_S = 2.0
if act == "late":
    time.sleep(5)
patience = Patience(heartbeat_s=float(sys.argv[5]), stall_s=3.0)
with watch.watched(Store(), rank, size, "program", patience) as own:
    (folder / f"run-{rank}").write_text(own.run)
    if act != "early":
        own.keep()
    own.before_end(refuse)
    own.before_end(lambda: (folder / f"restored-{rank}").touch())
    own.before_end(block)
    Path(folder / f"here-{rank}").touch()
    while len(list(folder.glob("here-*"))) < size:
        time.sleep(0.01)
    if act in ("hang", "early", "refused", "blocked", "haunted"):
        time.sleep(100)
    elif act == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif act == "slow":
        time.sleep(4)
    elif act == "work":
        for step in range(1000):
            own.progress(f"step {step}")
            time.sleep(0.1)
    elif act == "stall":
        own.progress("the only step")
        time.sleep(100)
    elif act == "die":
        os._exit(9)
    elif act == "fail":
        raise EngineError("the loss is nan; do something.")
    elif act == "lose":
        time.sleep(0.2)
        raise RuntimeError("connection closed by peer")
"""


class Store:
    """Of ranks in this process."""

    def set(self, key: str, value: str) -> None:
        self.value = value

    def get(self, key: str) -> bytes:
        return self.value.encode()


def ended(folder: Path, *acts: str, heartbeat_s: float = 60.0) -> tuple[str, list[int], set[str]]:
    """Let each rank act; returns all they say, their codes, and which undid what they had set.

    Whoever stops itself is killed once all others have ended.
    """
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(len(acts)), str(folder), act, str(heartbeat_s)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, act in enumerate(acts)
    ]
    try:
        said = [rank.communicate(timeout=30)[1] for rank, act in zip(ranks, acts, strict=True) if act != "stop"]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            assert rank.stderr is not None
            rank.stderr.close()
    return "".join(said), [rank.returncode for rank in ranks], {path.name for path in folder.glob("restored-*")}


def test_where_all_is_well_all_end_quietly(tmp_path: Path) -> None:
    assert ended(tmp_path, "end", "end", "end") == ("", [0, 0, 0], set())


@pytest.mark.parametrize(
    ("acts", "said"),
    [
        (("hang", "die", "hang"), "program: rank 1 died; all others end, the last checkpoint is whole.\n"),
        (("lose", "hang", "die"), "program: rank 2 died; all others end, the last checkpoint is whole.\n"),
        (("die", "hang", "lose"), "program: rank 0 died; all others end, the last checkpoint is whole.\n"),
        (("hang", "fail", "lose"), "program: the loss is nan; do something.\n"),
        (("fail", "fail", "fail"), "program: the loss is nan; do something.\n"),
        (("early", "die", "hang"), "program: rank 1 died; all others end, there is no checkpoint yet.\n"),
        (("die", "early", "hang"), "program: rank 0 died; all others end, there is no checkpoint yet.\n"),
    ],
)
def test_one_failure_ends_all_restored_with_one_message(tmp_path: Path, acts: tuple[str, ...], said: str) -> None:
    found, codes, restored = ended(tmp_path, *acts)
    assert found == said
    assert codes == [9 if act == "die" else 2 for act in acts]
    assert restored == {f"restored-{rank}" for rank, act in enumerate(acts) if act != "die"}


@pytest.mark.parametrize(
    "acts",
    [
        ("hang", "stop", "hang"),
        pytest.param(("stop", "hang", "hang"), marks=pytest.mark.acceptance),
    ],
)
def test_a_rank_that_is_stopped_is_missed_and_all_others_end(tmp_path: Path, acts: tuple[str, ...]) -> None:
    found, codes, restored = ended(tmp_path, *acts, heartbeat_s=3.0)
    rank = acts.index("stop")
    assert found == (
        f"program: rank {rank} gave no sign of life for 3 s (--heartbeat), as when its process is stopped; all others "
        "end, the last checkpoint is whole.\n"
    )
    assert codes == [-9 if act == "stop" else 2 for act in acts]
    assert restored == {f"restored-{other}" for other in range(3) if other != rank}


def test_a_main_thread_busy_beyond_a_heartbeat_is_not_missed(tmp_path: Path) -> None:
    assert ended(tmp_path, "slow", "slow", "end", heartbeat_s=3.0) == ("", [0, 0, 0], set())


@pytest.mark.parametrize(
    "acts",
    [
        ("work", "stall", "work"),
        pytest.param(("stall", "work", "work"), marks=pytest.mark.acceptance),
    ],
)
def test_a_rank_that_lives_and_gets_no_further_ends_all(tmp_path: Path, acts: tuple[str, ...]) -> None:
    found, codes, _ = ended(tmp_path, *acts)
    assert found == (
        f"program: rank {acts.index('stall')} hangs: no progress for 3 s (--stall) since it began with the only step; "
        "all end, the last checkpoint is whole.\n"
    )
    assert codes == [2, 2, 2]


def test_a_rank_that_joins_later_than_a_heartbeat_is_waited_for(tmp_path: Path) -> None:
    assert ended(tmp_path, "end", "late", heartbeat_s=2.0) == ("", [0, 0], set())


def test_a_heartbeat_during_a_welcome_parts_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that got it before the welcome would leave, and rank 0 would take it for dead."""
    monkeypatch.setattr(coordinator, "_GRACE_S", 0.0)
    monkeypatch.setattr(client, "JOIN_TIMEOUT_S", 1.0)
    ends: list[str | None] = []
    store = Store()
    coordinating = _coordinator(ends, store)

    def beat_first(member: socket.socket, message: RankMessage) -> None:
        if message.run is not None:
            coordinating._beat()
        send(member, message)

    monkeypatch.setattr(coordinator, "send", beat_first)
    member = CoordinatorClient(NotedEnd(1, []), store)
    assert member._monitor.run == coordinating._monitor.run
    member._beat()
    time.sleep(0.5)
    assert ends == []


def test_a_rank_that_never_joins_is_named_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "JOIN_TIMEOUT_S", 1.5)
    monkeypatch.setattr(coordinator, "_GRACE_S", 0.1)
    ends: list[str | None] = []
    store = Store()
    _coordinator(ends, store, Patience(heartbeat_s=1.0))
    member = CoordinatorClient(NotedEnd(1, []), store)
    deadline_s = time.monotonic() + 20
    while not ends and time.monotonic() < deadline_s:
        member._beat()
        time.sleep(0.1)
    assert ends == [
        "rank 2 did not join within 1.5 s; check that it was started and reaches rank 0; all end, there is no "
        "checkpoint yet."
    ]


def test_an_address_of_an_earlier_start_is_not_used(tmp_path: Path) -> None:
    """As in torchrun's store, where it starts ranks again."""
    with socket.create_server(("localhost", 0)) as gone:
        address = {"host": "localhost", "port": gone.getsockname()[1], "token": "token"}
    (tmp_path / "kareus-watch").write_text(json.dumps(address))
    assert ended(tmp_path, "end", "end") == ("", [0, 0], set())
    assert (tmp_path / "run-0").read_text() == (tmp_path / "run-1").read_text()


def test_a_rank_that_slept_itself_does_not_blame_others(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    times_s = iter([0.0, 100.0, 101.0])
    monkeypatch.setattr(heartbeats.time, "monotonic", lambda: next(times_s))
    monkeypatch.setattr(heartbeats.time, "sleep", lambda seconds: None)
    heartbeats.exchange_heartbeats(
        Patience(heartbeat_s=60.0),
        lambda: called.append("beat"),
        lambda: bool(called.append("check")),
        lambda: called.append("reset"),
    )
    assert called == ["beat", "reset", "beat", "check"]


def test_an_unforeseen_error_is_reported_with_its_traceback(tmp_path: Path) -> None:
    found, codes, _ = ended(tmp_path, "hang", "lose")
    assert found.startswith("program: rank 1: Traceback")
    assert "connection closed by peer" in found
    assert codes == [2, 2]


def test_a_failed_restore_is_reported_and_delays_nothing(
    tmp_path: Path,
) -> None:
    found, codes, restored = ended(tmp_path, "fail", "refused")
    assert sorted(found.splitlines()) == [
        "program: GPU-1: no right to set clocks. Run `kareus clocks reset`.",
        "program: the loss is nan; do something.",
    ]
    assert codes == [2, 2]
    assert restored == {"restored-0", "restored-1"}


def test_a_driver_that_never_answers_does_not_keep_a_rank(tmp_path: Path) -> None:
    found, codes, _ = ended(tmp_path, "blocked", "fail")
    assert found == "program: the loss is nan; do something.\n"
    assert codes == [2, 2]


def test_news_from_several_ranks_at_once_end_all_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowList(list[Any]):
        """Gives other threads time to append too."""

        def append(self, item: Any) -> None:
            super().append(item)
            time.sleep(0.2)

    monkeypatch.setattr(coordinator, "_GRACE_S", 0.5)
    ends: list[str | None] = []
    coordinating = _coordinator(ends, Store())
    coordinating._failures = SlowList()
    tellers = [
        threading.Thread(target=coordinating._note_failure, args=(1, rank, f"rank {rank} died")) for rank in (2, 1)
    ]
    for teller in tellers:
        teller.start()
    for teller in tellers:
        teller.join()
    for timer in [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]:
        timer.join()
    assert ends == ["rank 1 died"]


def test_a_rank_that_ends_when_told_is_not_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[str | None] = []
    coordinating = _coordinator(ends, Store())
    coordinating._members[2] = socket.socket()

    def die_when_told(_: socket.socket, message: RankMessage) -> None:
        if message.end:  # and not at a heartbeat, which another thread may send before
            coordinating._failures.append((1, 1, "rank 1 died"))

    monkeypatch.setattr(coordinator, "send", die_when_told)
    coordinating._failures.append((1, 2, "rank 2 died"))
    coordinating._end()
    assert ends == ["rank 2 died"]
    assert min(coordinating._failures)[-1] == "rank 1 died"


def test_a_silent_stranger_does_not_delay_the_watching(tmp_path: Path) -> None:
    found, codes, _ = ended(tmp_path, "haunted", "hang", "die")
    assert found == "program: rank 2 died; all others end, the last checkpoint is whole.\n"
    assert codes == [2, 2, 9]


def greeting(store: Store, **greeting: Any) -> bytes:
    return json.dumps({"token": json.loads(store.get("at"))["token"], "rank": 1, **greeting}).encode() + b"\n"


def connected(store: Store) -> socket.socket:
    address = json.loads(store.get("at"))
    return socket.create_connection((address["host"], address["port"]), timeout=10)


STRANGERS = {
    "a token that is none": {"token": "guessed"},
    "a token of other letters": {"token": "\u0663"},
    "no rank": {"rank": None},
    "a rank that there is not": {"rank": 99},
    "rank 0": {"rank": 0},
    "a rank below": {"rank": -1},
    "a list": {"rank": []},
    "a truth": {"rank": True},
    "a number beyond 64 bits": {"rank": 10**30},
    "a key too many": {"more": 1},
}


@pytest.mark.parametrize("odd", STRANGERS.values(), ids=STRANGERS)
def test_who_is_no_rank_of_this_start_is_turned_away(odd: dict[str, Any], threads_that_died: list[Any]) -> None:
    ends: list[str | None] = []
    store = Store()
    _coordinator(ends, store)
    with connected(store) as stranger:
        stranger.sendall(greeting(store, **odd))
        assert stranger.recv(1) == b""
    assert ends == threads_that_died == []


@pytest.mark.parametrize("line", [b"[" * 200_000 + b"\n", b"\xff\n", b"5\n", b"x" * 10_000_000], ids=len)
def test_what_is_no_message_ends_its_connection_only(line: bytes, threads_that_died: list[Any]) -> None:
    ends: list[str | None] = []
    store = Store()
    _coordinator(ends, store)
    with connected(store) as stranger, contextlib.suppress(ConnectionError):  # hung up amid the line
        stranger.sendall(line)
        assert stranger.recv(1) == b""
    assert ends == threads_that_died == []


def test_a_greeting_that_comes_drop_by_drop_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "REPLY_TIMEOUT_S", 0.5)
    ours, theirs = socket.socketpair()
    dripping = threading.Thread(target=lambda: [(time.sleep(0.1), send_quietly(theirs)) for _ in range(40)])
    dripping.start()
    started_s = time.monotonic()
    assert receive_greeting(ours) == RankMessage()
    assert time.monotonic() - started_s < 3.5
    ours.close()
    dripping.join()
    theirs.close()


def send_quietly(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(b"{")


@pytest.mark.parametrize(
    "message",
    [
        {"beat": "many"},
        {"failure": "lost", "urgency": 7},
        {"failure": ["lost"]},
        {"failure": "x" * 2**20, "urgency": 0},
        {"beat": 10**30},
    ],
    ids=lambda message: str(message)[:24],
)
def test_a_rank_that_sends_no_message_counts_as_dead(
    message: dict[str, Any], monkeypatch: pytest.MonkeyPatch, threads_that_died: list[Any]
) -> None:
    monkeypatch.setattr(coordinator, "_GRACE_S", 0.0)
    ends: list[str | None] = []
    store = Store()
    _coordinator(ends, store)
    with connected(store) as rank:
        rank.sendall(greeting(store))
        assert "run" in json.loads(rank.makefile().readline())
        rank.sendall(json.dumps(message).encode() + b"\n")
        wait_for(lambda: ends)
    assert ends == ["rank 1 died; all others end, there is no checkpoint yet."]
    assert threads_that_died == []


def test_a_rank_is_welcomed_once(threads_that_died: list[Any]) -> None:
    ends: list[str | None] = []
    store = Store()
    _coordinator(ends, store)
    with connected(store) as rank, connected(store) as double:
        rank.sendall(greeting(store))
        assert "run" in json.loads(rank.makefile().readline())
        double.sendall(greeting(store))
        assert double.recv(1) == b""
        assert ends == threads_that_died == []


@pytest.mark.parametrize(
    ("variables", "addresses"),
    [
        ({"MASTER_ADDR": "localhost"}, ("127.0.0.1", "::1")),
        ({"MASTER_ADDR": "127.0.0.1"}, ("127.0.0.1",)),
        ({"MASTER_ADDR": "node-17.invalid", "LOCAL_WORLD_SIZE": "3"}, ("127.0.0.1", "::1")),
        ({"MASTER_ADDR": "node-17.invalid", "LOCAL_WORLD_SIZE": "1"}, ("0.0.0.0",)),  # known to others only
        ({"MASTER_ADDR": "192.0.2.1", "LOCAL_WORLD_SIZE": "1"}, ("0.0.0.0",)),  # of a service
    ],
)
def test_rank_0_listens_where_its_ranks_reach_it(
    variables: dict[str, str], addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    host, server = coordinator._open_server(3)
    with server:
        assert server.getsockname()[0] in addresses
        assert host == (variables["MASTER_ADDR"] if variables.get("LOCAL_WORLD_SIZE", "1") == "1" else "localhost")


def test_what_a_rank_says_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    RankMonitor(0, "program")._print("rank 1: \x1b[2J\ud800\nTraceback")
    assert capsys.readouterr().err == "program: rank 1: \\x1b[2J\\ud800\nTraceback\n"


def test_a_failure_of_any_length_and_letters_reaches_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "_GRACE_S", 0.0)
    ends: list[str | None] = []
    store = Store()
    _coordinator(ends, store)
    CoordinatorClient(NotedEnd(1, []), store).fail(Urgency.FATAL, "begun" + "\U0001f525" * 100_000 + "ended")
    wait_for(lambda: ends)  # rank 0 tells all others to end before it ends itself
    (said,) = ends
    assert said is not None
    assert said.startswith("begun")
    assert said.endswith("ended")


@pytest.fixture
def threads_that_died(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What threads ended with, if not by themselves."""
    died: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    return died


def wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.02)


def test_both_ends_of_a_connection_miss_a_machine_that_vanishes() -> None:
    store = Store()
    coordinating = _coordinator([], store)
    members = [CoordinatorClient(RankMonitor(rank, "program"), store) for rank in (1, 2)]
    finishing = [threading.Thread(target=member.finish) for member in members]
    for thread in finishing:
        thread.start()
    coordinating.finish()
    connections = [*coordinating._members.values(), *(member._coordinator for member in members)]
    assert len(connections) == 4
    for connection in connections:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        probes = [connection.getsockopt(socket.IPPROTO_TCP, option) for option in PROBES]
        assert probes == [5, 5, 3]
        assert connection.gettimeout() is None  # silence of the other rank is what is usual
    for thread in finishing:
        thread.join()
    for connection in connections:
        connection.close()


class NotedEnd(RankMonitor):
    """Notes what it would end this process with."""

    def __init__(self, rank: int, ends: list[str | None]) -> None:
        super().__init__(rank, "program")
        self._ends = ends

    def end(self, reason: str | None = None) -> Any:
        self._ends.append(reason)


def _coordinator(ends: list[str | None], store: Store, patience: Patience | None = None) -> Coordinator:
    """Rank 0 of three, in this process; notes in `ends` what it ends with."""
    return Coordinator(NotedEnd(0, ends), 3, store, patience)
