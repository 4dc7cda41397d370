"""When one rank fails all end, whatever they hang in, and one line says why."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from torch.distributed import TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from kareus.artifacts.records import canonical_json
from kareus.errors import EngineError
from kareus.launch import heartbeats, start_store, watch
from kareus.launch.heartbeats import Patience
from kareus.launch.monitor import RankMonitor
from kareus.launch.watch import RankWatch

RANK = """
import fcntl, json, os, signal, sys, threading, time
from pathlib import Path
from kareus.launch import monitor, watch
from kareus.launch.heartbeats import Patience
from kareus.errors import DeviceError, EngineError

rank, size, folder, act = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]

class Store:
    # in a file, so that it outlives rank 0, as that of torchrun
    mine = threading.Lock()
    def _with(self, do):
        file = folder / "store"
        with self.mine, (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            values = json.loads(file.read_text()) if file.exists() else {}
            result = do(values)
            (folder / "new").write_text(json.dumps(values))
            (folder / "new").rename(file)
            return result
    def set(self, key, value):
        self._with(lambda values: values.update({key: value}))
    def get(self, key):
        return self._with(lambda values: values[key]).encode()
    def add(self, key, amount):
        return self._with(lambda values: values.update({key: values.get(key, 0) + amount}) or values[key])
    def check(self, keys):
        return self._with(lambda values: values.keys() >= set(keys))
    def clone(self):
        return self

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
with watch.watched(Store(), rank, size, "program", patience) as monitor_of_rank:
    (folder / f"run-{rank}").write_text(monitor_of_rank.run)
    if act != "early":
        monitor_of_rank.keep()
    monitor_of_rank.before_end(refuse)
    monitor_of_rank.before_end(lambda: (folder / f"restored-{rank}").touch())
    monitor_of_rank.before_end(block)
    Path(folder / f"here-{rank}").touch()
    while len(list(folder.glob("here-*"))) < size:
        time.sleep(0.01)
    if act in ("hang", "early", "refused", "blocked"):
        time.sleep(100)
    elif act == "stop":
        Store.mine.acquire()  # stopped amid a write, it would keep the file from the others
        os.kill(os.getpid(), signal.SIGSTOP)
    elif act == "slow":
        time.sleep(4)
    elif act == "work":
        for step in range(1000):
            monitor_of_rank.progress(f"step {step}")
            time.sleep(0.1)
    elif act == "stall":
        monitor_of_rank.progress("the only step")
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
    """Of ranks in this process; once it is lost, as torch's whose process has ended."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.is_lost = False
        self.lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        self._look()
        self.values[key] = value

    def get(self, key: str) -> bytes:
        self._look()
        return str(self.values[key]).encode()

    def add(self, key: str, amount: int) -> int:
        self._look()
        with self.lock:
            self.values[key] = self.values.get(key, 0) + amount
            return int(self.values[key])

    def check(self, keys: list[str]) -> bool:
        self._look()
        return self.values.keys() >= set(keys)

    def clone(self) -> "Store":
        return self

    def _look(self) -> None:
        if self.is_lost:
            raise RuntimeError("Connection reset by peer")


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


def test_a_rank_that_never_joins_is_named_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "JOIN_TIMEOUT_S", 1.5)
    store, ends = Store(), Ends()
    watching(0, store, ends, heartbeat_s=1.0)
    watching(1, store, ends, heartbeat_s=1.0)
    wait_for(lambda: ends.said)
    assert ends.said == [
        "rank 2 did not join within 1.5 s; check that it was started and reaches rank 0; all end, there is no "
        "checkpoint yet."
    ]


def test_a_rank_without_rank_0_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_store, "JOIN_TIMEOUT_S", 0.2)
    with pytest.raises(EngineError, match="rank 2: rank 0 does not come; check that it runs"):
        watching(2, Store(), Ends())


def test_all_ranks_of_a_start_have_one_identity(tmp_path: Path) -> None:
    assert ended(tmp_path, "end", "end", "end") == ("", [0, 0, 0], set())
    assert len({(tmp_path / f"run-{rank}").read_text() for rank in range(3)}) == 1


def test_what_an_earlier_start_has_said_ends_no_later_one(tmp_path: Path) -> None:
    """As in torchrun's store, where it starts ranks again."""
    assert ended(tmp_path, "fail", "hang")[1] == [2, 2]
    for path in tmp_path.glob("*-[01]"):
        path.unlink()
    assert ended(tmp_path, "end", "end") == ("", [0, 0], set())


def test_a_rank_that_slept_itself_does_not_blame_others() -> None:
    store, ends = Store(), Ends()
    for rank in range(3):
        watching(rank, store, ends, heartbeat_s=4.0)
    of_0 = ends.watches[0]
    wait_for(lambda: all(signs.has_joined for signs in of_0._signs.values()))
    for signs in of_0._signs.values():
        signs.heard_s -= 100
    of_0._answered_s -= 100  # as after SIGCONT
    beats = of_0._beats
    of_0._beat_due_s = 0.0
    wait_for(lambda: of_0._beats > beats)
    time.sleep(0.2)
    assert ends.said == []
    assert not of_start(store, ends).check([start_store.FAILURES])


def test_a_store_that_gives_no_answer_is_rank_0s(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a process that is stopped, or of a machine without power."""
    store, ends = Store(), Ends()
    for rank in (0, 1, 2):
        watching(rank, store, ends, heartbeat_s=1.0)
    monkeypatch.setattr(Store, "_look", lambda store: time.sleep(3))
    wait_for(lambda: ends.said)
    assert ends.said == [
        "rank 0 gave no sign of life for 1 s (--heartbeat), as when its process is stopped; all others end, there is "
        "no checkpoint yet."
    ]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, ["rank 0 died; all others end, there is no checkpoint yet."]),
        (
            {"TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_RANK": "0"},
            ["the store of torchrun is gone; all end, there is no checkpoint yet."] * 2,  # of each machine
        ),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_RANK": "1"}, []),
    ],
)
def test_a_lost_store_ends_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: list[str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    store, ends = Store(), Ends()
    for rank in range(3):
        watching(rank, store, ends)
    ends.watches[0]._finished = True  # which had it
    store.is_lost = True
    wait_for(lambda: ends.count == 2)
    assert ends.said == said


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


def test_failures_of_several_ranks_at_once_end_all_once() -> None:
    store, ends = Store(), Ends()
    for rank in range(3):
        watching(rank, store, ends)
    for rank in (2, 1):
        ends.watches[0]._miss(rank, "died; all others end,")
        of_start(store, ends).add(start_store.FAILURES, 1)  # and one that could not say why
    wait_for(lambda: ends.count == 3)
    assert ends.said == ["rank 1 died; all others end, there is no checkpoint yet."]


def test_rank_1_speaks_where_rank_0_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_REPLY_TIMEOUT_S", 0.3)
    store, ends = Store(), Ends()
    for rank in range(3):
        watching(rank, store, ends)
    ends.watches[0]._finished = True  # its thread looks no more
    ends.watches[2]._miss(2, "died; all others end,")
    wait_for(lambda: ends.count == 2)
    assert ends.said == ["rank 2 died; all others end, there is no checkpoint yet."]


@pytest.mark.parametrize(
    "value", ["[" * 200_000, "\xff", "5", '{"steps": 1}', '{"number": "many"}'], ids=lambda value: value[:9]
)
def test_a_rank_whose_heartbeat_is_none_counts_as_dead(value: str) -> None:
    store, ends = Store(), Ends()
    for rank in (0, 1, 2):
        watching(rank, store, ends, heartbeat_s=1.0)
    part = of_start(store, ends)
    wait_for(lambda: part.check([start_store.BEAT.format(2)]))
    ends.watches[2]._finished = True
    time.sleep(0.3)
    part.set(start_store.BEAT.format(2), value)
    wait_for(lambda: ends.count >= 2)
    assert ends.said == ["rank 2 died; all others end, there is no checkpoint yet."]


@pytest.mark.parametrize("value", ["5", "{}", '{"rank": 1, "number": 1e30, "start": 0}'], ids=len)
def test_what_is_no_process_or_failure_does_no_harm(value: str) -> None:
    store, ends = Store(), Ends()
    watching(0, store, ends)
    part = of_start(store, ends)
    number = part.add(start_store.PROCESS.format(watch._machine(), "count"), 1)
    part.set(start_store.PROCESS.format(watch._machine(), number), value)
    for rank in (1, 2):
        watching(rank, store, ends)
    time.sleep(0.3)
    assert ends.count == 0
    part.set(f"{start_store.FAILURES}-1", value)
    part.add(start_store.FAILURES, 1)
    wait_for(lambda: ends.count == 3)
    assert ends.said == ["a rank failed and did not say why."]


def test_a_number_of_a_process_that_was_used_again_is_another_process() -> None:
    store, ends = Store(), Ends()
    watching(0, store, ends)
    part = of_start(store, ends)
    number = part.add(start_store.PROCESS.format(watch._machine(), "count"), 1)
    again = start_store.Process(rank=1, number=os.getpid(), start=1)
    part.set(start_store.PROCESS.format(watch._machine(), number), canonical_json(again))
    wait_for(lambda: ends.said)
    assert ends.said == ["rank 1 died; all others end, there is no checkpoint yet."]


def test_ranks_in_a_store_of_torch_end_well() -> None:
    store = PrefixStore("of this start", TCPStore("localhost", 0, None, True, wait_for_workers=False))
    ends = Ends()
    watches = [watching(rank, store.clone(), ends) for rank in range(3)]
    finishing = [threading.Thread(target=each.finish) for each in watches]
    for thread in finishing:
        thread.start()
    for thread in finishing:
        thread.join(20)
        assert not thread.is_alive()
    assert ends.count == 0


def test_a_failure_is_in_the_record_of_torchs_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_GRACE_S", 0.0)
    monkeypatch.setattr(watch, "_REPLY_TIMEOUT_S", 0.5)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    store, ends = Store(), Ends()
    for rank in range(3):
        watching(rank, store, ends)
    ends.watches[1].fail(EngineError("the loss is nan; do something."))
    assert ends.said == ["the loss is nan; do something."]
    (message,) = json.loads((tmp_path / "error.json").read_text()).values()
    assert message["message"] == "EngineError: the loss is nan; do something."


def test_what_a_rank_says_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    RankMonitor(0, "program")._print("rank 1: \x1b[2J\ud800\nTraceback")
    assert capsys.readouterr().err == "program: rank 1: \\x1b[2J\\ud800\nTraceback\n"


def test_a_failure_of_any_length_and_letters_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_GRACE_S", 0.0)
    monkeypatch.setattr(watch, "_REPLY_TIMEOUT_S", 0.5)
    store, ends = Store(), Ends()
    for rank in range(3):
        watching(rank, store, ends)
    ends.watches[1].fail(EngineError("begun" + "\U0001f525" * 100_000 + "ended"))
    (said,) = ends.said
    assert said.startswith("begun")
    assert said.endswith("ended")
    assert len(said) < 9000


@pytest.fixture(autouse=True)
def _no_thread_dies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing ends a thread that watches, but what would end its process."""
    died: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    yield
    assert [each for each in died if each.exc_type is not SystemExit] == []


def wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.02)


class Ends:
    """How ranks in this process would end, and what they would say."""

    def __init__(self) -> None:
        self.watches: dict[int, RankWatch] = {}
        self.said: list[str] = []
        self.count = 0


class NotedEnd(RankMonitor):
    """Notes what it would end this process with, and ends the thread that would."""

    def __init__(self, rank: int, ends: Ends) -> None:
        super().__init__(rank, "program")
        self._ends = ends

    def end(self, reason: str | None = None) -> NoReturn:
        self._ends.watches[self.rank]._finished = True
        self._ends.said += [] if reason is None else [reason]
        self._ends.count += 1
        raise SystemExit


def watching(rank: int, store: Any, ends: Ends, heartbeat_s: float = 60.0) -> RankWatch:
    """One rank of three, in this process."""
    ends.watches[rank] = RankWatch(NotedEnd(rank, ends), 3, store, Patience(heartbeat_s=heartbeat_s))
    return ends.watches[rank]


def of_start(store: Store, ends: Ends) -> start_store.StartStore:
    """The part of a store that its ranks share."""
    return start_store.StartStore(store, ends.watches[0]._monitor.run)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_GRACE_S", 0.2)
    for module in (watch, start_store):
        monkeypatch.setattr(module, "LOOK_S", 0.05)
