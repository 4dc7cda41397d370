"""Loss, balancing loss and every gradient of mixtures of experts are those of transformers, in fp32."""

import dataclasses
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from helpers.builders import read_model, small_model, software
from helpers.hugging_face import LOSS, load_gradients
from helpers.numerics import TOLERANCE, Case, PipelineRank, Reference, in_a_v, microbatches, overlapped
from helpers.trainings import tiny_workload
from helpers.worlds import departure, spawn
from safetensors.torch import save_file
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from kareus.errors import EngineError
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch
from kareus.model.communication import Mesh
from kareus.model.config import Model
from kareus.model.expert_layers import Choose, Router
from kareus.model.experts import Experts, LatentAttention, RouterScore
from kareus.model.parallelism import Sharding
from kareus.model.trainable import untrained
from kareus.partition.extract import extract
from kareus.pipeline.config import PipelineSchedule
from kareus.profile.programs import Execution
from kareus.runtime.engine_checks import check_runs
from kareus.runtime.schedules import MicrobatchSchedule, Schedule
from kareus.software.record import Dispatcher
from kareus.workload.config import Workload

TOKENS = 16
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.3,
    "output_router_logits": True,
    "sliding_window": None,
}
ROUTED_BY_SIGMOIDS = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8}
KINDS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True}
    | {"rope_parameters": {**YARN, "truncate": False}},
    "qwen2_moe": {
        "moe_intermediate_size": 24,
        "num_experts": 4,
        "norm_topk_prob": True,
        "shared_expert_intermediate_size": 16,
    },
    "glm4_moe": {**ROUTED_BY_SIGMOIDS, "n_shared_experts": 1, "attention_bias": True, "use_qk_norm": True},
    "deepseek_v3": {
        **ROUTED_BY_SIGMOIDS,
        "n_shared_experts": 1,
        "num_key_value_heads": 4,
        "head_dim": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "rope_parameters": {**YARN, "beta_fast": 4.0, "mscale": 1.0, "mscale_all_dim": 0.7},
    },
    "deep": {"num_local_experts": 4, "num_hidden_layers": 4},
    "shares": {"moe_intermediate_size": 24, "num_experts": 4, "norm_topk_prob": False, "mlp_only_layers": [0]},
}
CORRECTION = "e_score_correction_bias"
"""Ends the name of what scores are moved by for choosing, which has no gradient."""
HALVED = MicrobatchSchedule(Schedule(Execution.NANOBATCHING), Schedule(Execution.NANOBATCHING))


def saved(kind: str, folder: Path) -> Model:
    """A checkpoint of random weights, in which routers tell experts apart."""
    transformers.logging.set_verbosity_error()
    config = CONFIG_MAPPING[{"shares": "qwen3_moe", "deep": "mixtral"}.get(kind, kind)](**(SIZES | KINDS[kind]))
    config._attn_implementation = "eager"
    theirs = AutoModelForCausalLM.from_config(config).float()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in theirs.named_parameters():
        spread = 0.5 if "gate.weight" in name else 0.2 if parameter.dim() > 1 else 0.4
        parameter.data = spread * torch.randn(parameter.shape, generator=generator) + (1.0 if "norm" in name else 0.0)
    for name, bias in theirs.named_buffers():
        if name.endswith(CORRECTION):
            bias.data = 0.3 * torch.randn(bias.shape, generator=generator)
    theirs.save_pretrained(folder)
    model = read_model(folder)
    experts = model.experts
    if experts is not None and experts.score is RouterScore.SIGMOID:
        experts = dataclasses.replace(experts, bias_step=0.001)  # has choices counted
    return dataclasses.replace(model, name=kind.replace("_", "-"), experts=experts)


