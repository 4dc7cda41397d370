"""`kareus from` and `--from`: what files of trainers mean, and workload files."""

import json
from pathlib import Path

import pytest
import yaml
from helpers.builders import CONFIG

from kareus.cli import main
from kareus.workload.arguments import brought

FILES = Path(__file__).parents[1] / "interchange/files"
SCRIPT = str(FILES / "train_llama_8b.sh")
WORDS = ["gpu=h100-sxm5-80gb", "--config-dir", str(CONFIG)]


@pytest.fixture
def said(caplog):
    caplog.set_level("INFO")
    return lambda: [record.message for record in caplog.records]


def test_what_a_file_says_is_told_by_kind(said):
    assert main(["from", SCRIPT, *WORDS]) == 0
    lines = said()
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        "understood:",
        "matters, and cannot be said:",
        "could not be followed:",
        "matters, and is assumed so, or said by another:",
        "does not matter:",
    ]
    assert "  ntasks_per_node, nodes, attention_dropout, bf16" in lines
    assert "  tensor_model_parallel_size             2 -> parallelism.tp=2" in lines
    assert lines[-1].startswith("workload: train-llama-8b-")
    assert "overrides: 'model={name:train_llama_8b" in lines[-2]


def test_an_option_that_a_script_gives_again_is_told_with_the_one_that_counts(tmp_path, said):
    """As argparse takes it; what is given again with the same value, or in another command, is no matter."""
    script = tmp_path / "train.sh"
    command = Path(SCRIPT).read_text().replace("--swiglu", "--swiglu --micro-batch-size 4 --swiglu --seed 1 --seed 1")
    script.write_text(f"python prepare.py --micro-batch-size 8\n{command}")
    assert main(["from", str(script), *WORDS]) == 0
    lines = said()
    assert lines[lines.index("given more than once, and the last counts:") + 1] == "  micro_batch_size (4, then 1)"
    assert " microbatch_size=1 " in next(line for line in lines if line.startswith("overrides: "))


@pytest.mark.parametrize("command", ["from", "advise", "predict"])
def test_an_override_is_given_once(command, tmp_path, capsys, said):
    words = [SCRIPT] if command == "from" else ["--from", SCRIPT]
    assert main([command, *words, *WORDS, "global_batch_size=64", "global_batch_size=128"]) == 2
    assert "global_batch_size=128: 'global_batch_size' is given twice" in capsys.readouterr().err
    assert said() == []


def test_an_override_replaces_what_a_file_says(said):
    assert main(["from", SCRIPT, *WORDS, "parallelism.tp=4", "model=llama3.1-8b"]) == 0
    assert said()[-1].startswith("workload: llama3.1-8b_dp4-pp2-tp4_")


def test_a_workload_file_is_one_campaign_that_can_be_read_again(tmp_path, said):
    made = tmp_path / "mine.yaml"
    assert main(["from", SCRIPT, *WORDS, "--output", str(made)]) == 0
    (text,) = yaml.safe_load(made.read_text())["workloads"]
    assert "parallelism.tp=2" in text
    name = said()[-1].removeprefix("workload: ")
    assert "windows of attention" in made.read_text()
    assert main(["resolve", "--from", str(made), "--config-dir", str(CONFIG)]) == 0
    assert any(name in line for line in said()[-4:])
    assert main(["from", str(made), "--config-dir", str(CONFIG)]) == 0
    assert said()[-1] == f"workload: {name}"


def test_a_file_of_another_kind_is_not_replaced(tmp_path, capsys):
    other = tmp_path / "notes.yaml"
    other.write_text("notes: 1\n")
    assert main(["from", SCRIPT, *WORDS, "--output", str(other)]) == 2
    assert other.read_text() == "notes: 1\n"
    assert "--force" in capsys.readouterr().err


def test_a_file_without_a_model_asks_for_one_and_writes_nothing(tmp_path, capsys, said):
    part, made = tmp_path / "part.yaml", tmp_path / "made.yaml"
    part.write_text("model_config: {tensor_model_parallel_size: 2}\ntrain_config: {global_batch_size: 256}\n")
    assert main(["from", str(part), *WORDS, "--output", str(made)]) == 2
    assert "give model=NAME" in capsys.readouterr().err
    assert not made.exists()
    assert said()[0] == f"{part}: a recipe of NeMo or Megatron-Bridge, 2 settings"
    assert main(["predict", "--from", str(part), *WORDS]) == 2
    assert main(["from", str(part), *WORDS, "model=llama3.1-8b", "gpus=16", "--output", str(made)]) == 0
    assert "num_microbatches" not in made.read_text()


