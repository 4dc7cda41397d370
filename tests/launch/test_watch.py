"""When one rank fails all end, whatever they hang in, and one line says why."""

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kareus.launch import client, coordinator, heartbeats
from kareus.launch.client import CoordinatorClient
from kareus.launch.coordinator import Coordinator
from kareus.launch.heartbeats import Patience
from kareus.launch.monitor import RankMonitor
from kareus.launch.wire import send

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
            self.stranger = socket.create_connection(json.loads(value)[:2])
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

    def beat_first(member: socket.socket, message: dict[str, Any]) -> None:
        if "run" in message:
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
        address = ["localhost", gone.getsockname()[1], "token"]
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
    time.sleep(1)
    assert ends == ["rank 1 died"]


def test_a_rank_that_ends_when_told_is_not_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[str | None] = []
    coordinating = _coordinator(ends, Store())
    coordinating._members.append(socket.socket())
    monkeypatch.setattr(coordinator, "send", lambda *_: coordinating._failures.append((1, 1, "rank 1 died")))
    coordinating._failures.append((1, 2, "rank 2 died"))
    coordinating._end()
    assert ends == ["rank 2 died"]


def test_a_silent_stranger_does_not_delay_the_watching(tmp_path: Path) -> None:
    found, codes, _ = ended(tmp_path, "haunted", "hang", "die")
    assert found == "program: rank 2 died; all others end, the last checkpoint is whole.\n"
    assert codes == [2, 2, 9]


def test_a_stranger_who_has_not_the_token_is_turned_away() -> None:
    ends: list[str | None] = []
    store = Store()
    _coordinator(ends, store)
    host, port, _ = json.loads(store.get("at"))
    with socket.create_connection((host, port), timeout=10) as stranger:
        stranger.sendall(b'{"token": "guessed", "rank": 1}\n')
        assert stranger.recv(1) == b""
    assert ends == []


def test_both_ends_of_a_connection_miss_a_machine_that_vanishes() -> None:
    store = Store()
    coordinating = _coordinator([], store)
    members = [CoordinatorClient(RankMonitor(rank, "program"), store) for rank in (1, 2)]
    finishing = [threading.Thread(target=member.finish) for member in members]
    for thread in finishing:
        thread.start()
    coordinating.finish()
    connections = [*coordinating._members, *(member._coordinator for member in members)]
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


class Store:
    """Of ranks in this process."""

    def set(self, key: str, value: str) -> None:
        self.value = value

    def get(self, key: str) -> bytes:
        return self.value.encode()


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
