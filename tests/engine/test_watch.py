"""When one rank fails all end, whatever they hang in, and one line says why."""

import subprocess
import sys
from pathlib import Path

import pytest

RANK = """
import os, sys, time
from pathlib import Path
from kareus.engine.watch import watched
from kareus.errors import EngineError

rank, size, folder, act = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]

class Store:
    def set(self, key, value):
        (folder / "new").write_text(value)
        (folder / "new").rename(folder / key)
    def get(self, key):
        while not (folder / key).exists():
            time.sleep(0.01)
        return (folder / key).read_bytes()

with watched(Store(), rank, size, "program") as watch:
    watch.before_end(lambda: (folder / f"restored-{rank}").touch())
    Path(folder / f"here-{rank}").touch()
    while len(list(folder.glob("here-*"))) < size:
        time.sleep(0.01)
    if act == "hang":
        time.sleep(100)
    elif act == "die":
        os._exit(9)
    elif act == "fail":
        raise EngineError("the loss is nan; do something.")
    elif act == "lose":
        time.sleep(0.2)
        raise RuntimeError("connection closed by peer")
"""


def ended(folder: Path, *acts: str) -> tuple[str, list[int], set[str]]:
    """Let each rank act; returns all they say, their codes, and which undid what they had set."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(len(acts)), str(folder), act], stderr=subprocess.PIPE, text=True
        )
        for rank, act in enumerate(acts)
    ]
    said = [rank.communicate(timeout=30)[1] for rank in ranks]
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
    ],
)
def test_when_one_fails_all_end_restored_and_the_cause_is_said_once(
    tmp_path: Path, acts: tuple[str, ...], said: str
) -> None:
    found, codes, restored = ended(tmp_path, *acts)
    assert found == said
    assert codes == [9 if act == "die" else 2 for act in acts]
    assert restored == {f"restored-{rank}" for rank, act in enumerate(acts) if act != "die"}


def test_an_error_that_nobody_foresaw_is_said_with_its_traceback(tmp_path: Path) -> None:
    found, codes, _ = ended(tmp_path, "hang", "lose")
    assert found.startswith("program: rank 1: Traceback")
    assert "connection closed by peer" in found
    assert codes == [2, 2]
