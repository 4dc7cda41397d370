"""Options of a training: adapters, packing, formats of states, recomputation by part, offloading, chunks, ramps."""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
from helpers.builders import CONFIG
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.errors import ConfigError, RefusedWorkloadError
from kareus.graph.recomputation import AGAIN_SUFFIX, Recomputation, recomputed_blocks
from kareus.graph.records import Batch, BlockGraph, OperatorKind
from kareus.model.low_rank import adapters
from kareus.model.packed_documents import attention_spread, document_lengths, twice_pairs
from kareus.model.parameters import ALONE, trained_parameters
from kareus.model.training_options import PLAIN, FrozenWeights, RecomputedModule, TrainingOptions, check_options
from kareus.partition.extract import operator_graphs
from kareus.prediction.host_copies import COPIES
from kareus.prediction.training_lines import ramp_totals, trained_of, training_lines
from kareus.prediction.workload_prediction import predict
from kareus.profile.programs import StageShape, weights_of
from kareus.workload.activation_memory import head_bytes, kept_bytes
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.memory import estimate_memory
from kareus.workload.model_flops import model_flops
from kareus.workload.naming import workload_name
from kareus.workload.resolve import resolve, resolve_accepted
from kareus.workload.state_memory import state_bytes

LAYOUT = ("gpu=h200", "parallelism.tp=1", "parallelism.pp=1", "parallelism.dp=8", "microbatch_size=2")
TOKENS = 4096


@functools.cache
def base(*overrides: str) -> Workload:
    told = [] if any(text.startswith("recomputation=") for text in overrides) else ["recomputation=none"]
    (workload,) = resolve_accepted([*LAYOUT, *told, *overrides], CONFIG).values()
    return workload


def with_options(**options: object) -> Workload:
    return dataclasses.replace(base(), training=TrainingOptions(**options))  # type: ignore[arg-type]


def graph(workload: Workload) -> BlockGraph:
    return operator_graphs(workload)[Batch.MICROBATCH]


def flops(part: object) -> int:
    return sum(o.flops for segment in part for o in segment.operators)  # type: ignore[attr-defined]


def test_usual_options_change_no_name_and_no_file() -> None:
    plain, told = compose(list(LAYOUT), CONFIG), compose([*LAYOUT, "training.lora_rank=0"], CONFIG)
    assert workload_name(plain[0]) == workload_name(told[0])
    assert "training" not in workload_name(plain[0])
    assert plain[0].workload == told[0].workload


def test_adapters_have_as_many_parameters_as_peft_prints() -> None:
    """`print_trainable_parameters` of peft for Llama 3.2 3B, 28 blocks: r (in + out) of each product."""
    model = base().model
    hidden, key_value, ffn = 3072, 1024, 8192
    every = 2 * (hidden + hidden) + 2 * (hidden + key_value) + 3 * (hidden + ffn)
    assert trained_of(model, TrainingOptions(lora_rank=16)) == 28 * 16 * every == 24_313_856
    usual = TrainingOptions(lora_rank=8, lora_targets=("q_proj", "v_proj"))
    assert trained_of(model, usual) == 28 * 8 * (2 * hidden + hidden + key_value) == 2_293_760


def test_megatron_has_one_adapter_for_fused_products() -> None:
    model = base().model
    fused = TrainingOptions(lora_rank=4, lora_targets=("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"))
    own = adapters(model, ALONE, fused)
    assert [(one.operator, one.inputs, one.outputs) for one in own] == [
        ("qkv", 3072, 3072 + 2 * 1024),
        ("projection", 3072, 3072),
        ("gate_up", 3072, 2 * 8192),
        ("down", 8192, 3072),
    ]


def test_tensor_parallelism_cuts_adapters_as_their_products() -> None:
    options = TrainingOptions(lora_rank=4, lora_targets=("q_proj", "down_proj"))
    query, down = adapters(base().model, dataclasses.replace(ALONE, tp=4), options)
    assert (query.inputs, query.outputs) == (3072, 768)
    assert (down.inputs, down.outputs) == (2048, 3072)


def test_frozen_weights_have_no_gradients_and_adapters_do() -> None:
    whole, own = graph(base()), graph(with_options(lora_rank=16))
    products = sum(o.flops for s in whole.forward for o in s.operators if o.kind is OperatorKind.GEMM)
    adapted = 2 * 2 * TOKENS * 24_313_856 // 28
    assert flops(own.forward) == flops(whole.forward) + adapted
    assert flops(own.backward) == flops(whole.backward) - products + 2 * adapted
    assert not own.embedding_backward
    assert not [o for s in own.head_backward for o in s.operators if o.is_weight_gradient]
    names = [o.name for s in own.backward for o in s.operators]
    assert len(set(names)) == len(names)


