import dataclasses
from functools import cache

import pytest
from helpers.builders import CONFIG

from kareus.errors import RefusedWorkloadError
from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.model.attention import chunks
from kareus.workload.activation_memory import (
    block_activation_bytes,
    block_backward_bytes,
    block_split_bytes,
    head_split_bytes,
    kept_bytes,
    mask_bytes,
    score_bytes,
)
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.memory import GIB, check_memory, estimate_memory, stage_memory
from kareus.workload.resolve import Resolved, resolve
from kareus.workload.split import layers_per_stage
from kareus.workload.state_memory import stage_parameters

LLAMA, QWEN = "llama3.2-3b", "qwen3-1.7b"
RAN = [
    (LLAMA, "tp8", 8, 4096),
    (LLAMA, "cp2tp4", 8, 4096),
    (LLAMA, "cp2tp4", 8, 8192),
    (LLAMA, "cp2tp4", 16, 4096),
    (QWEN, "tp8", 8, 4096),
    (QWEN, "tp8", 8, 8192),
    (QWEN, "tp8", 16, 4096),
    (QWEN, "cp2tp4", 8, 4096),
    (QWEN, "cp2tp4", 8, 8192),
    (QWEN, "cp2tp4", 16, 4096),
    (QWEN, "tp8", 12, 4096),
    (QWEN, "tp8", 20, 4096),
]
"""Tables 3 and 8 of the paper, A100 40 GB: what has numbers, and what says OOM."""
OUT_OF_MEMORY = [(LLAMA, "tp8", 8, 8192), (LLAMA, "tp8", 16, 4096)]
Row = tuple[str, str, int, int]


@cache
def resolved(row: Row) -> Resolved:
    model, parallelism, microbatch_size, sequence_length = row
    shape = [f"microbatch_size={microbatch_size}", f"sequence_length={sequence_length}"]
    (only,) = resolve([f"model={model}", f"parallelism={parallelism}", *shape], CONFIG)
    return only


@cache
def workload(*changes: str) -> Workload:
    bare = compose(changes, CONFIG)[0].workload
    return dataclasses.replace(
        bare, parallelism=dataclasses.replace(bare.parallelism, layers_per_stage=layers_per_stage(bare))
    )


@pytest.mark.parametrize("row", RAN, ids=str)
def test_what_ran_in_the_paper_is_accepted(row: Row) -> None:
    assert resolved(row).refusal is None


@pytest.mark.parametrize("row", OUT_OF_MEMORY, ids=str)
def test_what_ran_out_of_memory_in_the_paper_is_refused(row: Row) -> None:
    refused = resolved(row)
    assert refused.workload is None
    assert f"microbatch_size={row[2]}, sequence_length={row[3]}: out of memory, needs 41.9 GiB" in str(refused.refusal)


def test_the_reserve_is_mid_range_of_what_separates_the_rows() -> None:
    def without_reserve(row: Row) -> float:
        estimate = resolved(row).memory
        assert estimate is not None
        return estimate.total_gib - estimate.reserve_gib

    limit_gib = workload().gpu.memory_gib
    least = limit_gib - min(without_reserve(row) for row in OUT_OF_MEMORY)
    most = limit_gib - max(without_reserve(row) for row in RAN)
    assert (least, most) == pytest.approx((0.74, 5.67), abs=0.05)
    assert workload().memory_reserve_gib == pytest.approx((least + most) / 2, abs=0.1)


def test_microbatches_beyond_the_sensitivity_study_do_not_fit() -> None:
    """Footnote of section 6.5: larger ones were not evaluated, for want of memory."""
    assert resolved((QWEN, "tp8", 24, 4096)).refusal is not None


@pytest.mark.parametrize(("microbatch_size", "fits"), [(4, True), (8, False)])
def test_the_70b_model_fits_with_the_papers_microbatch_only(microbatch_size: int, fits: bool) -> None:
    assert (resolved(("llama3.3-70b", "pp10tp8", microbatch_size, 4096)).refusal is None) == fits


def test_parameters_of_all_stages_are_those_of_the_model() -> None:
    """3,212,749,824 and 1,720,574,976 parameters on Hugging Face, where a tied embedding counts once."""
    for name, published in ((LLAMA, 3_212_749_824), (QWEN, 1_720_574_976)):
        one = workload(f"model={name}", "parallelism.pp=1", "parallelism.tp=1")
        assert stage_parameters(one.model, one.parallelism, 0, 28) == published
    big = workload("model=llama3.3-70b", "parallelism.pp=1", "parallelism.tp=1")
    assert stage_parameters(big.model, big.parallelism, 0, 80) == 70_553_706_496


