"""A training by a plan, on CPUs: its numbers are those of sequential execution."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from helpers.killing import kill_everything
from helpers.trainings import FAST, FOUR_LAYERS, TEXT, here, losses, tiny_workload, train, train_in_ranks, weights_of
from safetensors.torch import load_file

from kareus.artifacts.configuration import to_yaml
from kareus.pipeline.config import PipelineSchedule
from kareus.training.job import TrainingJob, planned_job


def test_a_plan_trains_as_sequential_execution_does(
    alone: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ("--iterations", 6, "--data", TEXT, *FAST)
    assert here("--workload", alone / "config/workload.yaml", *options, "--output", tmp_path / "sequential") == 0
    caplog.set_level("INFO")
    assert here(alone / "plan/fastest.json", *options, "--output", tmp_path / "plan", "--clocks", "dry") == 0
    expected = losses(tmp_path / "sequential")
    assert losses(tmp_path / "plan") == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0] - 0.1
    assert caplog.text.count("clock to 1410 MHz") == 6 * 3
    assert re.search(r"iteration 6/6  loss [\d.]+  norm [\d.]+  rate \S+  [\d,]+ tokens/s  [\d.]+ s", caplog.text)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[object, ...], Path]:
    """Options of a training, and where one rank has trained with them."""
    folder = tmp_path_factory.mktemp("begun")
    workload, start = folder / "workload.yaml", folder / "start"
    workload.write_text(to_yaml(tiny_workload(model=FOUR_LAYERS, num_microbatches=4)))
    begin = ("--iterations", 1, "--seed", 1, "--output", folder / "first", "--export", start)
    assert here("--workload", workload, *begin) == 0
    options = ("--iterations", 4, "--weights", start, "--data", TEXT, *FAST)
    assert here("--workload", workload, *options, "--output", folder / "run", "--export", folder / "weights") == 0
    return options, folder


@pytest.mark.parametrize(
    ("planned_as", "clocks"),
    [
        # F0.0 F1.0 F0.1 F1.1 F2.0 | B0.1 | F3.0 | B1.1 ..
        pytest.param("interleaved", "1410 1200 1410 1200", marks=pytest.mark.acceptance),
        ("zero_bubble", "1410 1320 1110 1410 1320 1110"),  # F0 F1 | I0 | W0 | F2 | I1 | W1 ..
    ],
)
def test_chunks_and_split_backwards_train_like_sequential(
    request: pytest.FixtureRequest,
    begun: tuple[tuple[object, ...], Path],
    tmp_path: Path,
    planned_as: str,
    clocks: str,
) -> None:
    options, sequential = begun
    plan = request.getfixturevalue(planned_as) / "plan/fastest.json"
    outputs = ("--output", tmp_path / "run", "--export", tmp_path / "weights")
    said = train_in_ranks(2, plan, *options, *outputs, "--clocks", "dry")
    assert losses(tmp_path / "run") == pytest.approx(losses(sequential / "run"), rel=1e-5)
    expected, found = weights_in(sequential / "weights"), weights_in(tmp_path / "weights")
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-4)
    changes = re.findall(r"stage 0: would lock the SM clock to (\d+) MHz", said)
    assert " ".join(changes).startswith(clocks)


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    """Of a Hugging Face checkpoint."""
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def test_checkpoints_are_of_a_model_and_its_data_in_any_layout(interleaved: Path) -> None:
    of_chunks = planned_job(interleaved / "plan/fastest.json", None).checkpoint_subject(0)
    whole = tiny_workload(dp=2, tp=2, model=FOUR_LAYERS)
    gpipe = dataclasses.replace(whole, pipeline=dataclasses.replace(whole.pipeline, schedule=PipelineSchedule.GPIPE))
    for same in (whole, gpipe):
        assert TrainingJob(workload=same).checkpoint_subject(0) == of_chunks
    longer = dataclasses.replace(whole, sequence_length=32)
    others = ((whole, 1), (longer, 0), (tiny_workload(), 0))
    assert all(TrainingJob(workload=other).checkpoint_subject(seed) != of_chunks for other, seed in others)


@pytest.mark.acceptance
def test_two_hundred_steps_on_text_match_sequential_execution(alone: Path, two_stages: Path, tmp_path: Path) -> None:
    options = ("--iterations", 200, "--data", TEXT, "--warmup", 10, "--learning-rate", 0.003, "--checkpoint-every", 25)
    assert here("--workload", alone / "config/workload.yaml", *options, "--output", tmp_path / "sequential") == 0
    plan, output = two_stages / "plan/fastest.json", tmp_path / "killed"
    done = train(plan, *options, "--output", tmp_path / "plan")
    assert done.returncode == 0, done.stderr
    expected = losses(tmp_path / "sequential")
    assert losses(tmp_path / "plan") == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < expected[0] - 2.0

    kill_everything(output, plan, *options)
    resumed = train(plan, *options, "--output", output)
    assert re.search(r"resumed after iteration 1\d\d of", resumed.stdout), resumed.stderr
    assert weights_of(output, 200) == weights_of(tmp_path / "plan", 200)
    assert len(weights_of(output, 200)) == 2
    assert losses(output) == losses(tmp_path / "plan")
