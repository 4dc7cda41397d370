"""Settings for all tests: repeatable examples, and a cache of traces apart from the user's."""

import os

import pytest
from hypothesis import settings

from kareus.artifacts.cache import CACHE_VARIABLE

# No example has to end within a time, since machines are noisy. Examples are the same in each run, so that a failure is
# the change's; `pytest --hypothesis-profile=exploring`, which `make acceptance` runs, draws new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("exploring", deadline=None)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Keep traces of models where pytest keeps its own cache; commands that tests start do so too."""
    cache = getattr(config, "cache", None)  # absent where pytest is told to keep none
    if cache is not None:
        os.environ[CACHE_VARIABLE] = str(cache.mkdir("kareus"))
