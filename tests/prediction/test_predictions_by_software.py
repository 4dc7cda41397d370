"""Predictions of the software that trains: its layouts, its kernels, its host and the limit of its GPUs."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from helpers.builders import CONFIG
from helpers.iterations import LLAMA
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kareus.cli import main
from kareus.errors import RefusedWorkloadError
from kareus.gpu_model.coefficients import LaunchesAhead
from kareus.prediction.errors import (
    EXPERTS,
    LEAST_ROWS,
    error_of,
    error_words,
    idle_settings,
    numbers_for,
    pair_errors,
    plan_error_words,
    spread_percent,
    time_percent,
)
from kareus.prediction.measured import MeasuredWorkloads
from kareus.prediction.workload_prediction import Prediction, predict, predict_time_s
from kareus.software.record import Reduction, TensorOverlap, driven
from kareus.software.trainers import ENGINE, trainer_of
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.overrides import options
from kareus.workload.resolve import resolve, resolve_accepted

ONE_GPU = (
    "model=qwen3-1.7b", "gpu=h100-sxm5-80gb", "parallelism.pp=1", "parallelism.tp=1", "num_microbatches=2",
    "sequence_length=2048", "microbatch_size=1",
)  # fmt: skip
GPT = replace(
    LLAMA, family="megatron", gpu="a100-sxm4-80gb", layers=4, hidden=6144, ffn=24576, heads=64, kv_heads=64,
    vocab=51200, mlp="gelu", norm="layernorm", position="learned", attention="unfused", dp=1, pp=1, tp=8, cp=1,
    chunks=1, microbatch_size=4, num_microbatches=1, seq_len=2048, precision="fp16", tp_overlap="none",
)  # fmt: skip
"""Four blocks of a model that Megatron trained on one node."""


def small(*overrides: str) -> list[str]:
    """Overrides of a small workload but for these."""
    return list({text.partition("=")[0]: text for text in (*ONE_GPU, *overrides)}.values())


def resolved(*overrides: str) -> Workload:
    (workload,) = resolve_accepted(small(*overrides), CONFIG).values()
    return workload


def component_s(found: Prediction, name: str) -> float:
    return {one.name: one.time_s for one in found.components}.get(name, 0.0)


def by(workload: Workload, **changes: object) -> Workload:
    """The same workload by another software."""
    software = replace(workload.software, **changes)
    return replace(workload, software=software, gpu=driven(workload.gpu, software, workload.parallelism.gpus))


@pytest.mark.parametrize("option", ["megatron-core", "megatron-2022", "torchtitan", "vtrain", "kareus"])
def test_the_time_without_its_parts_is_that_of_the_whole_prediction(option: str) -> None:
    workload = resolved(f"software={option}")
    found = predict(workload)
    assert predict_time_s(workload) == pytest.approx(found.time_s, rel=1e-12)
    assert sum(one.time_s for one in found.components) == pytest.approx(found.time_s, rel=1e-9)


def test_low_power_limits_are_kept() -> None:
    limits_w = (300, 450, 700)  # some clock holds each
    found = [predict(resolved("software=megatron-core", f"gpu.power_limit_w={limit_w}")) for limit_w in limits_w]
    assert all(slow.time_s > fast.time_s for slow, fast in pairwise(found))
    powers_w = [one.energy_j / one.time_s for one in found]
    assert powers_w == sorted(powers_w)
    assert all(power_w <= limit_w for power_w, limit_w in zip(powers_w, limits_w, strict=True)), powers_w


@settings(max_examples=8)
@given(
    st.sampled_from(options("gpu", CONFIG)),
    st.sampled_from(options("software", CONFIG)),
    st.sampled_from([(1, 1, "full"), (1, 2, "full"), (1, 1, "none"), (4, 2, "none")]),
    st.sampled_from([0.6, 0.8, 1.0]),
    st.sampled_from([15, 25, 35]),
)
@example("h100-sxm5-80gb", "megatron-paper", (1, 1, "full"), 1.0, 25)
@example("a100-sxm4-80gb", "kareus", (1, 1, "full"), 1.0, 25)
def test_no_mean_power_exceeds_the_limit(
    gpu: str, software: str, layout: tuple[int, int, str], limit_share: float, air_c: int
) -> None:
    """Of any stage, whatever trains it: stages that only compute draw as much as the limit leaves them."""
    tp, pp, recomputation = layout
    named = (
        f"gpu={gpu}",
        f"software={software}",
        f"parallelism.tp={tp}",
        f"parallelism.pp={pp}",
        f"gpu.ambient_c={air_c}",
    )
    least_w, most_w = 250, resolved(f"gpu={gpu}").gpu.power_limit_w
    limit_w = max(least_w, limit_share * most_w)
    workload = resolved(
        *named, f"recomputation={recomputation}", "sequence_length=4096", f"gpu.power_limit_w={limit_w}"
    )
    found = predict(workload)
    stages_j = [stage.energy_j / workload.parallelism.gpus_per_stage for stage in found.stages]
    assert max(stages_j) <= limit_w * found.time_s


@pytest.mark.parametrize("change", ["gpu.hbm_gb_per_s=1000", "gpu.bf16_tflops=300"])
def test_gpus_of_one_name_are_told_apart(change: str) -> None:
    assert predict_time_s(resolved(change)) > 1.1 * predict_time_s(resolved())


def test_the_host_shows_where_kernels_are_short() -> None:
    """Twice the host's time of a kernel lengthens passes of short kernels, and hardly those of long ones."""
    longer = {}
    for tokens in (512, 16384):
        workload = resolved(f"sequence_length={tokens}", "software.host_launch_s=5e-5")
        times_s = [predict_time_s(by(workload, host_launch_s=s)) for s in (5e-5, 1e-4)]
        longer[tokens] = times_s[1] / times_s[0]
    assert longer[512] > 1.5
    assert longer[16384] < 1.05