def test_states_of_adapters_alone() -> None:
    own = with_options(lora_rank=16)
    weights, gradients, states = state_bytes(own, 0, 28)
    assert weights == pytest.approx(2 * (3_212_749_824 + 24_313_856), rel=3e-3)
    assert (gradients, states) == (4 * 24_313_856, 12 * 24_313_856)
    lines = model_flops(own) / model_flops(base())
    assert 2 / 3 < lines < 0.75  # attention has all of its backward


def test_quantised_weights_are_a_quarter_and_are_cast() -> None:
    own, frozen = with_options(lora_rank=16, frozen_weights=FrozenWeights.NF4), with_options(lora_rank=16)
    blocks = 28 * (2 * 3072 * 3072 + 2 * 3072 * 1024 + 3 * 3072 * 8192)
    saved = state_bytes(frozen, 0, 28)[0] - state_bytes(own, 0, 28)[0]
    assert saved == pytest.approx((2 - 4.127 / 8) * blocks, rel=1e-3)
    assert predict(own).time_s > predict(frozen).time_s


@pytest.mark.parametrize(
    ("options", "gradient", "states"),
    [
        ("training.gradients=bf16", 2, 12),
        ("training.moments=bf16", 4, 8),
        ("training.moments=8bit", 4, 4 + 2 * (1 + 4 / 256)),
        ("training.master_weights=remainder", 4, 10),
        ("training.master_weights=none training.moments=bf16", 4, 4),
    ],
)
def test_bytes_of_states(options: str, gradient: float, states: float) -> None:
    own = base(*options.split())
    parameters = state_bytes(base(), 0, 28)[0] / 2
    assert state_bytes(own, 0, 28) == pytest.approx((2 * parameters, gradient * parameters, states * parameters))
    usual, less = predict(base()), predict(own)
    assert less.time_s < usual.time_s
    assert less.energy_j < usual.energy_j


def test_weights_that_are_cast_are_kept_once() -> None:
    fp8 = ("gpu=h200", "precision=fp8-current", "parallelism.sharding=optimizer")
    told = [text for text in LAYOUT if not text.startswith("gpu=")]
    both, one = (
        next(iter(resolve_accepted([*told, *fp8, "recomputation=none", *more], CONFIG).values()))
        for more in ((), ("training.cast_weights=true",))
    )
    blocks = 28 * (2 * 3072 * 3072 + 2 * 3072 * 1024 + 3 * 3072 * 8192)
    assert state_bytes(both, 0, 28)[0] - state_bytes(one, 0, 28)[0] == pytest.approx(2 * blocks, rel=1e-3)
    assert predict(one).time_s <= predict(both).time_s


def test_sharded_weights_without_masters_are_kept_in_16_bits() -> None:
    sharded = base("parallelism.sharding=full")
    without = base("parallelism.sharding=full", "training.master_weights=none")
    parameters = state_bytes(base(), 0, 28)[0] / 2
    usual, own = state_bytes(sharded, 0, 28), state_bytes(without, 0, 28)
    assert own[0] - usual[0] == pytest.approx(2 * parameters / 8)
    assert usual[2] - own[2] == pytest.approx(4 * parameters / 8)


def test_frozen_shards_are_kept_in_16_bits() -> None:
    usual = base("parallelism.sharding=full")
    own = base("parallelism.sharding=full", "training.lora_rank=8")
    parameters = state_bytes(base(), 0, 28)[0] / 2
    assert state_bytes(own, 0, 28)[0] - state_bytes(usual, 0, 28)[0] == pytest.approx(2 * parameters / 8, rel=0.01)


def test_frozen_shards_in_4_bits_are_gathered_and_kept_so() -> None:
    """QLoRA under FSDP: of every value a GPU has an eighth, and of two blocks all; adapters come in 16 bits."""
    told = ("parallelism.sharding=full", "training.lora_rank=8")
    whole, packed = base(*told), base(*told, "training.frozen_weights=nf4")
    block = 2 * 3072 * 3072 + 2 * 3072 * 1024 + 3 * 3072 * 8192 + 2 * 3072  # with its norms
    spared = (2 - 4.127 / 8) * block
    assert state_bytes(whole, 0, 28)[0] - state_bytes(packed, 0, 28)[0] == pytest.approx(spared * (28 / 8 + 2))
    one = StageShape(layers=28, first=True, last=True)
    gathered = [weights_of(own, 0, one, 20).block.gather[0].message_bytes for own in (whole, packed)]  # type: ignore[union-attr]
    assert gathered[0] - gathered[1] == pytest.approx(spared, rel=1e-6)
    assert gathered[0] - 2 * block == 2 * sum(own.parameters for own in adapters(whole.model, ALONE, whole.training))


