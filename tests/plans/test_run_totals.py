"""What a whole run takes, by sums done by hand."""

import dataclasses
import re

import pytest
from helpers.builders import CONFIG

from kareus.errors import ConfigError
from kareus.plans.answer import Answer
from kareus.plans.document import PredictedCost
from kareus.plans.run_totals import check_tokens, run_savings, run_totals
from kareus.plans.selectors import Prices
from kareus.workload.model_flops import tokens_per_iteration
from kareus.workload.resolve import resolve_accepted

ITERATION = PredictedCost(time_s=36.0, energy_j=7.2e6, static_energy_j=3e6, dynamic_energy_j=4.2e6, lower_bound_j=7e6)
"""A hundredth of an hour and 2 kWh."""


def workload(**parallelism):
    """2 stages on 8 GPUs each; 4 microbatches of 8 sequences of 4,096 tokens: 131,072 tokens an iteration."""
    (own,) = resolve_accepted(["parallelism=tp8", "num_microbatches=4"], CONFIG).values()
    own = dataclasses.replace(own, microbatch_size=8, sequence_length=4096)
    return dataclasses.replace(own, parallelism=dataclasses.replace(own.parallelism, **parallelism))


def test_every_replica_trains_on_its_own_tokens():
    assert tokens_per_iteration(workload()) == 131_072
    assert tokens_per_iteration(workload(dp=3)) == 3 * 131_072


def test_a_run_takes_its_iterations_hours_and_energy():
    said = run_totals(ITERATION, workload(), 1250 * 131_072, None)
    assert said == "163,840,000 tokens: 1,250 iterations, 12.5 h on 16 GPUs, 2.50 MWh"


def test_a_part_of_an_iteration_takes_its_part():
    said = run_totals(ITERATION, workload(), 25.5 * 131_072, None)
    assert said.endswith("0.26 h on 16 GPUs, 51.0 kWh")


def test_replicas_share_the_iterations_of_a_run():
    said = run_totals(ITERATION, workload(dp=2), 1250 * 131_072, None)
    assert said == "163,840,000 tokens: 625 iterations, 6.25 h on 32 GPUs, 1.25 MWh"


@pytest.mark.parametrize(
    ("prices", "cost"),
    [(Prices(0.1, 0.0), "250.00"), (Prices(0.0, 2.5), "500.00"), (Prices(0.1, 2.5), "750.00")],
)
def test_a_run_costs_its_energy_and_its_gpu_hours(prices, cost):
    """2,500 kWh, and 12.5 h of 16 GPUs."""
    said = run_totals(ITERATION, workload(), 1250 * 131_072, prices)
    assert said.endswith(f"2.50 MWh, cost {cost}")


def test_a_run_saves_against_the_baseline():
    """A baseline of 45 s and 9 MJ takes a quarter more of both than the plan's 36 s and 7.2 MJ."""
    answer = Answer(
        selector="fastest", method="kareus", time_s=36.0, energy_j=7.2e6, baseline_time_s=45.0, baseline_energy_j=9e6
    )
    said = run_savings(answer, workload(), 1250 * 131_072, Prices(0.1, 2.5))
    assert said == "that is 3.12 h less, 625 kWh less, cost 187.50 less than the trainer's own execution"
    slower = dataclasses.replace(answer, time_s=54.0)
    assert run_savings(slower, workload(), 1250 * 131_072, None).startswith("that is 3.12 h more, 625 kWh less than")


@pytest.mark.parametrize("tokens", [0.0, -1.0, float("inf"), float("nan")])
def test_a_run_of_no_number_of_tokens_is_refused(tokens):
    with pytest.raises(ConfigError, match=re.escape(f"--tokens {tokens:g}: must be a positive number")):
        check_tokens(tokens)


@pytest.mark.parametrize("tokens", [0.5, 1.1e18])
def test_a_run_of_no_or_countless_tokens_is_refused(tokens):
    with pytest.raises(ConfigError, match=re.escape(f"--tokens {tokens:g}: must be from 1 to 1e+18")):
        check_tokens(tokens)


def test_a_run_may_have_one_token_or_very_many():
    for tokens in (1.0, 15e12, 1e18):
        check_tokens(tokens)