@pytest.mark.parametrize("option", ["megatron-core", "vtrain", "kareus"])
@pytest.mark.parametrize("limit_w", [300, 700])
def test_what_the_host_adds_is_overhead(option: str, limit_w: int) -> None:
    """Nor is any part of an iteration shorter than nothing, where the power limit acts on whole instructions."""
    workload = resolved(f"software={option}", "software.host_launch_s=2e-5", f"gpu.power_limit_w={limit_w}")
    without = by(workload, host_launch_s=0.0, host_collective_s=0.0)
    slow, fast = predict(workload), predict(without)
    assert component_s(fast, "overhead") == pytest.approx(0, abs=1e-9)
    assert min(one.time_s for one in (*slow.components, *fast.components)) >= -1e-9
    if workload.gpu.launches_ahead is not LaunchesAhead.STEP:
        assert component_s(slow, "overhead") == pytest.approx(slow.time_s - fast.time_s, rel=1e-6)
        assert component_s(slow, "gemm") == pytest.approx(component_s(fast, "gemm"))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_sequence_parallelism_is_not_slower_in_megatron(recompute: str) -> None:
    workloads = MeasuredWorkloads((), CONFIG)
    shared, whole = (
        predict_time_s(workloads.of(replace(GPT, recompute=recompute, sequence_parallel=shares)))
        for shares in (True, False)
    )
    assert shared <= whole


@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        (
            ("parallelism.tp=4", "parallelism.sequence_parallel=true", "sequence_length=8192"),
            {"tensor_overlap": TensorOverlap.NONE},
        ),
        (("parallelism.cp=2",), {"context_overlap": False}),
    ],
    ids=["userbuffers", "ring attention"],
)
def test_software_hides_collectives_beside_what_they_serve(layout: tuple[str, ...], changes: dict[str, object]) -> None:
    workload = resolved("software=megatron-core", "software.host_launch_s=0", "software.host_collective_s=0", *layout)
    hidden, exposed = (predict(own) for own in (workload, by(workload, **changes)))
    assert component_s(hidden, "collectives") < 0.8 * component_s(exposed, "collectives")
    assert hidden.time_s < exposed.time_s