def test_the_host_steps_at_the_pace_of_its_memory() -> None:
    usual, own = predict(base()), predict(with_options(offload_optimizer=1.0))
    parameters = state_bytes(base(), 0, 28)[0] / 2
    part = next(one for one in own.components if one.name == "optimizer on the host")
    assert part.time_s == pytest.approx((16 + 12 + 4 + 2) * parameters / 76.8e9, rel=1e-3)
    assert part.energy_j == pytest.approx(8 * base().gpu.blocking_power_w * part.time_s)  # no kernel runs meanwhile
    assert own.memory.optimizer_gib == 0
    assert usual.memory.total_gib - own.memory.total_gib == pytest.approx(usual.memory.optimizer_gib)


def test_packed_documents_attend_to_themselves() -> None:
    model = base().model
    packed = TrainingOptions(document_tokens=512)
    assert twice_pairs(model, packed, TOKENS) == (8 * 512**2,) * 28
    two = TrainingOptions(document_lengths=(1024, 3072))
    assert twice_pairs(model, two, TOKENS) == (1024**2 + 3072**2,) * 28
    windowed = dataclasses.replace(model, window_tokens=256)
    assert twice_pairs(windowed, packed, TOKENS) == (8 * (2 * 512 * 256 - 256**2),) * 28
    own = dataclasses.replace(base(), training=packed)
    shares = [
        flops([s for s in graph(w).forward if any(o.is_core_attention for o in s.operators)])
        - sum(o.flops for s in graph(w).forward for o in s.operators if o.kind is OperatorKind.GEMM)
        for w in (own, base())
    ]
    assert shares[0] / shares[1] == pytest.approx(512 / TOKENS, rel=1e-6)
    assert predict(own).time_s < predict(base()).time_s


def test_flops_of_a_token_are_said_as_they_are_trained() -> None:
    """Of frozen weights there are no gradients: 4 FLOPs a parameter in the place of 6."""
    own = with_options(lora_rank=16)
    gflops = model_flops(own) / (8 * 8 * 2 * TOKENS) / 1e9
    assert f"so trained   {gflops:.4g} GFLOPs a token, of which MFU is" in list(training_lines(own))
    assert list(training_lines(base())) == []


def test_lengths_are_log_normal() -> None:
    options = TrainingOptions(document_tokens=500, document_spread=0.8)
    lengths = np.array(document_lengths(options, 10**8), dtype=float)
    assert lengths.mean() == pytest.approx(500, rel=0.01)
    assert lengths.std() / lengths.mean() == pytest.approx(0.8, rel=0.05)
    assert max(document_lengths(options, 600)) == 600


def test_spread_of_attention_against_drawn_batches() -> None:
    options, tokens = TrainingOptions(document_lengths=(100, 200, 700)), 200_000
    rng, costs = np.random.default_rng(1), []
    for _ in range(400):
        lengths = rng.choice([100, 200, 700], size=tokens // 50)
        ends = np.cumsum(lengths)
        costs.append((lengths[ends <= tokens] ** 2).sum())
    assert attention_spread(options, 4096, tokens) == pytest.approx(np.std(costs) / np.mean(costs), rel=0.15)
    assert attention_spread(TrainingOptions(document_tokens=512), 4096, tokens) == 0


@given(
    layers=st.integers(1, 40),
    every=st.integers(1, 8),
    first=st.one_of(st.none(), st.integers(0, 50)),
)
def test_blocks_that_are_recomputed(layers: int, every: int, first: int | None) -> None:
    chosen = recomputed_blocks(layers, every, first)
    assert len(chosen) == layers
    assert sum(chosen) == min(layers, layers if first is None else first) // every
    assert sum(recomputed_blocks(layers, every + 1, first)) <= sum(chosen)


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from([Recomputation.FULL, Recomputation.SELECTIVE]),
    more=st.integers(0, 28),
    fewer=st.integers(0, 28),
)
def test_more_recomputation_never_takes_more_memory_at_rest(kind: Recomputation, more: int, fewer: int) -> None:
    more, fewer = max(more, fewer), min(more, fewer)

    def kept(blocks: int) -> int:
        options = TrainingOptions(recompute_blocks=blocks)
        return kept_bytes(dataclasses.replace(base(), recomputation=kind, training=options), 28, TOKENS)[0]

    assert kept(more) <= kept(fewer)
    none = kept_bytes(base(), 28, TOKENS)[0]
    assert kept(0) == none
    assert kept(28) == kept_bytes(dataclasses.replace(base(), recomputation=kind), 28, TOKENS)[0]


