"""`kareus train` on CPUs: as sequential execution does, resumed exactly, and ended on all ranks when one fails."""

import dataclasses
import math
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.builders import small_model
from helpers.killing import kill_a_rank, kill_everything
from helpers.trainings import command, environment, here, losses, planned, tiny_workload, train
from safetensors.torch import load, load_file
from transformers import AutoModelForCausalLM

from kareus.artifacts.configuration import to_yaml
from kareus.artifacts.tables import read_provenance, read_table
from kareus.cli import main
from kareus.errors import ConfigError
from kareus.launch.processes import free_port, launch
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.runtime.follower import planned_steps
from kareus.runtime.stage_model import StageModel
from kareus.training import setup
from kareus.training.exporting import check_exportable
from kareus.training.job import TrainingJob, planned_job
from kareus.training.optimizer import Optimizer
from kareus.training.tables import ITERATIONS
from kareus.workload.config import Workload

ROOT = Path(__file__).parents[2]
TEXT = ROOT / "LICENSE"
"""A text that a model can learn."""
FAST = ("--learning-rate", 0.01)
DIVERGING = ("--learning-rate", 100, "--weight-decay", 100, "--clip", 1e30)
"""Every iteration multiplies the weights by nearly -10,000."""
FOUR_LAYERS = small_model(name="tiny", vocab_size=264, num_layers=4, tie_embeddings=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A planned workload of one rank."""
    return planned_in(tmp_path_factory, "alone", tiny_workload())


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A planned workload of two stages."""
    return planned_in(tmp_path_factory, "two-stages", tiny_workload(pp=2))


@pytest.fixture(scope="module")
def interleaved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A planned workload of two stages of two chunks of a layer each, whose embeddings are tied."""
    return planned_in(tmp_path_factory, "interleaved", of_four_layers(PipelineSchedule.INTERLEAVED, chunks=2))


@pytest.fixture(scope="module")
def zero_bubble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model and batch, two layers on each stage, and weight gradients as instructions of their own."""
    return planned_in(tmp_path_factory, "zero-bubble", of_four_layers(PipelineSchedule.ZERO_BUBBLE_H1, chunks=1))


def planned_in(factory: pytest.TempPathFactory, name: str, workload: Workload) -> Path:
    """A new folder that has a plan of `workload`."""
    folder = factory.mktemp("planned") / name
    planned(folder, workload)
    return folder


def of_four_layers(schedule: PipelineSchedule, chunks: int) -> Workload:
    pipeline = PipelineConfig(schedule=schedule, chunks=chunks, deadlines=2)
    return tiny_workload(pp=2, model=FOUR_LAYERS, pipeline=pipeline, num_microbatches=4)


def weights_of(output: Path, iteration: int) -> dict[str, bytes]:
    """Tensors of a checkpoint, file by file."""
    folder = output / f"checkpoints/iteration-{iteration:08d}"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


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
    assert caplog.text.count("would lock the SM clock to 1410 MHz") == 6 * 3
    assert re.search(r"iteration 6/6  loss [\d.]+  norm [\d.]+  rate \S+  [\d,]+ tokens/s  [\d.]+ s", caplog.text)


def test_exported_weights_load_in_transformers(two_stages: Path, tmp_path: Path) -> None:
    plan, exported = two_stages / "plan/fastest.json", tmp_path / "exported"
    options = ("--iterations", 2, "--output", tmp_path / "run")
    assert train(plan, *options).returncode == 0
    trained = [load(rank) for rank in weights_of(tmp_path / "run", 2).values()]
    again = train(plan, *options, "--export", exported)
    assert again.returncode == 0, again.stderr
    theirs = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    first, last = (tensors for tensors in trained)
    assert torch.equal(theirs.model.embed_tokens.weight.flatten(), first["model/embedding.weight"])
    assert torch.equal(theirs.lm_head.weight.flatten(), last["model/head.lm_head.weight"])
    assert torch.equal(theirs.model.layers[1].mlp.down_proj.weight.flatten(), last["model/blocks.1.mlp.down.weight"])
    assert (exported / "model-00001-of-00002.safetensors").stat().st_mode == (exported / "config.json").stat().st_mode
    assert "--export" in train(plan, *options, "--export", exported).stderr
    assert train(plan, *options, "--export", exported, "--force").returncode == 0
    text = theirs.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2, do_sample=False, pad_token_id=0)
    assert text.shape == (1, 5)


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
        ("interleaved", "1410 1200 1410 1200"),  # F0.0 F1.0 F0.1 F1.1 F2.0 | B0.1 | F3.0 | B1.1 ..
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
    done = train(plan, *options, "--output", tmp_path / "run", "--export", tmp_path / "weights", "--clocks", "dry")
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "run") == pytest.approx(losses(sequential / "run"), rel=1e-5)
    expected, found = weights_in(sequential / "weights"), weights_in(tmp_path / "weights")
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-4)
    changes = re.findall(r"stage 0: would lock the SM clock to (\d+) MHz", done.stdout)
    assert " ".join(changes).startswith(clocks)