def test_collectives_of_software_that_hides_nothing_are_exposed_whole() -> None:
    workload = resolved("software=vtrain", "parallelism.tp=4", "software.host_launch_s=0")
    found, hiding = predict(workload).collectives, predict(by(workload, tensor_overlap=TensorOverlap.NONE)).collectives
    assert found.exposed_s == pytest.approx(found.alone_s)
    assert hiding.exposed_s < 0.97 * hiding.alone_s  # all-reduces beside weight gradients


@pytest.mark.parametrize("layout", [("parallelism.tp=8",), ("parallelism.cp=8",)], ids=["tensor", "context"])
def test_groups_that_span_nodes_pay_for_the_network(layout: tuple[str, ...]) -> None:
    """On nodes of four GPUs, eight of a group are on two of them."""
    inside, over = (predict(resolved(*layout, f"gpu.gpus_per_node={gpus}")) for gpus in (8, 4))
    assert over.collectives.alone_s > 1.3 * inside.collectives.alone_s
    assert over.time_s > inside.time_s
    joined = predict(resolved(*layout, "gpu.gpus_per_node=4", "gpu.nvlink_domain=8", "gpu.node_gb_per_s=1"))
    assert joined.time_s == inside.time_s  # the links of a domain are those of a node


def test_products_in_fp8_are_faster_and_their_weights_are_cast() -> None:
    bf16, fp8 = (predict(resolved(f"precision={precision}")) for precision in ("bf16", "fp8"))
    assert component_s(fp8, "gemm") < 0.8 * component_s(bf16, "gemm")
    assert component_s(fp8, "weight casting") > 0
    assert component_s(bf16, "weight casting") == 0


def test_software_that_cannot_run_a_layout_is_refused() -> None:
    both = resolve(small("parallelism.cp=2", "software=megatron-2022,megatron-core"), CONFIG)
    assert [one.workload is None for one in both] == [True, False]
    assert "needs whole sequences; use parallelism.cp=1" in str(both[0].refusal)


def test_scores_of_unfused_attention_need_memory() -> None:
    long = ("gpu=a100-sxm4-80gb", "sequence_length=16384", "recomputation=none")
    fused, unfused = resolve(small(*long, "software=megatron-core,megatron-2022"), CONFIG)
    assert fused.workload is not None
    assert unfused.workload is None
    assert "out of memory" in str(unfused.refusal)
    assert "\n" not in str(unfused.refusal)


def test_formats_need_their_tensor_cores() -> None:
    for precision, allowed in (("mxfp8", "bf16 or fp8 or fp8-current or fp8-blockwise"), ("nvfp4", "bf16 or fp8")):
        (refused,) = resolve(small(f"precision={precision}"), CONFIG)
        assert "H100-SXM5-80GB has no" in str(refused.refusal)
        assert f"use precision={allowed}" in str(refused.refusal)


def test_fewer_bits_are_faster_where_products_are_large() -> None:
    """Peaks by data sheets: 2, 2 and 4 times that of 16 bits; the rest of a block is what it was."""
    how = ("gpu=b200", "software=nemo", "model=llama3.3-70b", "microbatch_size=1", "num_microbatches=1")
    times_s = {
        precision: component_s(
            predict(resolved(*how, "parallelism.tp=4", "parallelism.pp=4", f"precision={precision}")), "gemm"
        )
        for precision in ("bf16", "fp8", "fp8-current", "mxfp8", "nvfp4")
    }
    assert times_s["nvfp4"] < times_s["mxfp8"] < times_s["bf16"]
    assert times_s["fp8"] < times_s["fp8-current"] < times_s["bf16"]  # the largest value is read first


def test_fp8_needs_tensor_cores_of_fp8() -> None:
    with pytest.raises(RefusedWorkloadError, match="precision=fp8: A100-SXM4-80GB has no fp8 tensor cores"):
        MeasuredWorkloads((), CONFIG).of(replace(LLAMA, gpu="a100-sxm4-80gb", precision="fp8"))
    (refused,) = resolve(small("gpu=a100-sxm4-80gb", "precision=fp8"), CONFIG)
    assert "precision=fp8: A100-SXM4-80GB has no fp8 tensor cores" in str(refused.refusal)