def test_time_of_partial_recomputation_is_between() -> None:
    times = [
        predict(
            dataclasses.replace(
                base(), recomputation=Recomputation.FULL, training=TrainingOptions(recompute_blocks=blocks)
            )
        ).time_s
        for blocks in (0, 7, 14, 28)
    ]
    assert times == sorted(times)
    assert times[0] == pytest.approx(predict(base()).time_s)
    full = dataclasses.replace(base(), recomputation=Recomputation.FULL)
    assert times[-1] == pytest.approx(predict(full).time_s)
    assert times[2] - times[0] == pytest.approx((times[3] - times[0]) / 2, rel=0.02)


def test_a_module_runs_again_and_is_not_kept() -> None:
    own = with_options(recompute_modules=(RecomputedModule.MLP,))
    whole = graph(base())
    again = graph(own)
    mlp = sum(o.flops for s in whole.forward for o in s.operators if o.name in ("gate_up", "down"))
    assert flops(again.backward) - flops(whole.backward) == mlp
    tokens = 2 * TOKENS
    saved = kept_bytes(base(), 1, tokens)[0] - kept_bytes(own, 1, tokens)[0]
    excess = base().software.kept_excess
    assert saved == pytest.approx(excess * 2 * tokens * (3 * 8192 + 3072))  # gate, up, their product, the norm before
    norms = with_options(recompute_modules=(RecomputedModule.LAYER_NORM,))
    saved = kept_bytes(base(), 1, tokens)[0] - kept_bytes(norms, 1, tokens)[0]
    assert saved == pytest.approx(excess * 2 * tokens * 2 * 3072)
    assert flops(graph(norms).backward) == flops(whole.backward)


def test_what_two_modules_have_in_common_runs_again_once() -> None:
    """The MLP has the norm before it; of a mixture, experts have their activation."""
    mlp, norm = RecomputedModule.MLP, RecomputedModule.LAYER_NORM

    def again(*modules: RecomputedModule) -> list[str]:
        backward = graph(with_options(recompute_modules=modules)).backward
        return [o.name for segment in backward for o in segment.operators if o.name.endswith(AGAIN_SUFFIX)]

    assert again(mlp, mlp) == again(mlp)
    assert again(mlp, norm) == again(norm, mlp) == [again(norm)[0], *again(mlp)]
    assert len(again(norm)) == 2


def test_a_loss_in_chunks_has_fewer_logits_and_the_same_work() -> None:
    own = with_options(loss_chunks=8)
    for part in ("head_forward", "head_backward"):
        assert flops(getattr(graph(own), part)) == flops(getattr(graph(base()), part))
    hidden = 2 * 2 * TOKENS * 3072
    assert head_bytes(own, TOKENS) - hidden == pytest.approx((head_bytes(base(), TOKENS) - hidden) / 8, rel=1e-3)
    assert predict(own).time_s >= predict(base()).time_s


def test_blocks_on_the_host_cost_time_only_where_the_link_is_slower() -> None:
    own = with_options(offload_blocks=28)
    assert predict(own).memory.total_gib < predict(base()).memory.total_gib
    slow = dataclasses.replace(own, gpu=dataclasses.replace(own.gpu, host_gb_per_s=2.0))
    found = predict(slow)
    kept = kept_bytes(base(), 28, 2 * TOKENS)[0]
    assert found.stages[0].forward_s == pytest.approx(8 * kept / 2e9, rel=1e-3)
    assert sum(one.time_s for one in found.components) == pytest.approx(found.time_s)
    copies = next(one for one in found.components if one.name == COPIES)
    assert copies.energy_j == pytest.approx(8 * slow.gpu.blocking_power_w * copies.time_s)


