"""Logs of trainers, in lines as they print them: what is read, what is left out, what is refused."""

import os

import pytest

from kareus.errors import ArtifactError, ConfigError
from kareus.explain.log import formats, read_logs

GREEN = "\x1b[32m"
LINES = {
    "Megatron-LM": "0:  [2026-11-03 09:10:07] iteration {step:8d}/     100 | elapsed time per "
    "iteration (ms): 7201.5 | throughput per GPU (TFLOP/s/GPU): 412.3 | energy per GPU (J/iter/GPU): 4010.5 | "
    "power per GPU (W/GPU): 557.0 | learning rate: 1.5E-05 | global batch size:   256 | lm loss: 1.08E+01 |",
    "NeMo": "Training epoch 0, iteration {step}/99 | lr: 1.649e-06 | global_batch_size: 128 | global_step: {step} | "
    "max_memory_reserved: 42949672960 | max_memory_allocated: 32212254720 | reduced_train_loss: 11.97 | "
    "train_step_timing in s: 3.684 | TFLOPS_per_GPU: 1.249e+03 | consumed_samples: 1408",
    "torchtitan": "[titan] 2026-11-03 09:10:07,001 - root - INFO - "
    + GREEN
    + "step: {step:2}  loss:  7.1234  grad_norm:"
    "  1.2345  memory: 47.57GiB(60.05%)  tps: 5,762  tflops: 333.69  mfu: 33.74%\x1b[39m",
    "nanotron": "11/03 09:10:07 [INFO|DP=0|TP=0|node7]: iteration: {step} / 1000 | consumed_tokens: 480M | "
    "time_per_iteration_ms: 8.79K | tokens_per_sec: 182K | tokens_per_sec_per_gpu: 11.4K | global_batch_size: 1.6M | "
    "lm_loss: 2.04 | lr: 0.0001 | model_tflops_per_gpu: 415 | eta: 1 day, 1:45:39",
    "Hugging Face Trainer": " 40%|████      | {step}/1000 [03:45<05:30,  1.13s/it]",
}
READ = {
    "Megatron-LM": (7.2015, {
        "tflops_per_gpu": 412.3, "energy_j_per_gpu": 4010.5, "power_w_per_gpu": 557.0, "batch_sequences": 256,
    }),
    "NeMo": (3.684, {"tflops_per_gpu": 1249, "batch_sequences": 128, "allocated_gib": 30, "reserved_gib": 40}),
    "torchtitan": (None, {"tokens_per_s_per_gpu": 5762, "tflops_per_gpu": 333.69, "reserved_gib": 47.57}),
    "nanotron": (8.79, {"batch_tokens": 1.6e6, "tokens_per_s_per_gpu": 11_400, "tflops_per_gpu": 415}),
    "Hugging Face Trainer": (1.13, {"bar_steps": 1000}),
}  # fmt: skip


def log_of(folder, *lines):
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return [path]


def steps_of(trainer, count=20):
    return [LINES[trainer].format(step=step) for step in range(1, count + 1)]


def megatron(step, time_ms, batch=256):
    return f" iteration {step}/ 100 | elapsed time per iteration (ms): {time_ms} | global batch size: {batch} |"


def test_every_format_has_a_line_here():
    assert {kind.trainer for kind in formats()} == LINES.keys() == READ.keys()


@pytest.mark.parametrize("trainer", LINES)
def test_the_numbers_of_a_line_are_read_in_their_units(tmp_path, trainer):
    time_s, numbers = READ[trainer]
    run = read_logs(log_of(tmp_path, "a line of something else, step: 3", *steps_of(trainer)))
    assert run.trainer == trainer
    assert (run.first_step, run.last_step, run.left_out) == (5, 20, 4)
    assert run.time_s == (None if time_s is None else pytest.approx(time_s))
    assert run.numbers == pytest.approx(numbers)


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("[Rank 0] (after 2 iterations) memory (MB) | allocated: 1024.0 | max allocated: 2048.0 | reserved: 4096.0 | "
         "max reserved: 5120.0", {"allocated_gib": 2, "reserved_gib": 5}),
        ("Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU", {"tflops_per_gpu": 663.5}),
    ],
)  # fmt: skip
def test_numbers_of_other_lines_count(tmp_path, line, numbers):
    run = read_logs(log_of(tmp_path, *(megatron(step, 100) for step in range(20)), line, line.replace("5120", "1024")))
    assert {name: run.numbers[name] for name in numbers} == pytest.approx(numbers)


