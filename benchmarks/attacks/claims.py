"""Claims of a GPU's clock whose file is deleted, replaced, or spoilt, on a mock GPU that is a folder.

A clock never has two owners, no other file is touched, and whatever cannot be used is refused at once.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from attacks.commands import broken_promise
from attacks.rows import Row, Try, row
from attacks.target import Target

TESTS = Path(__file__).parents[2] / "tests"
"""Folder of the mock GPU."""
LIMIT_S = 60.0
"""Wall time of a refusal on a busy machine."""
USE = """
import json, sys
from pathlib import Path
from helpers.fake_device import FakeDevice
from kareus.device.controller import controlled_clocks
from kareus.errors import KareusError
device = FakeDevice(Path(sys.argv[1]))
try:
    with controlled_clocks(device) as clocks:
        clocks.request(1410).result()
    print(json.dumps("used"))
except KareusError as error:
    print(json.dumps("refused: " + str(error)))
"""
"""Locks and restores the clock of a mock GPU, as a training does, and says how that went."""


def attacks(target: Target) -> Iterator[Row]:
    """Spoil the claim in each way, while it is held and while it is not."""
    tries = [Try(f"{name}, held", partial(_held, target, spoil)) for name, spoil in DELETED.items()]
    tries += [Try(name, partial(_free, target, spoil, wanted)) for name, (spoil, wanted) in SPOILT.items()]
    yield row("claims of a GPU's clock deleted, replaced or spoilt", tries, target.jobs)


def _held(target: Target, spoil: Callable[[Path], None]) -> str:
    """Another process must not get a clock whose owner is alive."""
    folder, environment = _place(target)
    holding = [sys.executable, str(TESTS / "fake_device.py"), str(folder), "python"]
    with subprocess.Popen(holding, stdout=subprocess.PIPE, env=environment, text=True) as holder:
        try:
            assert holder.stdout
            assert holder.stdout.readline() == "held\n"
            spoil(folder / "claims/GPU-fake.claim")
            answer = _used(target, folder, environment)
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    return "" if answer.startswith("refused") else f"a second process gets the clock: {answer}"


def _free(target: Target, spoil: Callable[[Path], None], wanted: str) -> str:
    folder, environment = _place(target)
    victim = folder / "victim"
    victim.write_text("mine")
    (folder / "claims").mkdir()
    spoil(folder / "claims/GPU-fake.claim")
    answer = _used(target, folder, environment)
    if victim.read_text() != "mine":
        return "the file that a link points to was written"
    return "" if answer.startswith(wanted) else f"{answer}, expected: {wanted}"


def _place(target: Target) -> tuple[Path, dict[str, str]]:
    folder = target.folder("gpu")
    environment = target.environment(target.source)
    paths = os.pathsep.join((environment["PYTHONPATH"], str(TESTS)))
    return folder, environment | {"PYTHONPATH": paths, "KAREUS_CLAIMS": str(folder / "claims")}


def _used(target: Target, folder: Path, environment: dict[str, str]) -> str:
    done = target.python(folder, "-c", USE, folder, limit_s=LIMIT_S, **environment)
    broken = broken_promise(done)
    if broken or done.code:
        return broken or f"exit code {done.code}"
    answer: str = json.loads(next(line for line in done.output.splitlines() if line.startswith('"')))
    return answer


def _replaced(claim: Path) -> None:
    claim.unlink()
    claim.touch()


def _renamed(claim: Path) -> None:
    claim.rename(claim.with_suffix(".old"))


def _folder_renamed(claim: Path) -> None:
    claim.parent.rename(claim.parent.with_name("claims-old"))


DELETED: dict[str, Callable[[Path], None]] = {
    "file deleted": Path.unlink,
    "file replaced by another": _replaced,
    "file renamed": _renamed,
    "folder renamed": _folder_renamed,
}
"""What is done to a claim that is held."""
SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "symbolic link to another file": (lambda claim: claim.symlink_to("../victim"), "refused"),
    "symbolic link to nothing": (lambda claim: claim.symlink_to("../nothing"), "refused"),
    "symbolic link to a device": (lambda claim: claim.symlink_to("/dev/zero"), "refused"),
    "hard link to another file": (lambda claim: claim.hardlink_to(claim.parents[1] / "victim"), "refused"),
    "FIFO": (os.mkfifo, "refused"),
    "folder": (Path.mkdir, "refused"),
    "a megabyte of noise": (lambda claim: claim.write_bytes(os.urandom(2**20)), "used"),
    "a number of 400 digits": (lambda claim: claim.write_text('{"process": %s}' % ("9" * 400)), "used"),
    "half of a content": (lambda claim: claim.write_text('{"process": 1, "freq'), "used"),
}
"""What stands where a claim should be, and how the clock's next user fares."""
