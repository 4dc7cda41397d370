"""Tokens/s, J/token and MFU against what the GPU model finds in the operator graph."""

import pytest
from helpers.builders import CONFIG

from kareus.plans.throughput import throughput
from kareus.prediction.workload_prediction import predict
from kareus.workload.resolve import resolve_accepted


@pytest.mark.parametrize("overrides", [[], ["model=qwen3-1.7b", "parallelism=cp2tp4", "sequence_length=8192"]])
def test_throughput_is_that_of_the_operator_graph(overrides):
    (workload,) = resolve_accepted(overrides, CONFIG).values()
    predicted = predict(workload)
    found = throughput(workload, predicted.time_s, predicted.energy_j)
    assert found.tokens_per_s == pytest.approx(predicted.tokens_per_s)
    assert found.joules_per_token == pytest.approx(predicted.joules_per_token)
    assert found.mfu == pytest.approx(predicted.mfu)