def test_a_prediction_says_what_of_the_file_is_left_out(capsys):
    assert main(["predict", "--from", SCRIPT, *WORDS]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"{SCRIPT}: window_size=[4096, 0]: windows of attention: taken as over whole sequences"
    assert second.startswith("train-llama-8b-")
    assert main(["predict", "--from", SCRIPT, "--config-dir", str(CONFIG), "--json", "gpu=h100-sxm5-80gb"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == [first]


def test_a_refused_layout_of_a_file_is_told_by_its_reason(said):
    assert main(["from", SCRIPT, *WORDS, "parallelism.tp=64", "gpus=128"]) == 0
    assert said()[-1].startswith("as it is refused: parallelism.tp=64")


def test_a_file_that_names_no_gpu_is_not_refused_for_a_gpu_that_nobody_named(tmp_path, capsys):
    large = tmp_path / "large.sh"
    large.write_text(Path(SCRIPT).read_text().replace("--num-layers 32", "--num-layers 320"))
    assert large.read_text() != Path(SCRIPT).read_text()
    assert main(["predict", "--from", str(large), "--config-dir", str(CONFIG)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(large) in line
    assert "give gpu=NAME" in line
    assert "out of memory" not in line
    assert main(["predict", "--from", str(large), *WORDS]) == 2
    assert "out of memory" in capsys.readouterr().err


def test_a_file_that_names_no_gpu_is_written_and_asks_for_one(tmp_path, said):
    """The default GPU's memory says nothing of the user's."""
    large, made = tmp_path / "train_70b.sh", tmp_path / "large.yaml"
    sizes = "--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --ffn-hidden-size 28672 --swiglu"
    rest = "--seq-length 4096 --vocab-size 32000 --tensor-model-parallel-size 8 --micro-batch-size 1"
    large.write_text(f"torchrun pretrain_gpt.py {sizes} {rest} --global-batch-size 64 --position-embedding-type rope\n")
    words = ["gpus=8", "--config-dir", str(CONFIG)]
    assert main(["from", str(large), *words, "--output", str(made)]) == 0
    written, named = said()[-2:]
    assert written == f"{made}: written; kareus predict --from {made} gpu=NAME"
    assert named == f"GPU: not named in {large}; add gpu=NAME to the command, which as it is fits b300, gb300"
    assert main(["from", str(made), *words[1:], "parallelism.tp=3", "gpus=3"]) == 0
    named, refused = said()[-2:]
    assert "add gpu=NAME to the command, of a100-sxm4-40gb, " in named
    assert refused.startswith("as it is refused, on GB300 too: parallelism.tp=3: must ")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["predict", "--trainer", "nemo"], "give --from FILE"),
        (["from", "gpu=h200"], "no file"),
        (["from", "missing.sh"], "missing.sh: cannot be read"),
        (["predict", "--from", "missing.sh"], "missing.sh: cannot be read"),
        (["from", SCRIPT, "--trainer", "titan"], "perhaps you meant torchtitan"),
        (["from", SCRIPT, "gpus=7"], "gpus=7: must be a multiple of 4"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments, part, capsys):
    assert main([*arguments, "--config-dir", str(CONFIG)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line


LAYERS = "--num-layers 16 --hidden-size 2048 --num-attention-heads 32 --vocab-size 32000 --position-embedding-type rope"
BATCH = "--seq-length 2048 --micro-batch-size 1 --global-batch-size 64 --nproc_per_node 8 --nnodes 2"


def megatron_script(path, stages):
    path.write_text(f"torchrun pretrain_gpt.py {LAYERS} {BATCH} --pipeline-model-parallel-size {stages}\n")
    return path


@pytest.mark.parametrize("stages", [1, 2, 8])
def test_an_override_of_stages_is_what_the_script_with_as_many_is(tmp_path, stages):
    script = megatron_script(tmp_path / "job.sh", 4)
    _, overridden = brought([script], None, [WORDS[0], f"parallelism.pp={stages}"])
    _, expected = brought([megatron_script(script, stages)], None, [WORDS[0]])
    assert overridden == expected


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        (["parallelism.pp=2,4"], True),
        (["parallelism=tp8"], True),
        (["parallelism.pp=2"], False),
        (["parallelism.pp=2", "parallelism.layers_per_stage=[9,7]"], False),
        (["parallelism.tp=2"], False),
    ],
)
def test_it_is_said_where_the_blocks_of_a_script_are_dropped(tmp_path, said, given, is_said):
    assert main(["from", str(megatron_script(tmp_path / "job.sh", 4)), *given, *WORDS]) == 0
    dropped = "job.sh: parallelism.layers_per_stage=[4,4,4,4] is dropped; blocks are balanced with"
    assert any(dropped in line for line in said()) == is_said


def test_a_sweep_of_stages_is_told_to_leave_what_follows_from_them(tmp_path, said):
    script = megatron_script(tmp_path / "job.sh", 1)
    assert main(["from", str(script), "parallelism.pp=2,4", *WORDS]) == 0
    assert any("job.sh: parallelism.pp=2,4: all else is as for the file's number" in line for line in said())


def test_stages_of_a_workload_file_have_no_trainer_that_gives_them_blocks(tmp_path, said):
    script, workload = megatron_script(tmp_path / "job.sh", 4), tmp_path / "w.yaml"
    assert main(["from", str(script), *WORDS, "--output", str(workload)]) == 0
    assert main(["from", str(workload), "--config-dir", str(CONFIG), "parallelism.pp=2"]) == 0
    assert any("[4,4,4,4] is dropped; blocks are balanced with parallelism.pp=2" in line for line in said())
