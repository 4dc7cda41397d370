"""A run beside its prediction: logs that are made of predictions, so that the right answer is known."""

import json

import pytest
from helpers.builders import CONFIG

from kareus.cli import main
from kareus.errors import ConfigError
from kareus.explain.causes import SUSPECTS, causes_of
from kareus.explain.explanation import explain
from kareus.explain.log import LoggedRun
from kareus.prediction.errors import time_percent
from kareus.prediction.workload_prediction import predict
from kareus.workload.model_flops import model_flops
from kareus.workload.resolve import resolve_accepted

QWEN = ("model=qwen3-1.7b", "gpu=h100-sxm5-80gb", "sequence_length=4096", "microbatch_size=1", "num_microbatches=4")
LAYOUTS = {
    "replicas": ("parallelism.tp=2", "parallelism.pp=1", "parallelism.dp=8", "parallelism.sharding=optimizer"),
    "pipeline": ("parallelism.tp=1", "parallelism.pp=2", "pipeline=interleaved", "pipeline.chunks=2", "precision=fp8"),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def workload(request):
    (one,) = resolve_accepted([*QWEN, *LAYOUTS[request.param]], CONFIG).values()
    return one


@pytest.fixture(scope="module")
def expected(workload):
    return predict(workload)


def run_of(times_s, **numbers):
    return LoggedRun(
        trainer="Megatron-LM", first_step=1, last_step=len(times_s), left_out=0, times_s=tuple(times_s), numbers=numbers
    )


def test_a_run_within_the_error_is_as_expected_and_has_no_causes(workload, expected):
    error = time_percent(workload) / 100
    for factor, as_expected in ((1 + 0.9 * error, True), (1 / (1 + 0.9 * error), True), (1 - 2 * error, False)):
        explained = explain("w", workload, run_of([factor * expected.time_s] * 5))
        assert (explained.as_expected, explained.causes) == (as_expected, ())
        assert explained.slower_percent == pytest.approx(100 * (factor - 1))


def test_what_went_wrong_is_the_first_cause(workload, expected):
    """Of each suspect that costs more than errors hide: a run with it is explained by it, wholly."""
    tried = 0
    for suspect in SUSPECTS:
        changed = suspect.changed(workload)
        slow = None if changed is None else predict(changed)
        if slow is None or slow.time_s < 1.03 * expected.time_s:
            continue
        power_w = slow.energy_j / slow.time_s / workload.parallelism.gpus
        signs = {"power_w_per_gpu": power_w, "allocated_gib": slow.memory.allocated_gib}
        causes = causes_of(workload, expected, slow.time_s, signs)
        (cause,) = [cause for cause in causes if cause.what == suspect.what]
        assert (cause.explained_percent, cause.doubts) == (pytest.approx(100), ())
        assert next(one.time_s for one in causes if not one.doubts) == pytest.approx(cause.time_s, rel=0.01)
        if (tried := tried + 1) == 3:
            return
    raise AssertionError(f"{tried} suspects cost anything")


def test_a_low_clock_is_found_to_a_step(workload, expected):
    slow = predict(workload, frequency_mhz=1305)
    (cause,) = [c for c in causes_of(workload, expected, slow.time_s, {}) if c.what.startswith("GPUs run at ")]
    assert 1275 <= int(cause.what.split()[3]) <= 1320
    assert cause.explained_percent == pytest.approx(100, abs=10)


def test_power_and_memory_of_the_log_tell_causes_apart(workload, expected):
    """A GPU that draws what it does at its maximum clock has no low clock."""
    slow = predict(workload, frequency_mhz=1305)
    usual_w, slow_w = (p.energy_j / p.time_s / workload.parallelism.gpus for p in (expected, slow))
    assert slow_w < 0.85 * usual_w
    for power_w, is_doubted in ((usual_w, True), (slow_w, False)):
        causes = causes_of(workload, expected, slow.time_s, {"power_w_per_gpu": power_w})
        (clock,) = [cause for cause in causes if cause.what.startswith("GPUs run at ")]
        assert bool(clock.doubts) is is_doubted
        doubted = [bool(cause.doubts) for cause in causes]
        assert doubted == sorted(doubted)


def test_rates_are_as_good_as_times(workload, expected):
    gpus = workload.parallelism.gpus
    tokens = workload.parallelism.dp * 4 * 4096
    explained = explain("w", workload, run_of([], tokens_per_s_per_gpu=tokens / gpus / (2 * expected.time_s)))
    assert explained.achieved_s == pytest.approx(2 * expected.time_s)
    with pytest.raises(ConfigError, match="neither times of steps nor tokens per second"):
        explain("w", workload, run_of([]))


def test_another_batch_is_refused_with_what_makes_it_fit(workload):
    replicas = workload.parallelism.dp
    with pytest.raises(ConfigError, match="give num_microbatches=8"):
        explain("w", workload, run_of([1.0], batch_sequences=8 * replicas))
    with pytest.raises(ConfigError, match="give another layout"):
        explain("w", workload, run_of([1.0], batch_tokens=4.5 * replicas * 4096))
    explain("w", workload, run_of([1.0], batch_tokens=1.004 * 4 * replicas * 4096))  # nanotron rounds


def test_uneven_steps_other_flops_and_more_memory_are_noted(workload, expected):
    time_s, gpus = expected.time_s, workload.parallelism.gpus
    usual = model_flops(workload) / gpus / time_s / 1e12
    fine = explain("w", workload, run_of([time_s] * 20, tflops_per_gpu=usual, allocated_gib=1.0))
    assert fine.notes == ()
    off = run_of([time_s] * 18 + [4 * time_s] * 2, tflops_per_gpu=1.5 * usual, allocated_gib=70.0)
    steps, flops, memory = explain("w", workload, off).notes
    assert steps.startswith("2 of 20 steps took more than 1.5 times the median and make the run 30 % longer")
    assert "(1.50 times)" in flops
    assert memory.startswith("70.0 GiB are allocated where ")


def command(tmp_path, capsys, *arguments, time_ms=500):
    line = " iteration {}/ 100 | elapsed time per iteration (ms): {} | global batch size: 4 |\n"
    (tmp_path / "a.log").write_text("".join(line.format(step, time_ms) for step in range(20)))
    layout = ("parallelism.tp=2", "parallelism.pp=1")
    code = main(["explain", str(tmp_path / "a.log"), *QWEN, *layout, "--config-dir", str(CONFIG), *arguments])
    return code, capsys.readouterr()


def test_the_command_prints_the_comparison_and_then_causes(tmp_path, capsys):
    code, printed = command(tmp_path, capsys)
    assert (code, printed.err) == (0, "")
    assert "a.log: Megatron-LM, steps 4 to 19; 4 at the beginning left out" in printed.out
    assert "[GPU model of H100-SXM5-80GB]" in printed.out
    assert "slower than expected: +" in printed.out
    assert printed.out.index("slower than expected") < printed.out.index("what would make up the missing")
    assert max(map(len, printed.out.splitlines()[2:])) <= 100


def test_a_run_that_stands_still_is_explained_by_nothing(tmp_path, capsys):
    _, printed = command(tmp_path, capsys, time_ms=600_000)
    assert "nothing that is tried makes up 5 % of it" in " ".join(printed.out.split())
    assert "what would make up" not in printed.out


def test_the_command_answers_with_one_json_object(tmp_path, capsys):
    found = json.loads(command(tmp_path, capsys, "--json")[1].out)
    assert found["achieved_s"] == 0.5
    assert found["slower_percent"] == pytest.approx(100 * (0.5 / found["expected"]["time_s"] - 1))
    assert found["as_expected"] is False
    assert {"what", "look_at", "time_s", "explained_percent", "doubts"} == set(found["causes"][0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpu=h200"], "no log; give the file"),
        (["missing.log"], "missing.log: cannot be read"),
        (["a.log", "gpu=h100-sxm5-80gb,h200"], "2 workloads: a log is of one"),
        (["a.log", "gpu=nothing"], "gpu=nothing"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.log").write_text("[titan] step: 1 loss: 7 memory: 4GiB(6%)  tps: 5,762  tflops: 333.69  mfu: 33.74%")
    assert main(["explain", *arguments, "--config-dir", str(CONFIG)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert message in printed.err
