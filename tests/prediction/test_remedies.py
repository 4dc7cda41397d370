"""Why a workload does not fit: each remedy, typed as it is printed, makes it fit, at the cost that is printed."""

import logging
import math

import pytest
from helpers.builders import CONFIG

from kareus.cli import main
from kareus.errors import RefusedWorkloadError
from kareus.prediction.remedies import Misfit, changes, misfit_lines, why_not
from kareus.prediction.workload_prediction import predict
from kareus.workload.memory import MemoryFit
from kareus.workload.resolve import Resolved, resolve

EIGHT = ("model=llama3.1-8b", "gpu=h100-sxm5-80gb", "parallelism.cp=1", "parallelism.pp=1", "num_microbatches=8")
CASES = {
    "wide": ("microbatch_size=16",),
    "replicas": (*EIGHT, "parallelism.tp=1", "parallelism.dp=8", "sequence_length=8192", "recomputation=none"),
    "alone": (*EIGHT, "parallelism.tp=1", "parallelism.dp=1", "parallelism.sharding=none", "recomputation=none"),
    "interleaved": (
        *EIGHT[:3],
        "parallelism.tp=2",
        "parallelism.pp=4",
        "pipeline=interleaved",
        "pipeline.chunks=2",
        "microbatch_size=2",
        "num_microbatches=16",
        "sequence_length=10240",
        "recomputation=none",
    ),
    "experts": (
        "model=mixtral-8x7b",
        *EIGHT[1:],
        "parallelism.tp=1",
        "parallelism.dp=32",
        "parallelism.sharding=optimizer",
        "microbatch_size=1",
    ),
    "split": (
        *EIGHT[:3],
        "parallelism.pp=2",
        "parallelism.tp=1",
        "parallelism.sharding=none",
        "parallelism.layers_per_stage=[16,16]",
    ),
    "logits": (
        *EIGHT,
        "parallelism.tp=1",
        "parallelism.dp=8",
        "parallelism.sharding=optimizer",
        "microbatch_size=4",
        "sequence_length=8192",
        "recomputation=full",
        "software.loss_kernels=separate",
    ),
}


def refused(case: str) -> Resolved:
    (one,) = resolve([*CASES[case]], CONFIG)
    assert one.workload is None
    assert one.memory is not None
    return one


@pytest.fixture(scope="module", params=list(CASES))
def misfit(request: pytest.FixtureRequest) -> tuple[str, Misfit]:
    return request.param, why_not(refused(request.param).composed)


def test_each_remedy_that_is_typed_fits_at_the_printed_cost(misfit: tuple[str, Misfit]) -> None:
    case, found = misfit
    before = found.workload
    assert found.remedies
    for remedy in found.remedies:
        keys = {text.partition("=")[0] for text in remedy.overrides}
        kept = [text for text in CASES[case] if text.partition("=")[0] not in keys]
        (after,) = resolve([*kept, *remedy.overrides], CONFIG)
        assert after.workload is not None, after.refusal
        assert after.memory == remedy.memory
        batches = (one.parallelism.dp * one.num_microbatches * one.microbatch_size for one in (before, after.workload))
        assert len(set(batches)) == 1
        ratio = predict(after.workload).time_s / predict(before).time_s
        assert remedy.time_percent == pytest.approx(100 * (ratio - 1))
        assert remedy.gpus == after.gpus


@pytest.mark.parametrize("case", list(CASES))
def test_each_change_is_what_its_overrides_say(case: str) -> None:
    for overrides, changed in changes(refused(case).composed):
        keys = {text.partition("=")[0] for text in overrides}
        kept = [text for text in CASES[case] if text.partition("=")[0] not in keys]
        (typed,) = resolve([*kept, *overrides], CONFIG)
        assert typed.composed == changed, overrides


def test_experts_are_shared_out_where_that_saves_memory() -> None:
    said = {text for overrides, _ in changes(refused("experts").composed) for text in overrides}
    assert {text for text in said if ".ep=" in text} == {f"parallelism.ep={ep}" for ep in (2, 4, 8)}
    assert not [text for overrides, _ in changes(refused("alone").composed) for text in overrides if ".ep=" in text]


def test_no_remedy_is_beaten_by_another(misfit: tuple[str, Misfit]) -> None:
    _, found = misfit
    costs = [(one.is_tight, one.gpus, one.steps, one.time_percent, one.energy_percent) for one in found.remedies]
    assert costs == sorted(costs, key=lambda cost: (*cost[:2], cost[3]))
    options = [{text for text in one.overrides if text.startswith("training.")} for one in found.remedies]
    for one, trained in zip(costs, options, strict=True):
        alike = [other for other, others in zip(costs, options, strict=True) if others <= trained]
        assert not any(other != one and all(map(float.__le__, map(float, other), map(float, one))) for other in alike)
    assert all(one.fit is not MemoryFit.REFUSED for one in found.remedies)


