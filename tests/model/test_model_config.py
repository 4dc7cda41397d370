"""What a model's record refuses."""

import pytest
from helpers.builders import small_model

from kareus.errors import ConfigError
from kareus.model.config import ActivationKind, NormKind, PositionKind


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": PositionKind.LEARNED}, "max_positions=None: expected a number; learned positions alone"),
        ({"max_positions": 8}, "max_positions=8: expected null with positions=rope"),
        ({"positions": PositionKind.LEARNED, "max_positions": 0}, "max_positions=0: must be"),
        ({"positions": PositionKind.ALIBI, "qk_norm": True}, "qk_norm=true: only with positions=rope, not with alibi"),
    ],
)
def test_positions_that_contradict_other_keys_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small_model(**changes)


def test_only_gates_double_the_first_product() -> None:
    assert {kind: small_model(activation=kind).mlp_input_width // 48 for kind in ActivationKind} == {
        ActivationKind.SWIGLU: 2,
        ActivationKind.GEGLU: 2,
        ActivationKind.GEGLU_TANH: 2,
        ActivationKind.RELU: 1,
        ActivationKind.GELU: 1,
        ActivationKind.GELU_TANH: 1,
        ActivationKind.SQUARED_RELU: 1,
    }


def test_biases_are_those_of_projections_and_of_layernorm() -> None:
    assert small_model(qkv_bias=True).has_qkv_bias
    assert small_model(biases=True).has_qkv_bias
    assert not small_model(biases=True).has_norm_bias
    assert small_model(biases=True, norm=NormKind.LAYERNORM).has_norm_bias
    assert not small_model(norm=NormKind.LAYERNORM).has_norm_bias
