"""Arguments of `kareus train`: what cannot be trained is refused in one line, before anything is written."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest
from helpers.trainings import command, end_in_ranks, here, tiny_workload
from helpers.worlds import MPT

from kareus.artifacts.configuration import to_yaml
from kareus.cli import main
from kareus.launch.processes import free_port, launch
from kareus.model.parallelism import Sharding
from kareus.training import stage


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--clip", "nan", "--clip nan: must be from 0 to 1e+38 (norm of a gradient)."),
        ("--clip", "inf", "--clip inf: must be from 0 to 1e+38 (norm of a gradient)."),
        ("--weight-decay", "1e38", "--weight-decay 1e+38: must be from 0 to 100 (no unit)."),
        ("--weight-decay", "nan", "--weight-decay nan: must be from 0 to 100 (no unit)."),
        ("--learning-rate", "inf", "--learning-rate inf: must be from 0 to 100 (no unit)."),
        ("--learning-rate", "nan", "--learning-rate nan: must be from 0 to 100 (no unit)."),
        ("--final-rate", "nan", "--final-rate nan: must be from 0 to peak (0.0003)."),
        ("--seed", 10**30, f"--seed {10**30}: must be from 0 to 9,223,372,036,854,775,807 (no unit)."),
        ("--seed", -1, "--seed -1: must be 0 or more."),
        ("--warmup", 10**30, f"--warmup {10**30}: must be from 0 to 100,000,000 (iterations)."),
        ("--keep", 10**30, f"--keep {10**30}: must be from 0 to 100,000,000 (checkpoints)."),
        ("--checkpoint-every", 10**30, f"--checkpoint-every {10**30}: must be from 0 to 100,000,000 (iterations)."),
        ("--heartbeat", "nan", "--heartbeat nan: must be from 1 to 604800 (s)."),
        ("--stall", "1e30", "--stall 1e+30: must be from 1 to 604800 (s)."),
        ("--iterations", 10**30, f"--iterations {10**30}: must be from 0 to 100,000,000 (iterations)."),
    ],
)
def test_a_number_out_of_range_is_refused_before_writing(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: object, said: str
) -> None:
    output = tmp_path / "run"
    assert here(alone / "plan/fastest.json", "--iterations", 1, "--output", output, option, value) == 2
    refused = capsys.readouterr().err
    assert refused.startswith(f"kareus train: {said}")
    assert refused.count("\n") == 1
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a plan, or --workload"),
        (("--iterations", 0), "--iterations 0: must be greater than 0"),
        (("--communicator", "nccl"), "--communicator nccl: needs a GPU for each rank"),
        (("--communicator", "mscclpp"), "communicator 'mscclpp': cannot be imported"),
        (("--data", "missing.bin"), "missing.bin.json: cannot be read"),
        (("--weights", "missing"), "no such file; expected a checkpoint"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(
    alone: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[object, ...],
    said: str,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "99")  # no machine has so many GPUs
    monkeypatch.setitem(sys.modules, "mscclpp", None)
    workload = ("--workload", alone / "config/workload.yaml") if arguments else ()
    base = ("train", "--communicator", "gloo", "--output", tmp_path, "--iterations", 1)
    assert main([*map(str, (*base, *workload, *arguments))]) == 2
    refused = capsys.readouterr().err
    assert said in refused
    assert refused.startswith("kareus train: ")
    assert refused.count("\n") == 1


@pytest.mark.parametrize("options_of_gpus", [[], ["--communicator", "nccl"]])
def test_what_the_engine_does_not_run_starts_no_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options_of_gpus: list[str]
) -> None:
    """Pipelines of sharded weights, on CPUs and, though there are none, on GPUs; ALiBi with shared heads on GPUs."""
    monkeypatch.setattr(stage, "launch", lambda *_: pytest.fail("ranks were started"))
    shared = dataclasses.replace(MPT, num_key_value_heads=2)
    path = tmp_path / "workload.yaml"
    workload = (
        tiny_workload(dp=2, model=shared) if options_of_gpus else tiny_workload(dp=2, pp=2, sharding=Sharding.FULL)
    )
    path.write_text(to_yaml(workload))
    communicator = options_of_gpus or ["--communicator", "gloo"]
    options = ["--workload", str(path), "--iterations", "1", "--output", str(tmp_path / "run"), *communicator]
    assert main(["train", *options]) == 2
    refused = capsys.readouterr().err
    assert ("model.positions=alibi" if options_of_gpus else "sharding=full: is planned") in refused
    assert refused.count("\n") == 1


def test_a_plan_of_another_model_is_refused(
    alone: Path, two_stages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = two_stages / "plan/fastest.json"
    assert here(plan, "--folder", alone, "--iterations", 1, "--output", tmp_path) == 2
    refused = capsys.readouterr().err
    assert "made for another workload" in refused
    assert refused.count("\n") == 1


def test_a_world_of_another_size_is_refused(
    two_stages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    assert here(two_stages / "plan/fastest.json", "--iterations", 1, "--output", tmp_path) == 2
    assert capsys.readouterr().err == (
        "kareus train: world size 1: the workload runs on 2 ranks (dp 1 x pp 2 x cp 1 x tp 1); start as many.\n"
    )


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--iterations", 0), 2, r"kareus train: --iterations 0: must be greater than 0.*\n"),
        pytest.param(
            ("--iterations", 1, "--learning-rate", -1),
            2,
            r"kareus train: --learning-rate -1.0: must be 0 or more.\n",
            marks=pytest.mark.acceptance,
        ),
        (
            ("--iteration", 1),
            2,
            r"kareus train: --iteration: unknown argument; perhaps you meant --iterations; .*\n",
        ),
        (("--help",), 0, r"usage: kareus train (?s:.*)--communicator(?s:.*)"),
    ],
)
def test_wrong_arguments_under_torchrun_are_reported_once(
    two_stages: Path, tmp_path: Path, options: tuple[object, ...], code: int, said: str
) -> None:
    ended = end_in_ranks(2, two_stages / "plan/fastest.json", *options, "--output", tmp_path)
    assert ended.codes == [code, code]
    found = ended.stdout + ended.stderr
    assert re.fullmatch(said, found), found
    assert found.count("kareus train: ") + found.count("show this help") == 1


@pytest.mark.acceptance
def test_a_wrong_world_size_ends_all_with_one_message(
    alone: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = command(alone / "plan/fastest.json", "--iterations", 1, "--output", tmp_path)
    with pytest.raises(SystemExit) as ended:
        launch(arguments[arguments.index("train") :], 2)
    assert ended.value.code == 2
    assert capfd.readouterr().err == (
        "kareus train: world size 2: the workload runs on 1 ranks (dp 1 x pp 1 x cp 1 x tp 1); start as many.\n"
    )


def test_an_interrupted_rank_says_how_to_go_on(alone, tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("kareus.training.rank.train", interrupted)
    options = ["--iterations", "1", "--output", str(tmp_path / "run"), "--communicator", "gloo"]
    assert main(["train", str(alone / "plan/fastest.json"), *options]) == 130
    assert capsys.readouterr().err == (
        "kareus train: interrupted; start it again to go on from the last checkpoint, if there is one.\n"
    )
