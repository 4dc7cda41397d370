"""Ranks that torchrun starts again: killed or stopped, they go on from the last checkpoint to the very same weights."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.killing import ranks_of, wait_for_checkpoint
from helpers.trainings import command, environment, losses, planned, tiny_workload, train

from kareus.launch.processes import free_port

pytestmark = pytest.mark.acceptance

OPTIONS = ("--iterations", 60, "--checkpoint-every", 5, "--learning-rate", 0.01)
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planned(tmp_path_factory.mktemp("planned") / "two-stages", tiny_workload(pp=2))


@pytest.fixture(scope="module")
def whole(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of a training that nothing disturbed."""
    output = tmp_path_factory.mktemp("whole")
    done = train(plan, *OPTIONS, "--output", output)
    assert done.returncode == 0, done.stderr
    return output


def disturbed(output: Path, plan: Path, victim: int, number: signal.Signals, *options: object) -> tuple[str, int]:
    """Train under torchrun and send a rank a signal once there is a checkpoint; returns what is said, and the code."""
    start = command(plan, *OPTIONS, *options, "--output", output)
    torchrun = [sys.executable, *TORCHRUN, "--master-port", str(free_port()), *start[1:]]
    with subprocess.Popen(
        torchrun, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as running:
        wait_for_checkpoint(output, 5, running)
        os.kill(ranks_of(running.pid)[victim], number)
        said, _ = running.communicate(timeout=280)
    return said, running.returncode


def tensors(output: Path) -> dict[str, bytes]:
    folder = output / "checkpoints/iteration-00000060"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, r"(kareus train: rank {} died; all others end, .*)?"),  # torchrun may end the other first
        (signal.SIGSTOP, r"kareus train: rank {} gave no sign of life for 10 s \(--heartbeat\), .*"),
    ],
)
def test_torchrun_goes_on_from_the_last_checkpoint(
    plan: Path, whole: Path, tmp_path: Path, victim: int, number: signal.Signals, said: str
) -> None:
    found, code = disturbed(tmp_path, plan, victim, number, "--heartbeat", 10)
    assert code == 0, found
    lines = [line for line in found.splitlines() if line.startswith("kareus train: ")]
    assert re.fullmatch(said.format(victim), "\n".join(lines)), found
    assert len(re.findall(r"resumed after iteration \d+ of", found)) == 1
    assert tensors(tmp_path) == tensors(whole)
    assert losses(tmp_path) == losses(whole)