def test_a_training_goes_on_by_another_plan_of_equal_layers(interleaved: Path) -> None:
    of_chunks = planned_job(interleaved / "plan/fastest.json", None)
    whole = tiny_workload(pp=2, model=FOUR_LAYERS, num_microbatches=4)
    gpipe = dataclasses.replace(whole, pipeline=dataclasses.replace(whole.pipeline, schedule=PipelineSchedule.GPIPE))
    assert TrainingJob(workload=gpipe).checkpoint_subject(0) == TrainingJob(workload=whole).checkpoint_subject(0)
    assert of_chunks.checkpoint_subject(0) != TrainingJob(workload=whole).checkpoint_subject(0)


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    """Of a Hugging Face checkpoint."""
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def test_weights_are_not_exported_beside_a_preferred_checkpoint(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"another")
    assert here(alone / "plan/fastest.json", "--iterations", 1, "--output", tmp_path / "run", "--export", tmp_path) == 2
    assert "has a checkpoint (model.safetensors), which transformers would read" in capsys.readouterr().err
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "model-00001-of-00003.safetensors", "config.json"])
def test_an_export_replaces_other_checkpoints_only_by_force(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("another")
    model = tiny_workload().model
    with pytest.raises(ConfigError) as refused:
        check_exportable(model, tmp_path)
    assert str(refused.value) == (
        f"--export {tmp_path}: has files of a checkpoint ({name}); give another folder, or --force to replace them."
    )
    check_exportable(model, tmp_path, replace=True)


def test_an_export_never_replaces_the_first_weights(tmp_path: Path) -> None:
    weights, linked = tmp_path / "weights", tmp_path / "linked"
    weights.mkdir()
    linked.symlink_to(weights)
    for export in (weights, linked, weights / ".." / "weights"):
        with pytest.raises(ConfigError, match="is the folder of --weights; give another folder"):
            check_exportable(tiny_workload().model, export, weights, replace=True)


@pytest.mark.parametrize(("workload", "microbatches"), [("two_stages", 3), ("interleaved", 4)])
def test_after_a_killed_rank_the_next_start_gives_equal_weights(
    request: pytest.FixtureRequest, tmp_path: Path, workload: str, microbatches: int
) -> None:
    plan, output = request.getfixturevalue(workload) / "plan/fastest.json", tmp_path / "killed"
    options = ("--iterations", 30, "--checkpoint-every", 5, *FAST)
    said, code = kill_a_rank(1, output, plan, *options)
    assert said == "kareus train: rank 1 died; all others end, the last checkpoint is whole.\n"
    assert code == 2
    resumed = train(plan, *options, "--output", output)
    assert re.search(r"resumed after iteration \d+ of", resumed.stdout), resumed.stderr
    whole = train(plan, *options, "--output", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    assert weights_of(output, 30) == weights_of(tmp_path / "whole", 30)
    assert len(weights_of(output, 30)) == 2
    assert losses(output) == losses(tmp_path / "whole")
    check_records(tmp_path / "whole", microbatches)


def check_records(output: Path, microbatches: int) -> None:
    """What each rank took, and that no GPU ran it."""
    for rank in range(2):
        path = output / f"rank-{rank:05d}.parquet"
        for row in read_table(path, ITERATIONS).to_dicts():
            assert (row["method"], row["selector"], row["rank"], row["stage"]) == ("kareus", "fastest", rank, rank)
            assert row["tokens"] == microbatches * 2 * 16
            assert 0 < row["pipeline_time_s"] < row["time_s"]
            assert row["energy_j"] is None
        assert read_provenance(path, ITERATIONS).testbed.label == "measured on CPU"


def test_a_training_that_diverges_ends_on_all_ranks_in_one_line(two_stages: Path, tmp_path: Path) -> None:
    options = ("--iterations", 50, "--output", tmp_path, *DIVERGING)
    done = train(two_stages / "plan/fastest.json", *options, timeout=60)
    assert done.returncode == 2
    assert re.fullmatch(r"kareus train: (iteration \d+: the loss|gradient: its norm) is (nan|inf).*\n", done.stderr)


def test_a_file_refused_by_the_system_ends_all_in_one_line(two_stages: Path, tmp_path: Path) -> None:
    table = tmp_path / "rank-00001.parquet"
    table.mkdir()
    done = train(two_stages / "plan/fastest.json", "--iterations", 1, "--output", tmp_path, timeout=60)
    assert done.returncode == 2
    assert done.stderr == (
        f"kareus train: rank 1: {table}: Is a directory; check the path, its permissions and the space on its disk.\n"
    )


def test_a_full_disk_ends_the_training_in_one_line(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        code = here("--workload", alone / "config/workload.yaml", "--iterations", 1, "--output", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    tensors = tmp_path / "checkpoints/iteration-00000001/rank-00000.safetensors"
    said = capsys.readouterr().err
    assert said.startswith(f"kareus train: {tensors}: cannot be written (")
    assert said.endswith("check the path, its permissions and the space on its disk.\n")
    assert said.count("\n") == 1
    assert list(tensors.parent.iterdir()) == []


@pytest.mark.parametrize(
    "place",
    [(StageModel, "__init__"), (StageModel, "run_forward"), (StageModel, "run_backward"), (Optimizer, "step")],
    ids=lambda place: f"{place[0].__name__}.{place[1]}",
)
def test_out_of_memory_ends_the_training_in_one_line(
    place: tuple[type, str],
    alone: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_out(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation.")

    monkeypatch.setattr(*place, run_out)
    assert here("--workload", alone / "config/workload.yaml", "--iterations", 1, "--output", tmp_path) == 2
    assert capsys.readouterr().err == (
        "kareus train: rank 0: the training does not fit into the memory of its GPU; end what else runs on it, or "
        "plan a smaller microbatch.\n"
    )


def test_a_departure_from_the_order_ends_in_one_line(
    alone: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(setup, "planned_steps", lambda *of: tuple(reversed(planned_steps(*of))))
    assert here(alone / "plan/fastest.json", "--iterations", 1, "--output", tmp_path) == 2
    assert capsys.readouterr().err == (
        "kareus train: forward of microbatch 0 on stage 0: the plan has backward of microbatch 2 on stage 0 here; run "
        "a plan of this pipeline schedule.\n"
    )
    assert all(record.name.startswith("kareus") for record in caplog.records)


def test_a_diverging_training_leaves_a_usable_checkpoint(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    plan, diverged, resumed = alone / "plan/fastest.json", tmp_path / "diverged", tmp_path / "resumed"
    assert here(plan, "--iterations", 3, "--output", tmp_path / "begun") == 0
    shutil.copytree(tmp_path / "begun", diverged)  # a folder stays locked until this process ends
    assert here(plan, "--iterations", 50, *DIVERGING, "--output", diverged) == 2
    assert re.search(r"(the loss|its norm) is (nan|inf).*\n$", capsys.readouterr().err)
    assert weights_of(diverged, 3) == weights_of(tmp_path / "begun", 3)
    shutil.copytree(diverged, resumed)
    caplog.set_level("INFO")
    assert here(plan, "--iterations", 4, "--output", resumed) == 0
    assert "resumed after iteration 3 of" in caplog.text
    assert all(math.isfinite(loss) for loss in losses(resumed))


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


def test_weights_that_are_not_finite_are_never_saved(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Optimizer.step

    def overflow(self: Optimizer, norm: torch.Tensor, rate: float) -> None:
        step(self, norm, rate)
        steps.append(rate)
        if len(steps) == 4:
            next(iter(self.weights().values()))[0] = torch.inf

    steps: list[float] = []
    monkeypatch.setattr(Optimizer, "step", overflow)
    options = ("--iterations", 9, "--checkpoint-every", 2, "--output", tmp_path)
    assert here(alone / "plan/fastest.json", *options) == 2
    assert capsys.readouterr().err == (
        "kareus train: iteration 3: weights or their moments are infinite or not a number, no checkpoint is written; "
        "lower --learning-rate, --weight-decay or --clip and start it again (it goes on after iteration 2).\n"
    )
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["iteration-00000002"]


def test_a_killed_rank_0_ends_the_others_with_one_message(two_stages: Path, tmp_path: Path) -> None:
    options = ("--iterations", 2000, "--checkpoint-every", 5, "--keep", 400)
    said, code = kill_a_rank(0, tmp_path, two_stages / "plan/fastest.json", *options)
    assert said == "kareus train: rank 0 died; all others end, the last checkpoint is whole.\n"
    assert code == 2
    assert len(weights_of(tmp_path, 5)) == 2


@pytest.mark.slow
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
        (("--iterations", 1, "--learning-rate", -1), 2, r"kareus train: --learning-rate -1.0: must be 0 or more.\n"),
        (("--iteration", 1), 2, r"kareus train: --iterations: missing; see kareus train --help\.\n"),
        (("--help",), 0, r"usage: kareus train (?s:.*)--communicator(?s:.*)"),
    ],
)
def test_wrong_arguments_under_torchrun_are_reported_once(
    two_stages: Path, tmp_path: Path, options: tuple[object, ...], code: int, said: str
) -> None:
    port = free_port()
    common = environment() | {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            command(two_stages / "plan/fastest.json", *options, "--output", tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    found = "".join(rank.communicate(timeout=60)[0] for rank in ranks)
    assert [rank.returncode for rank in ranks] == [code, code]
    assert re.fullmatch(said, found), found
    assert found.count("kareus train: ") + found.count("show this help") == 1


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