@pytest.mark.parametrize(("option", "rows"), [("megatron-core", 51200), ("vtrain", 50256), ("megatron-2022", 51200)])
def test_vocabularies_are_those_that_the_software_pads(option: str, rows: int) -> None:
    workload = resolved("model.vocab_size=50257", "parallelism.tp=8", f"software={option}")
    assert workload.model.vocab_size == rows
    (refused,) = resolve(small("model.vocab_size=50257", "parallelism.tp=8", "software=kareus"), CONFIG)
    assert "must divide model.vocab_size (50257)" in str(refused.refusal)


def predicted(*overrides: str) -> int:
    return main(["predict", *small(*overrides), "--config-dir", str(CONFIG)])


def test_the_first_line_of_a_prediction_names_the_software(capsys: pytest.CaptureFixture[str]) -> None:
    assert predicted("software=megatron-2022", "precision=fp8") == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.endswith("at 1980 MHz, megatron-2022 in fp8 [GPU model of H100-SXM5-80GB]")


def test_numbers_of_gpus_are_swept(capsys: pytest.CaptureFixture[str]) -> None:
    assert predicted("software=megatron-2022", "gpu.power_limit_w=300,700", "--json") == 0
    slow, fast = map(json.loads, capsys.readouterr().out.splitlines())
    assert slow["time_s"] > fast["time_s"]
    assert "(never measured: Megatron-LM of 2022 in bf16 on this GPU, with gpu.power_limit_w=300.0 " in slow["error"]
    assert slow["workload"] != fast["workload"]


ON_H100 = ("gpu=h100-sxm5-80gb", "software=megatron-core")


@pytest.mark.parametrize(
    ("overrides", "never"),
    [
        ([*ON_H100, "software.tensor_overlap=none"], "without --tp-comm-overlap; with the usual settings 9 of 10"),
        (
            [*ON_H100, "training.gradients=bf16", "software.tensor_overlap=none", "software.loss_kernels=compiled"],
            "with --grad-reduce-in-bf16, without --cross-entropy-fusion-impl te, --tp-comm-overlap; with the usual",
        ),
        ([*ON_H100, "training.lora_rank=8"], "with training.lora_rank=8; with the usual settings 9 of 10"),
        ([*ON_H100, "precision=mxfp8"], ": Megatron-Core in mxfp8 on this GPU; in bf16 9 of 10"),
        (
            ["gpu=b200", "software=nanotron", "training.gradients=bf16"],
            ": nanotron in bf16 on this GPU, with optimizer.accumulate_grad_in_fp32=false; elsewhere 9 of 10",
        ),
        (
            ["gpu=a100-sxm4-40gb", "software=megatron-paper", "training.lora_rank=8"],
            "with training.lora_rank=8; with the usual settings 9 of 10 planned iterations",
        ),
    ],
)
def test_an_error_that_was_not_measured_begins_with_the_number_to_take(overrides: list[str], never: str) -> None:
    """It names what was not measured as the trainer's own settings, where it has some."""
    (composed,) = compose(overrides, CONFIG)
    largest = max(pair.percent_90 for pair in pair_errors() if (pair.models, pair.precision) == ("dense", "bf16"))
    said = error_words(composed.workload)
    assert said.startswith(f"take {largest:g} % of time (never measured{'' if never.startswith(':') else ' '}{never}")
    assert time_percent(composed.workload) == largest


