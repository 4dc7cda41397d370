"""`kareus train` on CPUs: as sequential execution does, resumed exactly, and ended on all ranks when one fails."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trainings import command, environment, losses, planned, tiny_workload, train

from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import read_provenance, read_table
from kareus.engine.tables import ITERATIONS

ROOT = Path(__file__).parents[2]
TEXT = ROOT / "docs" / "engine.md"
"""A text that a model can learn."""
FAST = ("--learning-rate", 0.01)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A planned workload of one rank."""
    folder = tmp_path_factory.mktemp("planned") / "alone"
    planned(folder, tiny_workload())
    return folder


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A planned workload of two stages."""
    folder = tmp_path_factory.mktemp("planned") / "two-stages"
    planned(folder, tiny_workload(pp=2))
    return folder


def weights_of(output: Path, iteration: int) -> dict[str, bytes]:
    """Tensors of a checkpoint, file by file."""
    folder = output / f"checkpoints/iteration-{iteration:08d}"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def test_a_plan_trains_as_sequential_execution_does(alone: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT.read_text())
    options = ("--iterations", 6, "--data", text, *FAST)
    by_plan = train(alone / "plan/fastest.json", *options, "--output", tmp_path / "plan", "--clocks", "dry")
    assert by_plan.returncode == 0, by_plan.stderr
    sequential = train("--workload", alone / "config/workload.yaml", *options, "--output", tmp_path / "sequential")
    assert sequential.returncode == 0, sequential.stderr
    expected = losses(tmp_path / "sequential")
    assert losses(tmp_path / "plan") == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0] - 0.1
    assert by_plan.stdout.count("would lock the SM clock to 1410 MHz") == 6 * 3
    assert re.search(r"iteration 6/6  loss [\d.]+  norm [\d.]+  rate \S+  [\d,]+ tokens/s  [\d.]+ s", by_plan.stdout)


def test_what_an_iteration_took_is_recorded_and_says_that_no_gpu_ran_it(two_stages: Path, tmp_path: Path) -> None:
    done = train(two_stages / "plan/fastest.json", "--iterations", 2, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        path = tmp_path / f"rank-{rank:05d}.parquet"
        for row in read_table(path, ITERATIONS).to_dicts():
            assert (row["method"], row["selector"], row["rank"], row["stage"]) == ("kareus", "fastest", rank, rank)
            assert row["tokens"] == 3 * 2 * 16
            assert 0 < row["pipeline_time_s"] < row["time_s"]
            assert row["energy_j"] is None
        provenance: Provenance = read_provenance(path, ITERATIONS)
        assert provenance.testbed is not None
        assert provenance.testbed.label == "measured on CPU"


def test_a_killed_training_goes_on_to_the_very_same_weights(two_stages: Path, tmp_path: Path) -> None:
    plan = two_stages / "plan/fastest.json"
    options = ("--iterations", 30, "--checkpoint-every", 5, *FAST)
    whole = train(plan, *options, "--output", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    output = tmp_path / "killed"
    running = subprocess.Popen(command(plan, *options, "--output", output), env=environment())
    wait_for(output / "checkpoints/iteration-00000010/rank-00001.json")
    for rank in ranks_of(running):
        os.kill(rank, signal.SIGKILL)
    assert running.wait(timeout=30) != 0
    resumed = train(plan, *options, "--output", output)
    assert resumed.returncode == 0, resumed.stderr
    assert re.search(r"resumed after iteration \d+ of", resumed.stdout)
    assert weights_of(output, 30) == weights_of(tmp_path / "whole", 30)
    assert len(weights_of(output, 30)) == 2
    assert losses(output) == losses(tmp_path / "whole")


@pytest.mark.parametrize("victim", [0, 1])
def test_when_a_rank_dies_all_end_and_one_line_says_so(two_stages: Path, tmp_path: Path, victim: int) -> None:
    running = subprocess.Popen(
        command(two_stages / "plan/fastest.json", "--iterations", 10**6, "--checkpoint-every", 5, "--output", tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    wait_for(tmp_path / "checkpoints/iteration-00000005/rank-00001.json")
    ranks = ranks_of(running)
    os.kill(ranks[victim], signal.SIGKILL)
    _, said = running.communicate(timeout=30)
    assert said == f"kareus train: rank {victim} died; all others end, the last checkpoint is whole.\n"
    assert running.returncode == 2
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    resumed = train(two_stages / "plan/fastest.json", "--iterations", 1, "--output", tmp_path)
    assert "resumed after iteration" in resumed.stdout, resumed.stderr


def test_a_training_that_diverges_ends_on_all_ranks_in_one_line(two_stages: Path, tmp_path: Path) -> None:
    done = train(
        two_stages / "plan/fastest.json",
        *("--iterations", 50, "--output", tmp_path, "--learning-rate", 1e30, "--clip", 1e30),
        timeout=30,
    )
    assert done.returncode == 2
    assert re.fullmatch(r"kareus train: (iteration \d+: the loss|gradient: its norm) is (nan|inf).*\n", done.stderr)


def test_a_world_of_another_size_is_refused_on_all_ranks_in_one_line(two_stages: Path, tmp_path: Path) -> None:
    arguments = command(two_stages / "plan/fastest.json", "--iterations", 1, "--output", tmp_path)
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29517", "WORLD_SIZE": "1", "RANK": "0"}
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment() | common)
    assert done.returncode == 2
    assert done.stderr == (
        "kareus train: world size 1: the workload runs on 2 ranks (dp 1 x pp 2 x cp 1 x tp 1); start as many.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a plan, or --workload"),
        (("--iterations", 0), "iterations=0: must be greater than 0"),
        (("--communicator", "nccl"), "--communicator nccl: needs a GPU for each rank"),
        (("--data", "missing.bin"), "missing.bin.json: no such file"),
        (("--weights", "missing"), "no such file; expected a checkpoint"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(
    alone: Path, tmp_path: Path, arguments: tuple[object, ...], said: str
) -> None:
    workload = ("--workload", alone / "config/workload.yaml") if arguments else ()
    base = [sys.executable, "-m", "kareus", "train", "--communicator", "gloo", "--output", tmp_path, "--iterations", 1]
    done = subprocess.run(
        list(map(str, [*base, *workload, *arguments])), capture_output=True, text=True, check=False, env=environment()
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.startswith("kareus train: ")
    assert done.stderr.count("\n") == 1


def test_a_plan_of_another_model_is_refused(alone: Path, two_stages: Path, tmp_path: Path) -> None:
    done = train(two_stages / "plan/fastest.json", "--folder", alone, "--iterations", 1, "--output", tmp_path)
    assert done.returncode == 2
    assert "made for another workload" in done.stderr
    assert done.stderr.count("\n") == 1


def ranks_of(running: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> list[int]:
    """Processes of the ranks, in order."""
    found = {}
    for process in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split():
        variables = Path(f"/proc/{process}/environ").read_text().split("\0")
        found[next(int(v.removeprefix("RANK=")) for v in variables if v.startswith("RANK="))] = int(process)
    return [found[rank] for rank in sorted(found)]


def wait_for(path: Path, limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not path.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
