"""Loss, balancing loss and every gradient of mixtures of experts are those of transformers, in fp32."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers.builders import software
from helpers.hugging_face import LOSS, load_gradients
from helpers.numerics import TOLERANCE, Case, PipelineRank, Reference, microbatches
from helpers.trainings import tiny_workload
from helpers.worlds import departure, spawn
from safetensors.torch import save_file
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch
from kareus.model.config import Model, Sharding
from kareus.partition.extract import extract
from kareus.profile.programs import Execution
from kareus.runtime.schedules import MicrobatchSchedule, Schedule
from kareus.workload.config import Workload
from kareus.workload.huggingface import read_model

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
KINDS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True},
    "shares": {"moe_intermediate_size": 24, "num_experts": 4, "norm_topk_prob": False, "mlp_only_layers": [0]},
}
HALVED = MicrobatchSchedule(Schedule(Execution.NANOBATCHING), Schedule(Execution.NANOBATCHING))


def saved(kind: str, folder: Path) -> Model:
    """A checkpoint of random weights, in which routers tell experts apart."""
    transformers.logging.set_verbosity_error()
    config = CONFIG_MAPPING["qwen3_moe" if kind == "shares" else kind](**(SIZES | KINDS[kind]))
    config._attn_implementation = "eager"
    theirs = AutoModelForCausalLM.from_config(config).float()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in theirs.named_parameters():
        spread = 0.5 if "gate.weight" in name else 0.2 if parameter.dim() > 1 else 0.4
        parameter.data = spread * torch.randn(parameter.shape, generator=generator) + (1.0 if "norm" in name else 0.0)
    theirs.save_pretrained(folder)
    return dataclasses.replace(read_model(folder), name=kind.replace("_", "-"))


def save_expected(model: Model, folder: Path, workload: Workload, path: Path) -> None:
    """Write the mean loss of all replicas' microbatches, with what balances experts, and its gradients."""
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    replicas = range(workload.parallelism.dp)
    everything = [one for replica in replicas for one in microbatches(workload, replica, 0, 1)]
    total = torch.zeros(())
    for microbatch in everything:
        ids, labels = torch.from_numpy(microbatch.ids), torch.from_numpy(microbatch.labels)
        loss = theirs(input_ids=ids, labels=labels, shift_labels=labels).loss / len(everything)
        loss.backward()
        total += loss.detach()
    gradients = {name: weight.grad for name, weight in theirs.named_parameters()}
    save_file({LOSS: total, **by_expert(model, gradients)}, path)


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


def prepared(kind: str, folder: Path, ep: int = 1, **layout: Any) -> tuple[Case, Reference]:
    """A layout, and what transformers computes of the same batch."""
    folder.mkdir()
    model = saved(kind, folder)
    options = {"sequence_length": TOKENS, "software": software(), "sequence_parallel": "tp" in layout} | layout
    workload = tiny_workload(model=model, **options)
    workload = dataclasses.replace(workload, parallelism=dataclasses.replace(workload.parallelism, ep=ep))
    graph = extract(model, workload.parallelism, 2, TOKENS, software=workload.software)[Batch.MICROBATCH]
    gradients = folder.with_suffix(".safetensors")
    save_expected(model, folder, workload, gradients)
    return Case(workload, graph), Reference(folder, gradients)


def check_cases(rank: int, cases: list[tuple[Case, Reference]]) -> None:
    """Sequential, staggered, and one of each; what exchanges tokens sequentially alone."""
    for of, reference in cases:
        running = PipelineRank(rank, of, reference)
        expected = running.expected(reference.gradients)
        whole = [gradient for name, gradient in load_gradients(reference.gradients).items() if name != LOSS]
        norm = torch.stack([gradient.square().sum() for gradient in whole]).sum().sqrt()
        workload = of.workload
        places = [(c, m) for c in range(workload.chunks) for m in range(workload.num_microbatches)]
        mixed = [MicrobatchSchedule(), HALVED, MicrobatchSchedule(HALVED.forward)]
        for schedules in ([MicrobatchSchedule()], [HALVED], mixed)[: 1 if workload.parallelism.ep > 1 else 3]:
            planned = {place: schedules[n % len(schedules)] for n, place in enumerate(places)}
            ours = running.ran((planned,) * workload.parallelism.pp)
            assert departure(ours, expected) <= TOLERANCE, (workload.model.name, workload.parallelism, schedules)
            assert abs(running.norm - norm) <= TOLERANCE * norm


def test_one_rank_computes_what_mixtures_do(tmp_path: Path) -> None:
    cases = [
        prepared(kind, tmp_path / f"{kind}-{recomputation}", recomputation=recomputation)
        for kind, recomputation in zip([*KINDS, "mixtral"], Recomputation, strict=True)
    ]
    spawn(1, check_cases, tmp_path, cases)


def test_two_ranks_compute_what_mixtures_do(tmp_path: Path) -> None:
    layouts: list[tuple[str, dict[str, Any]]] = [
        ("mixtral", {"ep": 2, "dp": 2}),
        ("qwen3_moe", {"ep": 2, "dp": 2, "sharding": Sharding.OPTIMIZER, "recomputation": Recomputation.NONE}),
        ("qwen3_moe", {"ep": 2, "tp": 2, "recomputation": Recomputation.FULL}),
        ("qwen3_moe", {"ep": 2, "cp": 2, "recomputation": Recomputation.SELECTIVE}),
        ("shares", {"pp": 2, "microbatch_size": 3}),
        ("shares", {"dp": 2, "sharding": Sharding.OPTIMIZER}),
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
        ("shares", {"ep": 2, "dp": 4, "sharding": Sharding.OPTIMIZER}),
    ]
    cases = [prepared(kind, tmp_path / f"{n}", **layout) for n, (kind, layout) in enumerate(layouts)]
    spawn(4, check_cases, tmp_path, cases)
