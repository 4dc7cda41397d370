"""The work of an iteration, however it is divided over GPUs: its tokens, and model FLOPs, which the architecture needs.

Counted are the matrix products and causal attention, a multiply-add as two operations. A token attends to half of its
sequence on average, so the masked half is left out. A backward is two forwards; recomputation does not count (Chowdhery
et al., PaLM, appendix B). The products of frozen weights have no weight gradients, so that they count twice, those of
adapters three times; of packed documents, pairs within one count.
"""

from collections.abc import Sequence

from kareus.graph.records import Scope
from kareus.model.config import Model
from kareus.model.packed_documents import twice_pairs
from kareus.model.parameters import (
    ALONE,
    active_parameters,
    all_used_matrices,
    mtp_parameters,
    total_parameters,
    trained_parameters,
    used_by_mtp,
)
from kareus.model.trainable import untrained
from kareus.workload.config import Workload

_FORWARDS = 3
"""Forwards whose arithmetic a forward and a backward have."""


def tokens_per_iteration(workload: Workload) -> int:
    """Tokens that all data-parallel replicas train on in one iteration."""
    sequences = workload.parallelism.dp * workload.num_microbatches * workload.microbatch_size
    return sequences * workload.sequence_length


def mfu(workload: Workload, time_s: float) -> float:
    """Return the model FLOPs utilisation of an iteration of `time_s`, a share of the BF16 peak of the GPUs."""
    return model_flops(workload) / (time_s * workload.parallelism.gpus * workload.gpu.bf16_tflops * 1e12)


def model_flops(workload: Workload) -> int:
    """Return the FLOPs of the model in one iteration, over all replicas."""
    model, options, tokens = workload.model, workload.training, workload.sequence_length
    attention = _attended_flops(model, twice_pairs(model, options, tokens))
    products = forward_flops_per_sequence(model, tokens) - _attention_flops(model, tokens)
    passes = _FORWARDS * (products + attention)
    if options.trains_adapters:
        parameters = model.num_layers * trained_parameters(model, ALONE, options)[Scope.BLOCK]
        passes += _FORWARDS * 2 * tokens * parameters - products
    return tokens_per_iteration(workload) // tokens * passes


def training_flops_per_token(model: Model, sequence_length: int) -> int:
    """Return the FLOPs of a forward and a backward for one token of a sequence of `sequence_length` tokens."""
    return _FORWARDS * forward_flops_per_sequence(model, sequence_length) // sequence_length


def forward_flops_per_sequence(model: Model, sequence_length: int) -> int:
    """Return the FLOPs of a forward for a sequence of `sequence_length` tokens.

    Of a mixture of experts, those that a token is sent to count, and of blocks that predict further tokens all. Pairs
    attend in two products: of queries and keys, and with values.
    """
    matrices = all_used_matrices(model) + used_by_mtp(model) + model.vocab_size * model.hidden_size
    return 2 * sequence_length * matrices + _attention_flops(model, sequence_length)


def _attention_flops(model: Model, sequence_length: int) -> int:
    return _attended_flops(model, model.twice_pairs(sequence_length))


def _attended_flops(model: Model, twice_pairs: Sequence[int]) -> int:
    """FLOPs of attention with such pairs in each block; blocks that predict further tokens have those of the last."""
    pairs = sum(twice_pairs) + model.mtp_layers * twice_pairs[-1]
    return (model.query_width + model.attended_width) * pairs


def size_words(model: Model, sequence_length: int) -> str:
    """Say how large a model is; FLOPs are of a forward and a backward, without recomputation."""
    total, active = total_parameters(model), active_parameters(model)
    parts = [f"{active:,} active"] if active < total else []
    parts += [f"{mtp:,} that predict further tokens"] if (mtp := mtp_parameters(model)) else []
    of_these = f" ({', '.join(parts)})" if parts else ""
    gflops = training_flops_per_token(model, sequence_length) / 1e9
    return f"{total:,} parameters{of_these}, {gflops:,.4g} GFLOPs a token in sequences of {sequence_length:,}"


def sizes(model: Model, sequence_length: int) -> dict[str, int]:
    """Return the numbers of `size_words`, by name."""
    return {
        "parameters": total_parameters(model),
        "active_parameters": active_parameters(model),
        **({"mtp_parameters": mtp} if (mtp := mtp_parameters(model)) else {}),
        "training_flops_per_token": training_flops_per_token(model, sequence_length),
    }


def engine_words(model: Model, sequence_length: int) -> str | None:
    """Say what is not done with a model that the engine does not train, and why; None where it does."""
    features = untrained(model, sequence_length)
    return f"planned and predicted; the engine does not train {', '.join(features)}" if features else None
