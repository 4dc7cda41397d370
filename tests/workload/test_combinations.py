"""Choices that exclude one another are refused with what helps."""

import pytest
from helpers.builders import CONFIG

from kareus.workload.resolve import resolve

EXPERTS = ("model=mixtral-8x7b", "parallelism.tp=1")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("parallelism.sharding=full", "testbed=cuda"), "train by that plan with --communicator nccl"),
        (("parallelism.sharding=gradients", "parallelism=cp2tp4"), "use cp=1, or parallelism.sharding=optimizer"),
        (("model.rotary_share=0.5", "testbed=cuda"), "operators of rotary_share=0.5 are not measured on GPUs"),
        (("model.attention_softcap=50", "testbed=cuda"), "operators of attention_softcap=50 are not measured on GPUs"),
        (("recomputation=full", "parallelism.cp=2", "parallelism.tp=1"), "use recomputation=selective or stage"),
        ((*EXPERTS, "software.dispatch_sms=108"), "must be less than the 108 SMs of A100"),
        ((*EXPERTS, "software.delayed_weight_gradients=true"), "add software.hidden_exchange=1"),
        (("gpu.blocking_power_w=800",), "gpu.blocking_power_w=800: must be less than gpu.power_limit_w (400)"),
    ],
)
def test_what_excludes_another_choice_says_what_to_do(overrides: tuple[str, ...], said: str) -> None:
    (one,) = resolve([*overrides, "parallelism.dp=2", "microbatch_size=2"], CONFIG)
    assert one.refusal is not None
    assert said in one.refusal
