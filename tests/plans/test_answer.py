"""What a plan is said to save, and which limits limit nothing."""

import polars as pl
import pytest

from kareus.plans.answer import Answer, no_limit
from kareus.plans.selectors import parse_selector

PLANS = pl.DataFrame({"time_s": [4.0, 5.0], "energy_j": [20e3, 15e3]})


def answer(time_s, energy_j, method="kareus"):
    return Answer(
        selector="deadline=5s",
        method=method,
        time_s=time_s,
        energy_j=energy_j,
        baseline_time_s=5.0,
        baseline_energy_j=20e3,
    )


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            answer(4.5, 15e3),
            "plan deadline=5s: 10 % less time and 25 % less energy than the trainer's own execution: 4.500 s and "
            "15.00 kJ an iteration instead of 5.000 s and 20.00 kJ",
        ),
        (
            answer(6.0, 19e3, "sequential+perseus"),
            "plan deadline=5s of sequential+perseus: 20 % more time and 5.0 % less energy than the trainer's own "
            "execution: 6.000 s and 19.00 kJ an iteration instead of 5.000 s and 20.00 kJ",
        ),
        (
            answer(5.0001, 15e3),
            "plan deadline=5s: 25 % less energy than the trainer's own execution in the same time: 5.000 s and 15.00 "
            "kJ an iteration instead of 5.000 s and 20.00 kJ",
        ),
        (
            answer(5.0001, 19.999e3),
            "plan deadline=5s: the same time and energy as the trainer's own execution: 5.000 s and 20.00 "
            "kJ an iteration instead of 5.000 s and 20.00 kJ",
        ),
    ],
)
def test_savings_are_said_in_one_sentence(found, sentence):
    assert found.sentence() == sentence


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (
            "deadline=5.2s",
            "deadline: 5.2 s lies beyond the frontier, whose slowest plan has 5 s; any deadline from there on gives "
            "the plan of `min-energy`",
        ),
        (
            "straggler=2x",
            "straggler: 8 s lies beyond the frontier, whose slowest plan has 5 s; any straggler from there on gives "
            "the plan of `min-energy`",
        ),
        (
            "energy=21kJ",
            "energy: 21 kJ lies beyond the frontier, whose fastest plan has 20 kJ; any energy from there on gives "
            "the plan of `straggler=1x`",
        ),
        ("deadline=5s", None),
        ("deadline=4.5s", None),
        ("energy=20kJ", None),
        ("power=4kW", None),
        ("fastest", None),
        ("cost=1perkWh", None),
    ],
)
def test_a_limit_beyond_the_frontier_is_told(selector, said):
    assert no_limit(parse_selector(selector), PLANS) == said