def save_expected(model: Model, folder: Path, workload: Workload, path: Path) -> None:
    """Write the mean loss of all replicas' microbatches, with what balances experts, and its gradients.

    Of what scores are moved by for choosing there are, in place of a gradient, the tokens that chose each expert.
    """
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    chosen = {f"{name}.{CORRECTION}": counted(m) for name, m in theirs.named_modules() if hasattr(m, CORRECTION)}
    replicas = range(workload.parallelism.dp)
    everything = [one for replica in replicas for one in microbatches(workload, replica, 0, 1)]
    total = torch.zeros(())
    for microbatch in everything:
        ids, labels = torch.from_numpy(microbatch.ids), torch.from_numpy(microbatch.labels)
        loss = theirs(input_ids=ids, labels=labels, shift_labels=labels).loss / len(everything)
        loss.backward()
        total += loss.detach()
    gradients = {name: weight.grad for name, weight in theirs.named_parameters()}
    save_file({LOSS: total, **by_expert(model, gradients), **chosen}, path)


def counted(router: Any) -> Tensor:
    """Return what counts the tokens that choose each expert from now on, by transformers' router."""
    counts = torch.zeros(router.num_experts)

    def count(_: Any, __: Any, output: Any) -> None:
        counts.add_(torch.bincount(output[2].flatten(), minlength=len(counts)))

    router.register_forward_hook(count)
    return counts


