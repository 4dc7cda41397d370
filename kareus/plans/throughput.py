"""Throughput of a plan in the field's terms: tokens a second, joules a token, model FLOPs utilisation."""

from dataclasses import dataclass

from kareus.model.config import Model
from kareus.plans.run_totals import tokens_per_iteration
from kareus.workload.config import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Throughput of all GPUs of a job."""

    tokens_per_s: float
    joules_per_token: float
    mfu: float
    """Model FLOPs utilisation (Chowdhery et al., PaLM, appendix B), as a share of the GPUs' BF16 peak: three times the
    FLOPs of the forward's matrix products and causal attention, the masked half and recomputation left out."""


def throughput(workload: Workload, time_s: float, energy_j: float) -> Throughput:
    """Return the throughput of iterations that take this time and this energy of all GPUs."""
    tokens = tokens_per_iteration(workload)
    flops = 3 * tokens * forward_flops_per_token(workload.model, workload.sequence_length)
    peak = workload.parallelism.gpus * workload.gpu.bf16_tflops * 1e12
    return Throughput(tokens_per_s=tokens / time_s, joules_per_token=energy_j / tokens, mfu=flops / (time_s * peak))


def forward_flops_per_token(model: Model, sequence_length: int) -> float:
    """Return the FLOPs of a forward per token: two per weight of a matrix product, and those of causal attention.

    Of s queries and s keys, s^2 / 2 pairs are not masked; a pair costs 4 FLOPs per value of all heads: two products.
    """
    heads, keys = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    projections = model.hidden_size * (2 * heads + 2 * keys)
    block = projections + 3 * model.hidden_size * model.intermediate_size
    attention = 2 * sequence_length * heads
    return 2 * (model.num_layers * block + model.hidden_size * model.vocab_size) + model.num_layers * attention