@pytest.mark.parametrize("sharding", ["none", "optimizer", "gradients", "full"])
@pytest.mark.parametrize(
    "degrees", ["dp=1 tp=2 cp=1", "dp=1 tp=2 cp=2", "dp=4 tp=1 cp=1", "dp=2 tp=1 cp=1 pp=2", "dp=4 tp=1 cp=1 shards=2"]
)
@pytest.mark.parametrize("setting", ["software.reduction=whole", "software.gather_beside_forward=false"])
def test_a_setting_was_measured_where_it_changes_no_time(sharding: str, degrees: str, setting: str) -> None:
    layout = [f"parallelism.{degree}" for degree in (*degrees.split(), f"sharding={sharding}")]
    if "shards" in degrees and sharding == "none":
        pytest.skip("nothing is shared out")
    overrides = [*ON_H100, "model=llama3.2-3b", "microbatch_size=1", "sequence_length=2048", *layout]
    (usual,), (other,) = resolve(overrides, CONFIG), resolve([*overrides, setting], CONFIG)
    assert usual.workload is not None and other.workload is not None
    changes = predict_time_s(usual.workload) != predict_time_s(other.workload)
    assert (error_words(usual.workload) != error_words(other.workload)) == changes


@pytest.mark.parametrize(
    ("sharding", "dp", "is_measured"),
    [("optimizer", 4, True), ("none", 4, True), ("full", 4, False), ("gradients", 4, False), ("full", 1, True)],
)
def test_a_layout_counts_as_measured_where_replicas_exchanged_as_its_own_do(
    sharding: str, dp: int, is_measured: bool
) -> None:
    """All 68 rows of Megatron-Core on an H100 share out the optimizer alone."""
    layout = [f"parallelism.dp={dp}", "parallelism.tp=2", f"parallelism.sharding={sharding}"]
    (resolved,) = resolve([*ON_H100, "model=llama3.2-3b", "microbatch_size=1", *layout], CONFIG)
    assert resolved.workload is not None
    words = error_words(resolved.workload)
    assert (error_of(resolved.workload) is not None) == is_measured
    assert words.startswith("9 of 10" if is_measured else "take ")
    if sharding == "full" and dp > 1:
        assert "never measured with --data-parallel-sharding-strategy optim_grads_params" in words


def test_a_layout_that_few_rows_have_was_not_measured() -> None:
    (pair,) = [p for p in pair_errors() if (p.gpu, p.models, p.precision) == ("H100-SXM5-80GB", EXPERTS, "bf16")]
    (composed,) = compose([*ON_H100, "model=qwen3-30b-a3b", "parallelism.sharding=full", "parallelism.dp=8"], CONFIG)
    assert 0 < pair.block_exchange_rows < LEAST_ROWS
    assert not pair.covers(composed.workload)
    words = error_words(composed.workload)
    assert "never measured with --data-parallel-sharding-strategy optim_grads_params" in words
    assert "usual: full" not in words, "which it is itself"


@pytest.mark.parametrize(("tp", "ep", "is_idle"), [(2, 1, False), (4, 2, False), (2, 2, True), (1, 1, True)])
def test_when_one_replica_sums_gradients_matters_where_its_gpus_hold_the_same_experts(tp, ep, is_idle) -> None:
    """Gradients of all other weights are summed over no one."""
    sequence_parallel = f"parallelism.sequence_parallel={str(tp > 1).lower()}"
    degrees = [
        f"parallelism.tp={tp}",
        f"parallelism.ep={ep}",
        "parallelism.etp=1",
        "parallelism.pp=1",
        sequence_parallel,
    ]
    few = ["model=qwen3-30b-a3b", "model.num_layers=2", "parallelism.dp=1", *degrees]
    (workload,) = resolve_accepted([*ON_H100, *few], CONFIG).values()
    holding = workload.parallelism.expert_replica_ranks(0)
    assert ("reduction" in idle_settings(workload)) is is_idle is (len(holding) == 1)
    softwares = [replace(workload.software, reduction=when) for when in Reduction]
    times_s = {predict_time_s(replace(workload, software=software)) for software in softwares}
    assert (len(times_s) == 1) is is_idle


