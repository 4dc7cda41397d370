"""Totals of a whole training run at one plan, and what it saves: time, energy, and cost where prices are given."""

import math
from typing import Protocol

from kareus.errors import ConfigError
from kareus.plans.answer import BASELINE, Answer
from kareus.plans.selectors import Prices
from kareus.plans.units import SECONDS_PER_HOUR, duration, money, scaled
from kareus.workload.config import Workload
from kareus.workload.model_flops import tokens_per_iteration

MOST_TOKENS = 1e18
"""Of a run: a hundred thousand times what the largest models of today see."""


class IterationCost(Protocol):
    """Time and energy of one iteration on all GPUs."""

    @property
    def time_s(self) -> float:
        """Its time."""

    @property
    def energy_j(self) -> float:
        """Its energy."""


def check_tokens(tokens: float) -> None:
    """Check what was asked for, before anything is written.

    Raises:
        ConfigError: the number of tokens is not positive.
    """
    if not 0 < tokens < math.inf:
        raise ConfigError(f"--tokens {tokens:g}: must be a positive number, such as 15e12.")
    if not 1 <= tokens <= MOST_TOKENS:
        raise ConfigError(f"--tokens {tokens:g}: must be from 1 to {MOST_TOKENS:g}, such as 15e12.")


def run_totals(iteration: IterationCost, workload: Workload, tokens: float, prices: Prices | None) -> str:
    """Return what a run takes, in one line. More tokens scale every number and change no choice of a plan.

    Args:
        iteration: predicted cost of one iteration.
        workload: what is trained.
        tokens: of the whole run, a positive number; the last iteration may be a part of one.
        prices: of the selector `cost`.
    """
    iterations = tokens / tokens_per_iteration(workload)
    gpus = workload.parallelism.gpus
    time_s, energy_j = iterations * iteration.time_s, iterations * iteration.energy_j
    cost = "" if prices is None else f", cost {money(prices.cost(time_s, energy_j, gpus), prices.currency)}"
    return (
        f"{tokens:,.0f} tokens: {iterations:,.0f} iterations, {duration(time_s)} on {gpus} GPUs, "
        f"{_energy(energy_j)}{cost}"
    )


def run_savings(answer: Answer, workload: Workload, tokens: float, prices: Prices | None) -> str:
    """Return what a run saves against the baseline of `answer`, in one line.

    Args:
        answer: the plan and the baseline, of one iteration.
        workload: what is trained.
        tokens: of the whole run.
        prices: of the selector `cost`.
    """
    iterations = tokens / tokens_per_iteration(workload)
    time_s = iterations * (answer.baseline_time_s - answer.time_s)
    energy_j = iterations * (answer.baseline_energy_j - answer.energy_j)
    parts = [f"{duration(abs(time_s))} {_less(time_s)}", f"{_energy(abs(energy_j))} {_less(energy_j)}"]
    if prices is not None:
        cost = prices.cost(time_s, energy_j, workload.parallelism.gpus)
        parts.append(f"cost {money(abs(cost), prices.currency)} {_less(cost)}")
    return f"that is {', '.join(parts)} than {BASELINE}"


def _energy(energy_j: float) -> str:
    return scaled(energy_j / SECONDS_PER_HOUR, "Wh")


def _less(saved: float) -> str:
    return "less" if saved >= 0 else "more"