def test_a_ramp_takes_the_sum_of_its_batches() -> None:
    own = with_options(batch_ramp=(32, 32, 3000))
    totals = ramp_totals(own)
    expected = sum(
        1000 / batch * predict(dataclasses.replace(base(), num_microbatches=batch // 16)).time_s
        for batch in (32, 64, 96)
    )
    assert totals.time_s == pytest.approx(expected)
    assert totals.iterations == pytest.approx(sum(1000 / batch for batch in (32, 64, 96)))
    assert totals.time_s >= totals.whole_time_s


@pytest.mark.parametrize(
    ("overrides", "nearest"),
    [
        (["training.recompute_every=2"], "recomputation=full"),
        (["training.recompute_modules=[moe]"], "mlp"),
        (["training.document_tokens=9000"], "sequence_length"),
        (["training.batch_ramp=[3,5,1000]"], "multiples"),
        (["training.loss_chunks=9000"], "at most the 8192 tokens"),
        (["training.offload_blocks=2", "recomputation=stage"], "recomputation=full"),
        (["training.lora_rank=8", "pipeline=zb-h1", "parallelism.pp=2", "parallelism.dp=4"], "pipeline=1f1b"),
    ],
)
def test_what_stays_out_is_refused_with_what_works(overrides: list[str], nearest: str) -> None:
    told = dict(text.split("=", 1) for text in (*LAYOUT, "recomputation=none", *overrides))
    (refused,) = resolve([f"{key}={value}" for key, value in told.items()], CONFIG)
    assert refused.workload is None
    assert nearest in str(refused.refusal)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lora.rank", "training.lora_rank"),
        ("qlora", "training.frozen_weights=nf4"),
        ("optimizer", "training.moments"),
        ("sample_packing", "training.document_tokens"),
        ("offload", "training.offload_optimizer"),
    ],
)
def test_names_that_people_try_lead_to_the_keys(key: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=meant):
        compose([f"{key}=1"], CONFIG)


def test_what_plans_cannot_say_is_predicted_alone() -> None:
    check_options(TrainingOptions(lora_rank=8, loss_chunks=4, document_tokens=512))
    with pytest.raises(RefusedWorkloadError, match="predicted, not planned"):
        check_options(TrainingOptions(recompute_every=2))
    check_options(PLAIN)


def test_targets_are_known_names() -> None:
    with pytest.raises(ConfigError, match="perhaps you meant q_proj"):
        TrainingOptions(lora_rank=8, lora_targets=("q_pro",))
    with pytest.raises(ConfigError, match="must name"):
        TrainingOptions(lora_rank=8, lora_targets=())
    with pytest.raises(ConfigError, match=r"give training\.lora_rank"):
        TrainingOptions(lora_targets=("q_proj",))
    with pytest.raises(ConfigError, match="q_proj would have two adapters, by linear_qkv and by q_proj; name one"):
        TrainingOptions(lora_rank=8, lora_targets=("linear_qkv", "q_proj"))


def test_memory_is_less_with_each_saving() -> None:
    usual = estimate_memory(base()).total_gib
    for options in (
        {"lora_rank": 16},
        {"offload_optimizer": 0.5},
        {"recompute_modules": (RecomputedModule.MLP,)},
        {"offload_blocks": 4},
    ):
        assert estimate_memory(with_options(**options)).total_gib < usual
    assert trained_parameters(base().model, ALONE, PLAIN)


def test_lengths_of_documents_may_be_a_file(tmp_path: Path) -> None:
    lengths = np.random.default_rng(3).integers(10, 3000, size=5000)
    (tmp_path / "plain.txt").write_text("\n".join(map(str, lengths)))
    (tmp_path / "table.csv").write_text("id,tokens\n" + "\n".join(f"{n},{one}" for n, one in enumerate(lengths)))
    plain, table = (base(f"training.document_lengths={tmp_path / name}") for name in ("plain.txt", "table.csv"))
    assert plain.training == table.training
    pairs = twice_pairs(plain.model, plain.training, TOKENS)[0]
    assert pairs == pytest.approx(TOKENS * (lengths.astype(float) ** 2).mean() / lengths.mean(), rel=1e-3)


@pytest.mark.parametrize(
    ("text", "words"),
    [("a,b\n1,2\n", "no column"), ("", "has no lengths"), ("3\nx\n", "'x' is no length"), ("0\n", "'0'")],
)
def test_a_file_without_lengths_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ConfigError, match=words):
        compose([f"training.document_lengths={tmp_path / 'a.csv'}"], CONFIG)
    with pytest.raises(ConfigError, match="cannot be read"):
        compose([f"training.document_lengths={tmp_path / 'missing.csv'}"], CONFIG)
