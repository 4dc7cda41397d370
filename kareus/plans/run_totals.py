"""What a whole training run takes at one plan: iterations, hours, energy, and its cost where prices are given."""

import math

from kareus.errors import ConfigError
from kareus.plans.document import PredictedCost
from kareus.plans.selectors import JOULES_PER_KWH, SECONDS_PER_HOUR, Prices
from kareus.workload.config import Workload
from kareus.workload.model_flops import tokens_per_iteration

MOST_TOKENS = 1e18
"""Of a run: a hundred thousand times what the largest models of today see."""


def check_tokens(tokens: float) -> None:
    """Check what was asked for, before anything is written.

    Raises:
        ConfigError: the number of tokens is not positive.
    """
    if not 0 < tokens < math.inf:
        raise ConfigError(f"--tokens {tokens:g}: must be a positive number, such as 15e12.")
    if not 1 <= tokens <= MOST_TOKENS:
        raise ConfigError(f"--tokens {tokens:g}: must be from 1 to {MOST_TOKENS:g}, such as 15e12.")


def run_totals(prediction: PredictedCost, workload: Workload, tokens: float, prices: Prices | None) -> str:
    """One line for people. More tokens scale every number and change no choice of a plan.

    Args:
        prediction: of one iteration.
        workload: what is trained.
        tokens: of the whole run, a positive number; the last iteration may be a part of one.
        prices: of the selector `cost`.
    """
    iterations = tokens / tokens_per_iteration(workload)
    time_s, energy_j = iterations * prediction.time_s, iterations * prediction.energy_j
    said = (
        f"{tokens:,.0f} tokens: {iterations:,.0f} iterations, {time_s / SECONDS_PER_HOUR:,.1f} h on "
        f"{workload.parallelism.gpus} GPUs, {energy_j / JOULES_PER_KWH:,.1f} kWh"
    )
    if prices is None:
        return said
    return f"{said}, cost {prices.cost(time_s, energy_j, workload.parallelism.gpus):,.2f}"
