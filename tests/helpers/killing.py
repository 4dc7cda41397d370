"""Killing ranks of a training amid it, and waiting until they are gone."""

import os
import signal
import subprocess
import time
from pathlib import Path

from helpers.trainings import command, environment


def kill_a_rank(victim: int, output: Path, *arguments: object) -> tuple[str, int]:
    """Kill a rank once there is a checkpoint; returns what the others say, and how the command ends."""
    whole_command = command(*arguments, "--output", output)
    with subprocess.Popen(
        whole_command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()
    ) as running:
        wait_for_checkpoint(output, 10, running)  # by then all ranks know that the one before is whole
        ranks = ranks_of(running.pid)
        os.kill(ranks[victim], signal.SIGKILL)
        _, said = running.communicate(timeout=30)
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    return said, running.returncode


def kill_everything(output: Path, *arguments: object) -> None:
    """Kill all ranks, and whoever started them, at half of two hundred iterations."""
    whole_command = command(*arguments, "--output", output)
    with subprocess.Popen(whole_command, stdout=subprocess.DEVNULL, env=environment()) as running:
        wait_for_checkpoint(output, 100, running)
        ranks = ranks_of(running.pid)
        for process in (running.pid, *ranks):
            os.kill(process, signal.SIGKILL)
    for rank in ranks:
        wait_until_gone(rank)
    assert not (output / "checkpoints/iteration-00000200").exists()


def ranks_of(process: int) -> list[int]:
    """Processes of the ranks that `process` started, in order."""
    found = {}
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_text().split("\0")
        found[next(int(v.removeprefix("RANK=")) for v in variables if v.startswith("RANK="))] = int(child)
    return [found[rank] for rank in sorted(found)]


def wait_for_checkpoint(
    output: Path, iteration: int, running: subprocess.Popen[str] | subprocess.Popen[bytes], limit_s: float = 180.0
) -> None:
    """Wait until both of two ranks have written theirs; a training that takes too long is ended, or it would go on.

    The limit is for a training that hangs; one that computes has minutes, since on a busy machine it needs them.
    """
    deadline_s = time.monotonic() + limit_s
    written = [output / f"checkpoints/iteration-{iteration:08d}/rank-{rank:05d}.json" for rank in range(2)]
    has_ended = False
    while not all(path.exists() for path in written):
        assert not has_ended, f"the training ended with code {running.returncode} before iteration {iteration}"
        has_ended = running.poll() is not None  # the checkpoint may have been written since it was looked for
        if time.monotonic() > deadline_s:
            running.kill()
            raise AssertionError(f"no checkpoint of iteration {iteration} after {limit_s} s")
        time.sleep(0.02)


def wait_until_gone(process: int, limit_s: float = 30.0) -> None:
    """Wait for the end of a process whose parent died before it; who adopts it may leave it a zombie."""
    deadline_s = time.monotonic() + limit_s
    stat = Path(f"/proc/{process}/stat")
    while stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