def test_a_tied_embedding_is_on_the_first_and_last_stage() -> None:
    whole, split = workload("parallelism.pp=1", "parallelism.tp=1"), workload("parallelism.tp=1")
    embedding = 128256 * 3072
    halves = [stage_parameters(split.model, split.parallelism, stage, layers) for stage, layers in enumerate((15, 13))]
    assert sum(halves) == stage_parameters(whole.model, whole.parallelism, 0, 28) + embedding


def test_model_states_are_eighteen_bytes_a_parameter() -> None:
    plain = workload("parallelism.dp=4")
    parameters = stage_parameters(plain.model, plain.parallelism, 0, 15)
    estimate = estimate_memory(plain)
    states = estimate.weights_gib + estimate.gradients_gib + estimate.optimizer_gib
    assert states == pytest.approx(18 * parameters / GIB)
    sharded = estimate_memory(workload("parallelism.dp=4", "parallelism.sharding=optimizer"))
    assert sharded.optimizer_gib == pytest.approx(estimate.optimizer_gib / 4)
    assert sharded.weights_gib == estimate.weights_gib


def test_sharded_gradients_and_weights_are_divided_by_the_replicas() -> None:
    """By hand; the gradients of embedding and head, which are tied, weigh more than those of blocks."""
    one = ("parallelism.pp=1", "parallelism.layers_per_stage=[28]", "parallelism.dp=4")
    plain = workload(*one)
    parameters = stage_parameters(plain.model, plain.parallelism, 0, 28)
    block = (3072 * (2 * 3072 + 2 * 1024 + 3 * 8192)) // 8 + 2 * 3072
    outer = parameters - 28 * block
    embedding = outer - 3072
    found = {s: estimate_memory(workload(*one, f"parallelism.sharding={s}")) for s in ("gradients", "full")}
    for estimate in found.values():
        assert estimate.optimizer_gib == pytest.approx(12 * parameters / 4 / GIB)
    kept = 2 * outer + 4 * block
    shards = 4 * parameters / 4  # fp32, over 4 replicas
    assert found["gradients"].weights_gib == pytest.approx(2 * parameters / GIB)
    assert found["gradients"].gradients_gib == pytest.approx((shards + 6 * embedding + kept) / GIB)
    assert found["full"].weights_gib == pytest.approx(2 * (2 * block + outer) / GIB)
    assert found["full"].gradients_gib == pytest.approx((shards + 6 * embedding + kept - 4 * block) / GIB)


@pytest.mark.parametrize("shared", ["false", "true"])
def test_a_gpu_sends_and_receives_its_part_of_hidden_states(shared: str) -> None:
    """One message received ahead and one being sent, with shared tokens or without: an eighth of 8 sequences."""
    hidden_gib = 2 * 8 * 4096 * 3072 / GIB
    found = estimate_memory(workload(f"parallelism.sequence_parallel={shared}"))
    assert found.transfers_gib == pytest.approx(2 * hidden_gib / 8)


def test_a_stage_holds_no_more_microbatches_than_there_are() -> None:
    boundary_gib = 2 * 8 * 4096 * 3072 / GIB  # bf16, 8 sequences of 4096 tokens, hidden size 3072
    deep = workload("parallelism.pp=4", "parallelism.layers_per_stage=[10,6,6,6]")
    for num_microbatches, held in ((1, 1), (2, 2), (3, 3), (8, 4)):
        fullest = estimate_memory(dataclasses.replace(deep, num_microbatches=num_microbatches))
        assert fullest.stage == 0
        assert fullest.in_flight_gib == pytest.approx(held * boundary_gib)


def test_gpipe_holds_every_microbatch_interleaving_more_passes() -> None:
    boundary_gib = 2 * 8 * 4096 * 3072 / GIB
    assert estimate_memory(workload("pipeline=gpipe")).in_flight_gib == pytest.approx(8 * boundary_gib)
    one, two = workload(), workload("pipeline=interleaved", "parallelism.layers_per_stage=[16,12]")
    assert estimate_memory(one).in_flight_gib == pytest.approx(2 * boundary_gib)
    assert estimate_memory(two).in_flight_gib == pytest.approx(5 * boundary_gib)  # 2 x 1 + 1 x 2 ahead, and one more
    whole = estimate_memory(workload("parallelism.layers_per_stage=[16,12]"))
    gradients_gib = block_backward_bytes(one.model, one.parallelism, 8 * 4096) / GIB
    assert estimate_memory(two).blocks_gib - gradients_gib == pytest.approx((whole.blocks_gib - gradients_gib) / 2)


