"""Fits of experts' numbers: rows that a software made itself are met, and a model left out does not tell."""

import re
from typing import Any

import numpy as np
import pytest
from helpers.builders import CONFIG

from kareus.calibrate import expert_fit
from kareus.calibrate.expert_fit import fit_experts
from kareus.calibrate.software_fit import IterationData
from kareus.prediction.errors import EXPERTS, error_of, error_words, models_of, numbers_for, pair_error, time_percent
from kareus.workload.compose import compose


class Row:
    def __init__(self, architecture: str, time_s: float) -> None:
        self.architecture, self.iteration_time_s = architecture, time_s


def made(monkeypatch: pytest.MonkeyPatch, times_s: Any) -> IterationData:
    """Rows of two models, whose predicted time is a product of the numbers and of what the model is."""

    def errors(data: Any, values: Any) -> Any:
        own = [workload[1] * values["expert_imbalance"] + values["expert_kernels"] / 100 for workload in data.workloads]
        return np.log(own / np.array([row.iteration_time_s for row in data.rows]))

    monkeypatch.setattr(expert_fit, "errors", errors)
    workloads: list[Any] = [("a", 10.0), ("a", 10.0), ("b", 30.0)]
    rows: list[Any] = [Row(name, time_s) for (name, _), time_s in zip(workloads, times_s, strict=True)]
    return IterationData(rows, workloads)


def test_numbers_that_made_the_rows_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, inside, outside = fit_experts(made(monkeypatch, [14.0, 14.0, 38.0]))
    assert numbers == {"expert_imbalance": 1.2, "expert_kernels": 200}
    assert inside == pytest.approx(np.zeros(3), abs=1e-12)
    assert outside[2] != 0  # other numbers make the rows of the first model alone, too


def test_rows_that_ran_the_same_keep_their_own_times(monkeypatch: pytest.MonkeyPatch) -> None:
    _, inside, _ = fit_experts(made(monkeypatch, [14.0, 7.0, 38.0]))
    assert inside[1] - inside[0] == pytest.approx(np.log(2))


def test_experts_have_errors_of_their_own_that_their_numbers_name() -> None:
    given = ["gpu=h100-sxm5-80gb", "software=megatron-core"]
    experts, other, dense = (
        compose([*given, *more], CONFIG)[0].workload
        for more in (["model=mixtral-8x7b"], ["model=mixtral-8x7b", "software.expert_kernels=1"], [])
    )
    pair = error_of(experts)
    assert pair is not None
    assert (pair.models, pair.precision, pair.made_for) == (EXPERTS, "bf16", numbers_for(experts))
    within = (
        f"9 of 10 measured iterations are within {pair.percent_90:g} % of time ({pair.rows} of Megatron-Core in bf16 "
        "with experts on this GPU, their models left out of the fit)"
    )
    assert error_words(experts).startswith(within)
    assert error_of(other) is None
    unlike = f"take {time_percent(other):g} % of time (never measured with software.expert_kernels="
    measured = f"9 of 10 measured iterations are within {pair.percent_90:g} %"
    unusual = r"\S+ \(usual: \S+\); with the usual settings "
    assert re.match(re.escape(unlike) + unusual + re.escape(measured), error_words(other))
    (engines,) = compose([*given, "model=mixtral-8x7b", "software.loss_kernels=engine"], CONFIG)
    assert "(never measured without --cross-entropy-fusion-impl te" in error_words(engines.workload)
    assert numbers_for(dense) == numbers_for(compose([*given, "software.expert_kernels=1"], CONFIG)[0].workload)
    again = pair_error(experts, np.log([1.1, 0.9]), ["a", "b"], [experts.parallelism] * 2)
    assert (again.models, again.rows, models_of(dense)) == (EXPERTS, 2, "dense")
