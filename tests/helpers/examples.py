"""How many examples hypothesis draws where each takes long."""

import os

from hypothesis import HealthCheck, settings

EXPLORING = "KAREUS_TESTS_EXPLORE"
"""Environment variable that is there if the profile of hypothesis is `exploring`: other processes know it by that."""
REPEATABLE = 30
"""Examples of `make test` where a property sets no number; `conftest.py` says so to hypothesis."""


def about(examples: int) -> settings:
    """Settings of a property with so many examples in `make test`, and with more in proportion where tests explore."""
    profile = settings().max_examples
    return settings(max_examples=round(examples * profile / REPEATABLE))


def drawn(examples: int) -> settings:
    """Settings of a property that is checked in processes of its own, for which no `conftest.py` sets a profile.

    Ranks that check one together all draw the same examples, and fail where any of them does. What their environment
    inherits says whether `make acceptance` explores, with four times as many examples.
    """
    return settings(
        max_examples=examples if EXPLORING in os.environ else -(-examples // 4),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
