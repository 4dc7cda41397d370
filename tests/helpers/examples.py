"""How many examples hypothesis draws where each takes long."""

from hypothesis import settings

REPEATABLE = 40
"""Examples of `make test` where a property sets no number; `conftest.py` says so to hypothesis."""


def about(examples: int) -> settings:
    """Settings of a property with so many examples in `make test`, and with more in proportion where tests explore."""
    profile = settings().max_examples
    return settings(max_examples=round(examples * profile / REPEATABLE))