def test_a_stage_of_dense_blocks_has_no_gradients_of_experts_to_sum() -> None:
    """Of one replica whose GPUs hold the same experts, on other stages."""
    degrees = {"dp": 1, "pp": 4, "tp": 8, "ep": 4, "sequence_parallel": "true", "layers_per_stage": "[3,2,2,2]"}
    words = [f"parallelism.{name}={degree}" for name, degree in degrees.items()]
    few = ["model=deepseek-v3", "model.num_layers=9", *words, "microbatch_size=1", "num_microbatches=8"]
    (workload,) = resolve_accepted(["gpu=h200", "software=megatron-core", *few], CONFIG).values()
    first, *others = predict(workload).stages
    assert first.update_s < min(stage.update_s for stage in others), "its step alone"


@pytest.mark.parametrize("model", [["model=qwen3-1.7b"], ["model=qwen3-30b-a3b", "parallelism.ep=2"]])
@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (1, 2)])
def test_overlap_of_groups_of_one_gpu_changes_no_time_and_makes_no_error_another(model, tp, cp) -> None:
    """A script of tensor parallelism that lacks `--tp-comm-overlap` says nothing of a layout without that."""
    degrees = [f"parallelism.tp={tp}", f"parallelism.cp={cp}", "parallelism.dp=2", "parallelism.pp=1"]
    few = [*model, "model.num_layers=2", "parallelism.sharding=optimizer", *degrees]
    (workload,) = resolve_accepted([*ON_H100, *few, f"parallelism.sequence_parallel={tp > 1}".lower()], CONFIG).values()
    idle = idle_settings(workload)
    assert ("tensor_overlap" in idle, "context_overlap" in idle) == (tp == 1, cp == 1)
    for name, values in idle.items():
        others = [replace(workload, software=replace(workload.software, **{name: value})) for value in values]
        assert len(others) > 1
        assert {predict_time_s(other) for other in others} == {predict_time_s(workload)}
        assert {error_words(other) for other in others} == {error_words(workload)}


def test_predict_refuses_what_no_software_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert predicted("software=megatron-core", "microbatch_size=100000") == 2
    printed = capsys.readouterr()
    assert "out of memory" in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out


def test_errors_of_time_hold_whatever_the_memory_of_a_software() -> None:
    (workload,) = resolve_accepted(["gpu=h100-sxm5-80gb"], CONFIG).values()
    other = replace(workload.software, kept_excess=1.5, workspace_gib=2.0, former_logit_bytes=4)
    assert numbers_for(replace(workload, software=other)) == numbers_for(workload)
    slower = replace(workload.software, traffic=1.5)
    assert numbers_for(replace(workload, software=slower)) != numbers_for(workload)


def test_errors_measured_in_a_trainer_are_not_of_plans_in_the_engine() -> None:
    """On the GPU whose planned iterations were measured, and where nothing was, there is nothing to add."""
    (workload,) = resolve_accepted(["gpu=h100-sxm5-80gb", "microbatch_size=2"], CONFIG).values()
    engine, trainer = trainer_of(ENGINE), trainer_of(workload.software.name)
    of_trainer, of_engine = (plan_error_words(workload, runner) for runner in (trainer, engine))
    assert of_trainer == error_words(workload)
    assert of_engine.startswith(f"{of_trainer}; plans in Kareus' engine were never measured")
    assert f"take {spread_percent()[1]:g} %" in of_engine
    for overrides in ([], ["gpu=h200", "microbatch_size=2"]):
        (other,) = resolve_accepted(overrides, CONFIG).values()
        assert plan_error_words(other, engine) == error_words(other)


@pytest.mark.parametrize("precision", ["fp8", "fp8-current", "fp8-blockwise"])
def test_errors_measured_in_sixteen_bits_are_of_no_other_format(precision: str) -> None:
    (wide,), (narrow,) = (
        resolve(["model=llama3.1-8b", "gpu=h100-sxm5-80gb", "parallelism.tp=8", f"precision={one}"], CONFIG)
        for one in ("bf16", precision)
    )
    errors = [error_of(one.composed) for one in (wide, narrow)]
    measured = ["bf16", "fp8" if precision == "fp8" else None]
    assert [error and error.precision for error in errors] == measured
