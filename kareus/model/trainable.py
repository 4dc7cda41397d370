"""Which models the engine trains: those whose features it was shown to compute as transformers does.

Plans and predictions serve all models. Nothing here imports torch.
"""

from collections.abc import Iterator

from kareus.artifacts.records import added_fields
from kareus.model.config import ActivationKind, Model
from kareus.model.features import AngleScaling, AngleStretch

TRAINED = frozenset({"checkpoint"})
"""Fields with the metadata `ADDED` that the engine computes, whatever they are."""
OF_WINDOWS = ("window_tokens", "windowed_layers")
"""Fields that mean nothing where the window is as long as the sequence."""
UNTRAINED_ACTIVATIONS = (ActivationKind.RELU, ActivationKind.GEGLU, ActivationKind.GEGLU_TANH)


def untrained(model: Model, sequence_length: int) -> tuple[str, ...]:
    """Return the features of a model that the engine does not compute; none if it trains it on such sequences."""
    return tuple(_untrained(model, sequence_length))


def _untrained(model: Model, sequence_length: int) -> Iterator[str]:
    masks = min(model.layer_windows(sequence_length)) < sequence_length
    for name in added_fields(model):
        if name not in TRAINED and (masks or name not in OF_WINDOWS):
            value = getattr(model, name)
            yield (
                name
                if isinstance(value, tuple)
                else f"{name}={value:g}"
                if isinstance(value, float)
                else f"{name}={value}"
            )
    if model.activation in UNTRAINED_ACTIVATIONS:
        yield f"activation={model.activation}"
    scaling = model.rotary_scaling
    if isinstance(scaling, AngleScaling) and scaling.stretch is not AngleStretch.LINEAR:
        yield f"rotary_scaling.stretch={scaling.stretch}"