def test_steps_that_are_told_again_count_as_the_later_run_has_them(tmp_path):
    again = [megatron(step, 200) for step in range(5, 40)]
    run = read_logs(log_of(tmp_path, *(megatron(step, 100) for step in range(20)), *again))
    assert (run.time_s, run.last_step) == (pytest.approx(0.2), 39)


def test_of_a_batch_that_grows_the_last_size_counts(tmp_path):
    small = [megatron(step, 100, batch=32) for step in range(30)]
    run = read_logs(log_of(tmp_path, *small, *(megatron(step, 800) for step in range(30, 36))))
    assert (len(run.times_s), run.time_s, run.numbers["batch_sequences"]) == (6, pytest.approx(0.8), 256)


def test_steps_that_are_held_up_are_counted_and_leave_the_median(tmp_path):
    times_ms = [100.0] * 18 + [300.0, 500.0]
    run = read_logs(log_of(tmp_path, *[megatron(step, ms) for step, ms in enumerate(times_ms)]))
    assert (run.time_s, len(run.delays_s)) == (pytest.approx(0.1), 2)
    assert run.slow_percent == pytest.approx(100 * (0.2 + 0.4) / (16 * 0.1))


def test_the_bar_of_training_is_told_from_others_and_redrawn_in_place(tmp_path):
    bars = [f"{step}%|█| {step}/200 [00:10<00:20,  {1.5 if step > 100 else 9.0:.2f}s/it]" for step in range(1, 200)]
    fast = "100%|██| 200/200 [01:00<00:00,  2.00it/s]"
    others = "Map: 5%|▌| 5/4000 [00:00<00:01, 99.0it/s]\r 50%|███| 4/8 [00:00<00:00, 88.0it/s]\r"
    (tmp_path / "train.log").write_bytes((others + "\r".join([*bars, fast])).encode())
    run = read_logs([tmp_path / "train.log"])
    assert (run.last_step, run.time_s, min(run.times_s)) == (200, pytest.approx(1.5), 0.5)


def test_logs_of_nodes_are_one_run(tmp_path):
    (tmp_path / "a").write_text("\n".join(steps_of("Megatron-LM")))
    (tmp_path / "b").write_text("[Rank 8] memory (MB) | max allocated: 3072.0 | max reserved: 4096.0\n")
    assert read_logs([tmp_path / "a", tmp_path / "b"]).numbers["allocated_gib"] == pytest.approx(3)


def test_bytes_that_are_no_text_and_endless_lines_do_no_harm(tmp_path):
    path = tmp_path / "train.log"
    path.write_bytes(b"\xff\xfe\x00" * 10 + b"\n" + b"7" * 300_000 + b"\n" + "\n".join(steps_of("NeMo")).encode())
    assert read_logs([path]).time_s == pytest.approx(3.684)


@pytest.mark.parametrize("text", ["", "epoch 1 of 3\n", "step: 1 loss: 2.0\n", "Map: 5%|▌| 5/4000 [00:00, 99.0it/s]\n"])
def test_a_file_without_steps_is_refused_with_what_is_read(tmp_path, text):
    path = tmp_path / "other.log"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"other\.log: no line of a training step; logs of Megatron-LM, NeMo, "):
        read_logs([path])


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "missing", "."):
        with pytest.raises(ArtifactError, match="cannot be read"):
            read_logs([tmp_path / name])
