"""Questions about the job of a trainer's file: all that it says but its layout."""

from pathlib import Path

import pytest
from helpers.builders import CONFIG

from kareus.adviser.from_files import Asked, asked_of
from kareus.adviser.question import ask
from kareus.errors import ConfigError
from kareus.workload.arguments import brought
from kareus.workload.compose import compose

FILES = Path(__file__).parents[1] / "interchange/files"
SCRIPT = FILES / "train_llama_8b.sh"
GPU = "gpu=h100-sxm5-80gb"


def asked(
    *given: str, file: Path = SCRIPT, gpus: str | None = None, batch: int | None = None, length: int | None = None
) -> Asked:
    return asked_of([file], given, gpus=gpus, global_batch=batch, sequence_length=length, config_dir=CONFIG)


@pytest.mark.parametrize(
    ("name", "gpus", "batch", "length"),
    [("train_llama_8b.sh", "32", 256, 8192), ("nanotron_1b.yaml", "16", 64, 4096), ("axolotl_8b.yaml", "8", 16, 4096)],
)
def test_a_file_says_gpus_batch_and_tokens_or_what_they_are_products_of(name, gpus, batch, length):
    of_file = asked(GPU, file=FILES / name)
    assert (of_file.gpus, of_file.global_batch, of_file.sequence_length) == (gpus, batch, length)


def test_the_question_is_of_the_job_with_any_layout():
    of_file = asked(GPU)
    question = ask(
        of_file.overrides, gpus=of_file.gpus, global_batch=of_file.global_batch, sequence_length=8192, config_dir=CONFIG
    )
    (job,) = compose(brought([SCRIPT], None, [GPU])[1], CONFIG)
    assert question.base.gpu.name == job.workload.gpu.name
    for part in ("model", "precision", "software"):
        assert getattr(question.base, part) == getattr(job.workload, part)
    free = ask([GPU, "model=llama3.1-8b"], gpus=8, global_batch=8, config_dir=CONFIG)
    assert job.workload.parallelism.pp == job.workload.parallelism.tp == 2
    assert question.constraints == free.constraints
    assert question.base.parallelism == free.base.parallelism


def test_what_is_given_goes_before_what_the_file_says():
    of_file = asked(GPU, "tp=4", "precision=bf16", gpus="64", batch=512, length=4096)
    assert (of_file.gpus, of_file.global_batch, of_file.sequence_length) == ("64", 512, 4096)
    assert "tp=4" in of_file.overrides
    assert [text for text in of_file.overrides if text.startswith("precision=")] == ["precision=bf16"]


def test_nothing_of_the_file_takes_the_place_of_a_zero():
    of_file = asked(GPU, gpus="0", batch=0, length=0)
    assert (of_file.gpus, of_file.global_batch, of_file.sequence_length) == ("0", 0, 0)
    with pytest.raises(ConfigError, match="--global-batch 0: must be from 1"):
        ask(of_file.overrides, gpus="8", global_batch=of_file.global_batch, config_dir=CONFIG)


def test_it_says_what_is_lost_and_what_is_taken_where_the_file_says_nothing():
    (lost,) = asked(GPU).left_out
    assert "windows of attention" in lost
    *others, unsaid = asked().left_out
    assert others == [lost]
    assert unsaid.startswith(f"{SCRIPT}: not said: which GPU it is: a100-sxm4-40gb is taken")


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("megatron_core.yaml", {"batch": 8}, "does not say how many GPUs there are; give --gpus N."),
        ("titan_dump.json", {"gpus": "8"}, "does not say how many sequences an iteration has; give --global-batch N."),
        ("zero3.json", {"gpus": "8"}, "does not say the sizes of the model"),
    ],
)
def test_what_nobody_says_is_asked_for(name, given, said):
    with pytest.raises(ConfigError, match=f"{name}: {said}"):
        asked(GPU, file=FILES / name, **given)


def test_without_a_file_all_has_to_be_given():
    with pytest.raises(ConfigError, match=r"--global-batch is missing; give it, such as --global-batch 64"):
        asked_of([], [GPU], gpus="8", global_batch=None, sequence_length=None, config_dir=CONFIG)


@pytest.mark.parametrize(
    ("name", "gpus", "degrees"),
    [
        ("train_llama_8b.sh", None, (8, 2, 2, 1)),
        ("nanotron_1b.yaml", None, (4, 2, 2, 2)),
        ("megatron_core.yaml", "16", (2, 4, 2, 2)),  # which does not say its GPUs
        ("megatron_core.yaml", "12", None),  # over which 8 do not divide
        ("bridge_run_config.yaml", "7", None),
    ],
)
def test_the_layout_of_the_job_is_what_its_file_says(name, gpus, degrees):
    job = asked(GPU, file=FILES / name, gpus=gpus).job
    assert (None if job is None else (job.dp, job.pp, job.tp, job.microbatch_size)) == degrees
    if job is not None and job.pp > 1:
        assert job.layers_per_stage is None or len(job.layers_per_stage) == job.pp * job.chunks


def test_a_number_of_gpus_is_the_same_as_an_option_and_as_an_override():
    assert asked(GPU, "gpus=64") == asked(GPU, gpus="64")


def test_a_layout_that_advise_has_none_of_is_not_compared_with(tmp_path):
    """Experts are shared out over a tensor-parallel group of their own, unless another is given."""
    path = tmp_path / "experts.sh"
    sizes = "--num-layers 16 --hidden-size 2048 --num-attention-heads 16 --vocab-size 32000 --num-experts 8"
    batch = "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64"
    degrees = "--tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 4"
    command = f"torchrun --nproc_per_node 8 pretrain_gpt.py {sizes} {batch} {degrees} --moe-router-topk 2 --bf16"
    said = "its own layout is not compared with"
    for own, is_compared in (("", False), ("--expert-tensor-parallel-size 1", True)):
        path.write_text(f"{command} {own}\n")
        of_file = asked(GPU, file=path)
        assert (of_file.job is not None) == is_compared
        assert any(said in line for line in of_file.left_out) != is_compared


def test_a_constraint_is_not_taken_for_the_layout_of_the_job():
    assert asked(GPU, "tp=4").job == asked(GPU).job


def test_what_other_commands_take_as_overrides_is_taken_as_options():
    typed = [GPU, "gpus=64", "global_batch_size=128", "sequence_length=2048"]
    alone = asked_of([], typed, gpus=None, global_batch=None, sequence_length=None, config_dir=CONFIG)
    beside = asked(*typed)
    for answer in (alone, beside):
        assert (answer.gpus, answer.global_batch, answer.sequence_length) == ("64", 128, 2048)
        assert not any(text.startswith(("global_batch", "sequence_length", "gpus")) for text in answer.overrides)


@pytest.mark.parametrize("text", ["global_batch_size=many", "sequence_length=", "global_batch_size=64"])
def test_a_size_that_is_no_number_or_said_twice_is_refused(text):
    with pytest.raises(ConfigError, match=text):
        asked(GPU, text, batch=32)