def test_interleaving_without_checkpointing_keeps_more() -> None:
    kept = [
        estimate_memory(workload("recomputation=none", "parallelism.layers_per_stage=[16,12]", *changes))
        for changes in ([], ["pipeline=interleaved"])
    ]
    assert kept[1].in_flight_gib == pytest.approx(kept[0].in_flight_gib * 5 / 2 / 2)


def test_a_split_backward_keeps_tensors_of_waiting_products() -> None:
    """By hand, one token on one GPU of Llama 3.2 3B in bf16, of the four products of a block and of the LM head."""
    plain = workload("parallelism.tp=1")
    inputs, gradients = 3072 + 3072 + 3072 + 8192, 5120 + 3072 + 2 * 8192 + 3072
    assert block_split_bytes(plain, 1) == 2 * (inputs + gradients)
    assert head_split_bytes(plain.model, plain.parallelism, 1) == 2 * (3072 + 128256)
    assert block_split_bytes(plain, 1) <= 2 * 3072 + block_activation_bytes(
        plain.model, plain.parallelism, 1
    )  # so that an input-gradient pass frees as it goes


def test_zero_bubble_holds_a_microbatch_on_the_last_stage() -> None:
    usual, split = estimate_memory(workload()), estimate_memory(workload("pipeline=zb-h1"))
    assert (usual.stage, split.stage) == (0, 1)
    own, tokens = workload("pipeline=zb-h1"), 8 * 4096
    head = head_split_bytes(own.model, own.parallelism, tokens)
    waiting = 13 * block_split_bytes(own, tokens) + head
    assert split.in_flight_gib == pytest.approx((2 * tokens * 3072 + waiting) / GIB)
    assert split.total_gib < own.gpu.memory_gib
    alone = ["parallelism.pp=1", "parallelism.layers_per_stage=[28]"]
    whole, parts = (estimate_memory(workload(*alone, *pipeline)) for pipeline in ([], ["pipeline=zb-h1"]))
    assert parts.in_flight_gib == whole.in_flight_gib  # with no stage before it nothing is delayed
    assert parts.blocks_gib == pytest.approx(whole.blocks_gib + head / GIB)


