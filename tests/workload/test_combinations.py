"""Choices that exclude one another are refused with what helps."""

import pytest
from helpers.builders import CONFIG

from kareus.prediction.workload_prediction import predict
from kareus.workload.resolve import resolve, resolve_accepted

EXPERTS = ("model=mixtral-8x7b", "parallelism.tp=1")
HIDING = (*EXPERTS, "software.hidden_exchange=1")
V_OF_MEGATRON = ("pipeline=dualpipe-v", "software=megatron-core", "gpu=h100-sxm5-80gb")
ALONE = ("parallelism.pp=1", "parallelism.ep=2")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("parallelism.sharding=full", "testbed=cuda"), "train by that plan with --communicator nccl"),
        (("parallelism.sharding=gradients", "parallelism=cp2tp4"), "use cp=1, or parallelism.sharding=optimizer"),
        (("model.rotary_share=0.5", "testbed=cuda"), "operators of rotary_share=0.5 are not measured on GPUs"),
        (("model.attention_softcap=50", "testbed=cuda"), "operators of attention_softcap=50 are not measured on GPUs"),
        ((*EXPERTS, "software.dispatch_sms=108"), "must be less than the 108 SMs of A100"),
        ((*EXPERTS, "software.dispatch_sms=20"), "only exchanges of software.dispatcher=flex"),
        (
            (*EXPERTS, "parallelism.ep=2", "software=torchtitan", "parallelism.sharding=none"),
            "ep must be a multiple of 1 and divide 1; use parallelism.sharding=full",
        ),
        ((*EXPERTS, "software.delayed_weight_gradients=true"), "add software.hidden_exchange=1"),
        (
            (*HIDING, *ALONE, "recomputation=full"),
            "only where blocks are not recomputed whole (recomputation=full); use none",
        ),
        ((*HIDING, *ALONE, "recomputation=stage"), "only where blocks are not recomputed whole (recomputation=stage)"),
        ((*HIDING, "parallelism.pp=1", "recomputation=none"), "only where there are some (parallelism.ep=1)"),
        (
            (*HIDING, "parallelism.pp=2", "parallelism.ep=2", "recomputation=none"),
            "of a pipeline (parallelism.pp=2) only with virtual stages",
        ),
        (
            (*HIDING, "parallelism.pp=2", "parallelism.ep=2", "recomputation=none", "pipeline=zb-v", "software=kareus"),
            "of a pipeline only in the order of pipeline=interleaved or dualpipe-v (pipeline=zb-v)",
        ),
        (
            (*HIDING, "parallelism.pp=2", "parallelism.ep=2", "recomputation=none", *V_OF_MEGATRON),
            "of a pipeline only in the order of pipeline=interleaved (pipeline=dualpipe-v)",
        ),
        (("software.hidden_exchange=1", "recomputation=none"), "only where there are some (parallelism.ep=1)"),
        ((*HIDING, *ALONE, "model.mtp_layers=2", "recomputation=none"), "(model.mtp_layers=2); use 1 or 0 of them"),
        (
            ("recomputation=full", "parallelism.cp=2", "parallelism.tp=1", "software=kareus"),
            "use recomputation=selective or stage, or predict another software",
        ),
        (("gpu.blocking_power_w=800",), "gpu.blocking_power_w=800: must be less than gpu.power_limit_w (400)"),
    ],
)
def test_what_excludes_another_choice_says_what_to_do(overrides: tuple[str, ...], said: str) -> None:
    (one,) = resolve([*overrides, "parallelism.dp=2", "microbatch_size=2"], CONFIG)
    assert one.refusal is not None
    assert said in one.refusal


@pytest.mark.parametrize(
    "more",
    [
        ("parallelism.pp=1", "model.num_layers=4"),
        ("parallelism.pp=2", "model.num_layers=8", "pipeline=interleaved"),
        ("parallelism.pp=1", "model.num_layers=4", "model.mtp_layers=1"),
    ],
)
def test_exchanges_are_hidden_where_megatron_hides_them(more: tuple[str, ...]) -> None:
    given = (*EXPERTS, "gpu=h100-sxm5-80gb", "parallelism.ep=8", "parallelism.dp=8", "parallelism.sharding=optimizer")
    overrides = [*given, *more, "recomputation=none", "microbatch_size=1", "software.hidden_exchange=0,1"]
    shown, hidden = (predict(workload) for workload in resolve_accepted(overrides, CONFIG).values())
    assert hidden.time_s < shown.time_s


@pytest.mark.parametrize("software", ["megatron-core", "torchtitan-eager"])
def test_trainers_recompute_blocks_under_context_parallelism_alone(software: str) -> None:
    """As blocks that are wrapped whole run again: a third more time of computation, and kept inputs alone."""
    layout = ("gpu=h100-sxm5-80gb", "model=llama3.2-3b", "parallelism.tp=1", "parallelism.cp=4", "parallelism.dp=2")
    given = (*layout, f"software={software}", "parallelism.sharding=optimizer", "microbatch_size=1")
    sweep = resolve_accepted([*given, "num_microbatches=2", "recomputation=full,none"], CONFIG)
    full, none = (predict(workload) for workload in sweep.values())
    assert 1.15 < full.time_s / none.time_s < 4 / 3
    assert full.memory.in_flight_gib < none.memory.in_flight_gib / 4
