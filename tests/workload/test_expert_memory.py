"""Memory, parameters and layouts of mixtures of experts: shares that add up, and refusals in one line."""

import dataclasses
from typing import Any

import pytest
from helpers.builders import CONFIG

from kareus.errors import EngineError, RefusedWorkloadError
from kareus.graph.recomputation import Recomputation
from kareus.model.parameters import embedding_parameters, expert_parameters, mtp_parameters, total_parameters
from kareus.runtime.engine_checks import check_runs, check_trains
from kareus.software.record import LossKernels
from kareus.update.work import stage_expert_parameters
from kareus.update.work import stage_parameters as held_parameters
from kareus.workload.activation_memory import block_split_bytes, expert_activation_bytes, kept_bytes
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.memory import stage_memory
from kareus.workload.naming import degrees
from kareus.workload.resolve import check_workload, checked_but_for_memory
from kareus.workload.state_memory import stage_dense_blocks, state_bytes

USUAL = ("gpu=h100-sxm5-80gb", "microbatch_size=1", "parallelism.cp=1")


def workload(model: str, *overrides: str, **degree: int) -> Workload:
    layout = {"tp": 1, "pp": 1, "dp": 1, **degree}
    given = [f"parallelism.{key}={value}" for key, value in layout.items()]
    sharding = [] if any("sharding" in text for text in overrides) else ["parallelism.sharding=optimizer"]
    (composed,) = compose([*USUAL, f"model={model}", *given, *sharding, *overrides], CONFIG)
    return checked_but_for_memory(composed.workload)


@pytest.mark.parametrize(
    ("model", "pp", "chunks"),
    [("mixtral-8x7b", 1, 1), ("deepseek-v3", 4, 1), ("llama4-maverick", 4, 2), ("gpt-oss-120b", 4, 1)],
)
def test_gpus_hold_the_whole_model_between_them(model: str, pp: int, chunks: int) -> None:
    pipeline = ["pipeline=interleaved", f"pipeline.chunks={chunks}"] if chunks > 1 else []
    one = workload(model, *pipeline, pp=pp, dp=8, ep=8)
    blocks = sum(held_parameters(one, stage) - stage_expert_parameters(one, stage) for stage in range(pp))
    experts = 8 * sum(stage_expert_parameters(one, stage) for stage in range(pp))
    rows = embedding_parameters(one.model, one.parallelism)
    assert blocks + experts == total_parameters(one.model)
    assert rows == one.model.vocab_size * one.model.hidden_size
    dense = len(one.model.dense_layers)
    assert sum(stage_dense_blocks(one, stage) for stage in range(pp)) == dense


def test_what_predicts_further_tokens_is_where_the_head_is() -> None:
    """One block with its experts over `ep`, its projection, three norms, and the embedding once more."""
    one, plain = (workload("deepseek-v3", f"model.mtp_layers={n}", pp=4, dp=8, ep=8) for n in (1, 0))
    model, layout = one.model, one.parallelism
    experts = expert_parameters(model, layout)
    assert stage_expert_parameters(one, 3) == (layout.split[3] + 1) * experts
    held = sum(held_parameters(one, stage) for stage in range(4)) - sum(held_parameters(plain, s) for s in range(4))
    table = embedding_parameters(model, layout)
    assert held == mtp_parameters(model) - 7 * experts + table
    same = dataclasses.replace(plain, parallelism=dataclasses.replace(plain.parallelism, layers_per_stage=layout.split))
    last, before = (stage_memory(w, 3) for w in (one, same))
    shared = 12 * experts / layout.expert_replicas + 12 * (held - experts) / 8
    states = 6 * held + shared
    assert (last.states_gib - before.states_gib) * 2**30 == pytest.approx(states, rel=1e-6)
    again = 4096 * (2 * model.vocab_size + 3 * 2 * model.hidden_size)  # gradients in the place of logits; its streams
    assert (last.head_gib - before.head_gib) * 2**30 == pytest.approx(again)
    in_32_bit = dataclasses.replace(one.software, loss_kernels=LossKernels.SEPARATE)
    wider, plain_head = (stage_memory(dataclasses.replace(w, software=in_32_bit), 3).head_gib for w in (one, same))
    again += 4096 * 2 * model.vocab_size  # shares of 32 bit wait for the backward; no 16-bit logits beside them
    assert (wider - plain_head) * 2**30 == pytest.approx(again)
    kept = dataclasses.replace(one, recomputation=Recomputation.NONE)
    assert stage_memory(kept, 3).head_gib > last.head_gib
    assert stage_memory(one, 0) == stage_memory(same, 0)
    mixtral = workload("mixtral-8x7b", "model.mtp_layers=1", dp=8, ep=8).model
    with pytest.raises(EngineError, match=r"not train mtp_layers=1; it is planned"):
        check_trains(mixtral, 1024, "cpu")