def test_what_a_block_holds_is_the_sum_of_its_tensors() -> None:
    """By hand, one token of Llama 3.2 3B in bf16: hidden 3072, queries 3072, keys and values 1024 each, SwiGLU 8192."""
    plain, sharded = workload("parallelism.tp=1"), workload("parallelism=cp2tp4")
    kept, gradients = 3 * 3072 + (2 * 3072 + 2 * 1024 + 3 * 8192), 2 * 3072 + 3 * 8192
    assert block_activation_bytes(plain.model, plain.parallelism, 1) == 2 * kept
    assert block_backward_bytes(plain.model, plain.parallelism, 1) == 2 * gradients
    gathered = 2 * 1024 * 2 // 4  # keys and values, of both ranks' tokens, of a quarter of the heads
    assert block_backward_bytes(sharded.model, sharded.parallelism, 1) == 2 * (2 * 3072 + 3 * 8192 // 4 + gathered)


def test_checkpointing_trades_activations_for_recomputation() -> None:
    with_it, without = workload(), workload("recomputation=none")
    assert estimate_memory(without).in_flight_gib > 25 * estimate_memory(with_it).in_flight_gib
    assert estimate_memory(without).blocks_gib < estimate_memory(with_it).blocks_gib / 5
    assert estimate_memory(without).total_gib > estimate_memory(with_it).total_gib


def test_each_recomputation_keeps_what_it_does_not_recompute() -> None:
    """By hand, one token of a block of Llama 3.2 3B on one of eight GPUs in bf16."""
    boundary, attended = 2 * 3072, 2 * 3072 // 8
    block = 2 * (3 * 3072 + (2 * 3072 + 2 * 1024 + 3 * 8192) // 8)
    expected = {
        "none": (15 * (boundary + block), 0),
        "selective": (15 * (boundary + block - attended), attended),
        "full": (15 * boundary, block),
        "stage": (boundary, 15 * (boundary + block)),
    }
    for recomputation, kept in expected.items():
        assert kept_bytes(workload(f"recomputation={recomputation}"), 15, 1) == kept


def test_a_split_backward_gathers_what_its_weight_gradients_need() -> None:
    alone = ("parallelism.pp=1", "parallelism.layers_per_stage=[28]", "pipeline=zb-h1")
    own, tokens = workload(*alone), 8 * 4096
    later = block_split_bytes(own, tokens)
    block = block_activation_bytes(own.model, own.parallelism, tokens)
    rest = block_backward_bytes(own.model, own.parallelism, tokens) + head_split_bytes(
        own.model, own.parallelism, tokens
    )
    full = estimate_memory(workload(*alone, "recomputation=full"))
    boundary = 2 * tokens * 3072
    assert full.blocks_gib == pytest.approx((27 * (later - boundary) + block + rest) / GIB)
    assert full.in_flight_gib == pytest.approx(28 * boundary / GIB)


WIDE = ("parallelism.pp=1", "model.vocab_size=2097152", "parallelism.layers_per_stage=[28]")


def test_the_larger_of_blocks_and_head_counts() -> None:
    estimate = estimate_memory(workload(*WIDE))
    # By hand: tokens x (6 bytes of a logit x vocabulary / tp + hidden state and its gradient in bf16).
    assert estimate.head_gib == pytest.approx(8 * 4096 * (6 * 2097152 / 8 + 2 * 2 * 3072) / GIB)
    held = estimate.weights_gib + estimate.gradients_gib + estimate.optimizer_gib + estimate.in_flight_gib
    held += estimate.communicators_gib
    assert estimate.head_gib > estimate.blocks_gib
    assert estimate.total_gib == pytest.approx(held + estimate.head_gib + estimate.reserve_gib)


@pytest.mark.parametrize(
    ("kernels", "at_once"),
    [("engine", 2 + 4), ("fused", 2 + 2), ("transformer-engine", 2), ("compiled", 4 + 4 + 2), ("separate", 2 + 4)],
)
def test_a_head_takes_what_its_loss_has_of_logits_at_once(kernels: str, at_once: int) -> None:
    """Logits of 16 bit and their copy; with the gradient beside, in their place, or after a copy that is cast."""
    estimate = estimate_memory(workload(*WIDE, f"software.loss_kernels={kernels}"))
    assert estimate.head_gib == pytest.approx(8 * 4096 * (at_once * 2097152 / 8 + 2 * 2 * 3072) / GIB)


def test_the_refusal_names_both_sizes_and_what_helps() -> None:
    large = workload("microbatch_size=16")
    with pytest.raises(RefusedWorkloadError) as raised:
        check_memory(large, estimate_memory(large))
    assert str(raised.value) == (
        "microbatch_size=16, sequence_length=4096: out of memory, needs 41.9 GiB on stage 0 (model states 4.0, "
        "activations 31.9, communicators 2.7, reserve 3.2) but gpu.memory_gib is 39.4; use smaller ones, or more of "
        "parallelism.tp, cp or pp; `kareus resolve` with the same words says what would fit."
    )


GPT3 = ["model=gpt3-175b", "parallelism.tp=8", "parallelism.pp=16", "sequence_length=2048", "microbatch_size=1"]


def test_a_block_without_a_gate_keeps_34_values_a_token_less_masks() -> None:
    """Of the 34 bytes a token and value of hidden states (Korthikanti et al., 2022, equation 1) we have no dropout's
    two masks, a byte each; the norms' inputs are the residual stream's, one of which is the block's input."""
    own = workload(*GPT3)
    alone = dataclasses.replace(own.parallelism, tp=1, sequence_parallel=False)
    assert block_activation_bytes(own.model, alone, 1) + 2 * own.model.hidden_size == (34 - 2) * own.model.hidden_size


@pytest.mark.parametrize(("dropout", "kept"), [(False, 2), (True, 5)])
def test_unfused_attention_keeps_values_of_pairs_of_tokens(dropout: bool, kept: int) -> None:
    fused = workload(*GPT3, "recomputation=none")
    unfused = dataclasses.replace(fused.software, fused_attention=False, attention_dropout=dropout)
    own = dataclasses.replace(fused, software=unfused)
    pairs = own.model.num_attention_heads // 8 * 2048**2
    assert score_bytes(own) == (kept * pairs, 4 * pairs)
    assert score_bytes(fused) == (0, 0)
    assert kept_bytes(own, 6, 2048)[0] - kept_bytes(fused, 6, 2048)[0] == 6 * kept * pairs
    again = [dataclasses.replace(each, recomputation=Recomputation.SELECTIVE) for each in (own, fused)]
    all_again, fused_again = (kept_bytes(each, 6, 2048) for each in again)
    assert all_again[0] == fused_again[0]
    assert all_again[1] - fused_again[1] == kept * pairs
    assert estimate_memory(own).total_gib > estimate_memory(fused).total_gib


def test_a_sequence_longer_than_learned_positions_is_refused() -> None:
    (refused,) = resolve(["model=gpt2-xl", "parallelism.tp=1", "sequence_length=2048", "microbatch_size=1"], CONFIG)
    assert refused.refusal == (
        "sequence_length=2048: must be at most model.max_positions (1024), the positions that the model learns."
    )


def test_the_engine_keeps_one_mask_for_alibi() -> None:
    layout = ("parallelism.pp=1", "parallelism.tp=4", "parallelism.cp=1", "gpu=h100-sxm5-80gb", "software=kareus")
    engine = workload("model=mpt-7b", *layout)
    other = dataclasses.replace(engine, software=dataclasses.replace(engine.software, reads_alibi_mask=False))
    extra_gib = estimate_memory(engine).weights_gib - estimate_memory(other).weights_gib
    assert extra_gib == pytest.approx(2 * 32 / 4 * 4096**2 / GIB)
    assert mask_bytes(workload()) == 0


@pytest.mark.parametrize("cp", [2, 4])
def test_masks_of_all_chunks_are_counted(cp: int) -> None:
    class Group:
        size, rank = cp, 0

    one = workload("model=mpt-7b", f"parallelism.cp={cp}", "parallelism.tp=4", "parallelism.pp=1")
    for Group.rank in range(cp):
        held = chunks(4096 // cp, Group())
        values = sum((c.local.stop - c.local.start) * c.end for c in held)
        assert mask_bytes(one) == 2 * 8 * values


@pytest.mark.parametrize(("precision", "value_bytes"), [("fp8", 1), ("mxfp8", 33 / 32), ("nvfp4", 9 / 16)])
def test_formats_of_fewer_bits_keep_cast_weights_and_smaller_inputs(precision: str, value_bytes: float) -> None:
    """Of 28 blocks: weights twice in the format; per token two norms and the activation in it, attention in both."""
    one = workload(
        "gpu=b200",
        "model=llama3.2-3b",
        "parallelism.tp=1",
        "parallelism.pp=1",
        "recomputation=none",
        "microbatch_size=1",
    )
    own, cast = (estimate_memory(dataclasses.replace(one, precision=Precision(name))) for name in ("bf16", precision))
    block = 3072 * (3072 * 2 + 2 * 1024 + 3 * 8192) + 2 * 3072
    assert cast.weights_gib - own.weights_gib == pytest.approx(28 * block * 2 * value_bytes / GIB)
    kept = 4096 * (value_bytes * 3072 - (2 - value_bytes) * (2 * 3072 + 8192))
    kept *= one.software.kept_excess
    assert cast.in_flight_gib - own.in_flight_gib == pytest.approx(28 * kept / GIB, rel=1e-6)


@pytest.mark.parametrize("model", ["llama3.1-8b", "qwen3-1.7b", "deepseek-v3 model.num_layers=64"])
@pytest.mark.parametrize("pipeline", ["1f1b", "gpipe", "zb-h1", "interleaved", "zb-v"])
@pytest.mark.parametrize("microbatches", [2, 4, 16])
def test_the_fullest_stage_is_that_of_all_stages(model: str, pipeline: str, microbatches: int) -> None:
    """`estimate_memory` looks at those stages alone that may be the fullest."""
    layout = ["parallelism.pp=4", "parallelism.tp=1", f"pipeline={pipeline}", f"num_microbatches={microbatches}"]
    chunks = ["pipeline.chunks=2"] * (pipeline in ("interleaved", "zb-v"))
    for recomputation in ("none", "full"):
        one = workload(*f"model={model}".split(), *layout, *chunks, f"recomputation={recomputation}")
        stages = [stage_memory(one, stage) for stage in range(one.parallelism.pp)]
        assert estimate_memory(one) == max(stages, key=lambda stage: stage.total_gib)