def by_expert(model: Model, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients under the names of a checkpoint, which has each expert's weights apart."""
    mixtral = model.checkpoint == "mixtral"
    parts = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    found = {}
    for name, gradient in gradients.items():
        renamed = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
        if ".experts." not in name:
            found[renamed] = gradient.contiguous()
            continue
        before, _, kind = renamed.rpartition(".")
        for number, own in enumerate(gradient):
            names, weights = (parts[2:], (own,)) if kind == "down_proj" else (parts[:2], own.chunk(2))
            found |= {f"{before}.{number}.{n}.weight": w.clone() for n, w in zip(names, weights, strict=True)}
    return found


class Prepared(NamedTuple):
    case: Case
    reference: Reference
    halves: bool
    """Whether what is planned of it may have two nanobatches."""


def prepared(kind: str, folder: Path, ep: int = 1, **layout: Any) -> Prepared:
    """A layout, and what transformers computes of the same batch."""
    folder.mkdir()
    model = saved(kind, folder)
    options = {"sequence_length": TOKENS, "software": software(), "sequence_parallel": "tp" in layout} | layout
    workload = tiny_workload(model=model, **options)
    workload = dataclasses.replace(workload, parallelism=dataclasses.replace(workload.parallelism, ep=ep))
    graphs = extract(model, workload.parallelism, 2, TOKENS, software=workload.software)
    halves = Batch.NANOBATCH in graphs
    gradients = folder.with_suffix(".safetensors")
    save_expected(model, folder, workload, gradients)
    graph = graphs[Batch.NANOBATCH if halves else Batch.MICROBATCH]
    return Prepared(Case(workload, graph), Reference(folder, gradients), halves or ep == 1)


def check_cases(rank: int, cases: list[Prepared]) -> None:
    """Sequential, staggered, with every collective beside an operator, and one of each."""
    for of, reference, halves in cases:
        running = PipelineRank(rank, of, reference)
        expected = running.expected(reference.gradients)
        whole = [
            gradient
            for name, gradient in load_gradients(reference.gradients).items()
            if name != LOSS and CORRECTION not in name
        ]
        norm = torch.stack([gradient.square().sum() for gradient in whole]).sum().sqrt()
        workload = of.workload
        places = [(c, m) for c in range(workload.chunks) for m in range(workload.num_microbatches)]
        runs = [[MicrobatchSchedule()]]
        if halves:
            beside = overlapped(of)
            mixed = [MicrobatchSchedule(beside.forward), HALVED, MicrobatchSchedule(HALVED.forward, beside.backward)]
            runs += [[HALVED], [beside], mixed]
        for schedules in runs:
            planned = {place: schedules[n % len(schedules)] for n, place in enumerate(places)}
            ours = running.ran((planned,) * workload.parallelism.pp)
            assert departure(ours, expected) <= TOLERANCE, (workload.model.name, workload.parallelism, schedules)
            assert abs(running.norm - norm) <= TOLERANCE * norm


def test_one_rank_computes_what_mixtures_do(tmp_path: Path) -> None:
    cases = [
        prepared(kind, tmp_path / f"{kind}-{recomputation}", recomputation=recomputation)
        for kind, recomputation in zip(["glm4_moe", "deepseek_v3", "shares", "mixtral"], Recomputation, strict=True)
    ]
    spawn(1, check_cases, tmp_path, cases)


def test_two_ranks_compute_what_mixtures_do(tmp_path: Path) -> None:
    layouts: list[tuple[str, dict[str, Any]]] = [
        ("mixtral", {"ep": 2, "dp": 2}),
        ("qwen3_moe", {"ep": 2, "dp": 2, "sharding": Sharding.OPTIMIZER, "recomputation": Recomputation.NONE}),
        ("qwen2_moe", {"ep": 2, "tp": 2, "recomputation": Recomputation.FULL}),
        ("glm4_moe", {"ep": 2, "dp": 2}),
        ("deepseek_v3", {"ep": 2, "tp": 2, "recomputation": Recomputation.NONE}),
        ("qwen3_moe", {"ep": 1, "tp": 2, "recomputation": Recomputation.SELECTIVE}),
        ("deepseek_v3", {"ep": 2, "cp": 2, "recomputation": Recomputation.SELECTIVE}),
        ("qwen3_moe", {"ep": 2, "cp": 2, "recomputation": Recomputation.SELECTIVE}),
        ("shares", {"pp": 2, "microbatch_size": 3}),
        ("shares", {"dp": 2, "sharding": Sharding.OPTIMIZER}),
        ("deep", {"pp": 2, **in_a_v(PipelineSchedule.ZERO_BUBBLE_V)}),
        ("deep", {"pp": 2, "recomputation": Recomputation.NONE, **in_a_v(PipelineSchedule.DUALPIPE_V)}),
    ]
    cases = [prepared(kind, tmp_path / f"{n}", **layout) for n, (kind, layout) in enumerate(layouts)]
    spawn(2, check_cases, tmp_path, cases)


@pytest.mark.acceptance
def test_four_ranks_compute_what_mixtures_do(tmp_path: Path) -> None:
    layouts: list[tuple[str, dict[str, Any]]] = [
        ("mixtral", {"ep": 4, "dp": 4}),
        ("qwen3_moe", {"ep": 4, "dp": 2, "tp": 2, "recomputation": Recomputation.NONE}),
        ("qwen3_moe", {"ep": 2, "dp": 2, "tp": 2, "sharding": Sharding.OPTIMIZER}),
        ("qwen3_moe", {"ep": 2, "dp": 2, "pp": 2, "recomputation": Recomputation.FULL}),
        ("qwen3_moe", {"ep": 2, "tp": 2, "pp": 2, "recomputation": Recomputation.SELECTIVE}),
        ("glm4_moe", {"ep": 4, "dp": 4, "sharding": Sharding.OPTIMIZER}),
        ("glm4_moe", {"ep": 2, "dp": 2, "pp": 2, "recomputation": Recomputation.NONE}),
        ("qwen2_moe", {"ep": 2, "dp": 2, "tp": 2}),
        ("deepseek_v3", {"ep": 2, "dp": 2, "pp": 2, "recomputation": Recomputation.SELECTIVE}),
        ("deepseek_v3", {"ep": 4, "tp": 2, "cp": 2, "recomputation": Recomputation.FULL}),
        ("deepseek_v3", {"ep": 2, "tp": 2, "dp": 2, "sharding": Sharding.OPTIMIZER}),
        ("shares", {"ep": 2, "dp": 4, "sharding": Sharding.OPTIMIZER}),
        ("deep", {"ep": 2, "dp": 2, "pp": 2, **in_a_v(PipelineSchedule.ZERO_BUBBLE_V)}),
        ("deep", {"ep": 2, "tp": 2, "pp": 2, **in_a_v(PipelineSchedule.DUALPIPE_V)}),
    ]
    cases = [prepared(kind, tmp_path / f"{n}", **layout) for n, (kind, layout) in enumerate(layouts)]
    spawn(4, check_cases, tmp_path, cases)


def test_a_router_of_sigmoids_is_in_fp32_whatever_weights_are_in() -> None:
    """As transformers' is: in bf16 its logits would be rounded, and other experts chosen."""
    config = CONFIG_MAPPING["deepseek_v3"](**(SIZES | KINDS["deepseek_v3"]))
    theirs = DeepseekV3TopkRouter(config)
    theirs.weight.data = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    theirs.bfloat16()
    x = torch.randn(2, 64, 32, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    logits, _, chosen = theirs(x)
    logits.square().sum().backward()
    experts = Experts(count=8, per_token=3, width=8, groups=4, groups_per_token=2, score=RouterScore.SIGMOID)
    router = Router(32, 8, torch.bfloat16, exact=True)
    router.weight.data = theirs.weight.data
    own = x.detach().clone().requires_grad_()
    found, _ = router(own)
    found.square().sum().backward()
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.flatten(0, 1), logits, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(router.weight_gradient, theirs.weight.grad.float(), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(own.grad, x.grad)
    shares, route = Choose(experts, Mesh(), torch.bfloat16)(found, None)
    assert shares.dtype is torch.bfloat16
    assert route.sent == [torch.bincount(chosen.flatten(), minlength=8).tolist()]


@pytest.mark.parametrize(
    ("kind", "features"),
    [
        ("mixtral", ()),
        ("qwen3_moe", ()),
        ("qwen2_moe", ()),
        ("glm4_moe", ("mtp_layers=1",)),
        ("ernie4_5_moe", ("shared experts or sigmoid routers of ernie4_5_moe",)),
        ("gpt_oss", ("attention_sinks=True", "experts.biases=True")),
        ("deepseek_v3", ("mtp_layers=1",)),
    ],
)
def test_what_the_engine_lacks_of_mixtures_is_named(kind: str, features: tuple[str, ...], tmp_path: Path) -> None:
    config = CONFIG_MAPPING[kind](**({"head_dim": 128} if kind == "glm4_moe" else {}))
    (tmp_path / "config.json").write_text(config.to_json_string(use_diff=False))
    assert set(features) <= set(untrained(read_model(tmp_path), 16))
    assert bool(features) is bool(untrained(read_model(tmp_path), 16))


@pytest.mark.parametrize(
    ("degrees", "changes", "message"),
    [
        ({"etp": 2, "ep": 1}, {}, "parallelism.etp=2: is planned and predicted, but the engine has whole experts"),
        ({"tp": 2, "dp": 1}, {}, "parallelism.sequence_parallel=false: with experts"),
        ({"sharding": Sharding.FULL}, {}, "parallelism.sharding=full: is planned and predicted, but the engine"),
        ({}, {"dispatcher": Dispatcher.FLEX}, "software.dispatcher=flex: is planned and predicted, but the engine"),
    ],
)
def test_experts_that_are_divided_otherwise_are_refused(
    degrees: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    model = small_model(experts=Experts(count=4, per_token=2, width=8))
    workload = tiny_workload(dp=2, model=model)
    check_runs(workload)
    parallelism = dataclasses.replace(workload.parallelism, **degrees)
    other = dataclasses.replace(workload.software, **changes)
    with pytest.raises(EngineError, match=re.escape(message)):
        check_runs(dataclasses.replace(workload, parallelism=parallelism, software=other))


def test_queries_beside_latent_vectors_are_whole_on_a_gpu() -> None:
    latent = LatentAttention(query_rank=None, key_value_rank=8, rotary_dim=4, value_dim=4)
    model = small_model(latent_attention=latent, num_key_value_heads=small_model().num_attention_heads)
    with pytest.raises(EngineError, match=r"model\.latent_attention: is planned with parallelism\.tp=2, but the"):
        check_runs(tiny_workload(tp=2, model=model))
    check_runs(tiny_workload(dp=2, model=model))


def test_tied_embeddings_in_a_v_are_refused() -> None:
    model = small_model(tie_embeddings=True)
    with pytest.raises(EngineError, match=r"pipeline\.schedule=zb-v: .* the engine does not tie embeddings of two"):
        check_runs(tiny_workload(pp=2, model=model, **in_a_v(PipelineSchedule.ZERO_BUBBLE_V)))
    check_runs(tiny_workload(pp=2, **in_a_v(PipelineSchedule.ZERO_BUBBLE_V)))