SHORT = (*EIGHT, "parallelism.tp=1", "parallelism.dp=8", "parallelism.sharding=optimizer", "microbatch_size=1")


@pytest.mark.parametrize("memory_gib", [15, 18, 24, 26, 30, 34, 40])
def test_what_fits_for_sure_comes_first_and_what_may_fit_says_so(memory_gib: int) -> None:
    """Of whatever size the GPU is: what is tight is never first where something fits, nor in its place."""
    (one,) = resolve([*SHORT, f"gpu.memory_gib={memory_gib}"], CONFIG)
    assert one.workload is None
    found = why_not(one.composed)
    shares = [remedy.memory.total_gib / memory_gib for remedy in found.remedies]
    assert shares[0] < 0.95
    assert [share >= 0.95 for share in shares] == sorted(share >= 0.95 for share in shares)
    lines = list(misfit_lines("some", found))[2:]
    assert [" GiB (may fit, try it first), time " in line for line in lines] == [share >= 0.95 for share in shares]


def test_a_change_alone_is_named_beside_faster_ones_of_several() -> None:
    """Microbatches of 1 fit a pipeline of 16 GPUs of 15 GiB; faster changes of more than that do not hide it."""
    layout = ("parallelism.tp=1", "parallelism.pp=4", "parallelism.dp=4", "parallelism.cp=1", "recomputation=none")
    model = ("model=llama3.2-3b", "model.num_layers=16", "model.hidden_size=2048", "model.head_dim=64")
    batch = ("microbatch_size=2", "num_microbatches=8", "parallelism.sharding=optimizer", "gpu.memory_gib=16")
    (one,) = resolve([*model, "gpu=h100-sxm5-80gb", *layout, *batch], CONFIG)
    found = why_not(one.composed)
    assert ("microbatch_size=1", "num_microbatches=16") in [remedy.overrides for remedy in found.remedies]
    assert found.remedies[0].time_percent == min(remedy.time_percent for remedy in found.remedies)


def test_resolve_does_not_refer_to_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", "microbatch_size=16", "--config-dir", str(CONFIG)]) == 2
    assert "out of memory" in (said := capsys.readouterr().err)
    assert "kareus resolve` with" not in said


def test_options_of_a_training_are_proposed_with_their_cost() -> None:
    """Chunks of the loss leave a layout and what is learned alone; the engine has no options."""
    found = why_not(refused("logits").composed)
    (chunked,) = [one for one in found.remedies if one.overrides == ("training.loss_chunks=8",)]
    assert found.memory.head_gib - chunked.memory.head_gib > 10
    assert 0 < chunked.time_percent < 2
    engine = resolve([*CASES["logits"], "software=kareus"], CONFIG)[0].composed
    assert not [text for overrides, _ in changes(engine) for text in overrides if text.startswith("training.")]


def test_the_ranks_of_the_fullest_stage_are_named_and_its_parts_are_the_largest() -> None:
    found = why_not(refused("split").composed)
    first = found.memory.stage * found.workload.parallelism.gpus_per_stage
    assert list(found.ranks) == list(range(first, first + found.workload.parallelism.gpus_per_stage))
    parts = found.memory.parts_gib
    assert math.fsum(parts.values()) == pytest.approx(found.memory.total_gib)
    largest = max(parts, key=lambda name: parts[name])
    assert f"GiB: {largest} {parts[largest]:.1f}, " in next(misfit_lines("some", found))


def test_what_cannot_run_for_another_reason_has_no_remedy() -> None:
    (one,) = resolve(["parallelism.tp=7"], CONFIG)
    with pytest.raises(RefusedWorkloadError, match="tp=7"):
        why_not(one.composed)


def test_resolve_says_why_the_nearest_of_a_sweep_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert main(["resolve", "microbatch_size=16,32", "--config-dir", str(CONFIG)]) == 2
    lines = caplog.messages
    (why,) = (line for line in lines if "(ranks 0 to 7) needs 41.9 of 39.4 GiB: " in line)
    assert "_mbs16_" in why
    after = lines[lines.index(why) + 1 :]
    assert after[0].startswith("cheapest changes that make it fit")
    assert any("parallelism.sequence_parallel=true" in line and ", energy " in line for line in after)


def test_resolve_says_nothing_of_memory_where_all_fits(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert main(["resolve", "--config-dir", str(CONFIG)]) == 0
    assert not any("cheapest changes" in line for line in caplog.messages)