def test_states_of_experts_are_shared_by_those_that_hold_the_same() -> None:
    """Megatron Core folds dp x cp x tp anew: of 16 GPUs in groups of 8 x 1, two hold the same experts."""
    one = workload("mixtral-8x7b", dp=16, ep=8)
    weights, _, states = state_bytes(one, 0, 32)
    experts = 32 * expert_parameters(one.model, one.parallelism)
    others = weights / 2 - experts
    assert one.parallelism.expert_replicas == 2
    assert states == pytest.approx(12 * others / 16 + 12 * experts / 2)
    assert one.parallelism.expert_replica_ranks(0) == [0, 8]
    assert one.parallelism.expert_ranks(0) == list(range(8))
    both = workload("mixtral-8x7b", "parallelism.sequence_parallel=true", dp=4, tp=4, ep=2, etp=4).parallelism
    assert (both.expert_ranks(0), both.expert_replica_ranks(0)) == ([0, 4], [0, 8])


@pytest.mark.parametrize("ep", [1, 8])
def test_whole_shares_of_experts_are_those_of_gpus_with_the_same(ep: int) -> None:
    """FSDP of experts: shards as of states, and two blocks as the GPU computes with them, all experts without `ep`."""
    full, gradients = (
        workload("mixtral-8x7b", f"parallelism.sharding={s}", dp=16, ep=ep) for s in ("full", "gradients")
    )
    states = workload("mixtral-8x7b", dp=16, ep=ep)
    one = expert_parameters(full.model, full.parallelism)
    attention, rows = 2 * 4096 * (4096 + 1024) + 2 * 4096 + 8 * 4096, 32_000 * 4096
    head = 4 * (attention + one) * 2 + 2 * (rows + 4096)  # two blocks in fp32, the head in 16 bits
    assert state_bytes(full, 0, 32)[0] == 2 * (2 * (attention + one) + 2 * rows + 4096)
    assert state_bytes(gradients, 0, 32)[0] == state_bytes(states, 0, 32)[0]
    others = 32 * attention + 2 * rows + 4096
    summed = full.software.gradient_bytes * (others / 16 + 32 * one / full.parallelism.expert_replicas)
    assert state_bytes(full, 0, 32)[1] == pytest.approx(summed + head)
    assert state_bytes(full, 0, 32)[2] == state_bytes(states, 0, 32)[2]
    with pytest.raises(EngineError, match="does not share out experts in every microbatch"):
        check_runs(full)


def test_copies_of_tokens_are_kept() -> None:
    one = workload("qwen3-30b-a3b", dp=8, ep=8)
    one = dataclasses.replace(one, software=dataclasses.replace(one.software, expert_imbalance=1.0))
    tokens, copies = 4096, 8 * 4096
    assert expert_activation_bytes(one, tokens) == 2 * copies * (2048 + 3 * 768) + 8 * tokens * 128
    skewed = dataclasses.replace(one, software=dataclasses.replace(one.software, expert_imbalance=1.5))
    more = expert_activation_bytes(skewed, tokens) - expert_activation_bytes(one, tokens)
    assert more == copies * (2048 + 3 * 768)
    deepseek = workload("deepseek-v3", "recomputation=none", pp=16, dp=16, ep=16)
    assert kept_bytes(deepseek, 4, tokens)[0] > kept_bytes(deepseek, 4, tokens, dense=3)[0]


def test_a_split_backward_keeps_copies_of_tokens() -> None:
    """By hand, one block of DeepSeek-V3 on one of 16 GPUs: its nine products, inputs and output gradients."""
    one, tokens = workload("deepseek-v3", "pipeline=zb-v", "recomputation=none", pp=4, dp=16, ep=16), 4096
    one = dataclasses.replace(one, software=dataclasses.replace(one.software, expert_imbalance=1.0))
    attention = 7168 + 2 * (1536 + 512) + 64 + 128 * (192 + 128 + 128) + 128 * 128 + 7168
    mlp, router, routed = (7168 + 3 * width + 7168 for width in (18432, 2048, 2048))
    assert block_split_bytes(one, tokens, dense=True) == 2 * tokens * (attention + mlp)
    assert block_split_bytes(one, tokens) == 2 * tokens * (attention + router + 256 + 8 * routed)


def test_names_and_refusals() -> None:
    assert degrees(workload("mixtral-8x7b", "parallelism.sequence_parallel=true", dp=8, tp=2, ep=4, etp=2)) == (
        "dp8-pp1-tp2-ep4-etp2"
    )


@pytest.mark.parametrize(
    ("model", "overrides", "degree", "message"),
    [
        (
            "mixtral-8x7b",
            (),
            {"dp": 16, "ep": 16},
            "parallelism.ep=16: must divide model.experts.count (8); allowed: 1,",
        ),
        ("mixtral-8x7b", (), {"dp": 2, "ep": 4}, "ep x etp must divide the 2 GPUs of a stage"),
        ("mixtral-8x7b", (), {"dp": 8, "tp": 2, "ep": 8}, "parallelism.sequence_parallel=false: with experts"),
        ("llama3.2-3b", (), {"dp": 8, "ep": 8}, "parallelism.ep=8: llama3.2-3b has no experts; use 1."),
        ("mixtral-8x7b", (), {"dp": 8}, "out of memory"),
    ],
)
def test_what_experts_exclude_is_one_line(model: str, overrides: Any, degree: Any, message: str) -> None:
    with pytest.raises(RefusedWorkloadError) as raised:
        check_workload(workload(model, *overrides, **degree))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
