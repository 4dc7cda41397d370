"""Words on a model beside a workload: its parameters, its FLOPs a token, and whether the engine trains it."""

from kareus.model.config import Model
from kareus.model.parameters import active_parameters, total_parameters
from kareus.model.trainable import untrained
from kareus.workload.model_flops import training_flops_per_token


def size_words(model: Model, sequence_length: int) -> str:
    """Say how large a model is; FLOPs are of a forward and a backward, without recomputation."""
    total, active = total_parameters(model), active_parameters(model)
    used = "all active" if active == total else f"{active:,} active"
    gflops = training_flops_per_token(model, sequence_length) / 1e9
    return f"{total:,} parameters ({used}), {gflops:,.4g} GFLOPs a token of {sequence_length:,}"


def sizes(model: Model, sequence_length: int) -> dict[str, int]:
    """Return the numbers of `size_words`, by name."""
    return {
        "parameters": total_parameters(model),
        "active_parameters": active_parameters(model),
        "training_flops_per_token": training_flops_per_token(model, sequence_length),
    }


def engine_words(model: Model, sequence_length: int) -> str | None:
    """Say what is not done with a model that the engine does not train, and why; None where it does."""
    features = untrained(model, sequence_length)
    return f"planned and predicted; the engine does not train {', '.join(features)}" if features else None
