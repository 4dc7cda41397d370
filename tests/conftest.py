"""Settings for all tests: noisy machines, and a cache of traces apart from the user's."""

import os

import pytest
from hypothesis import settings

from kareus.partition.trace_cache import CACHE_VARIABLE

settings.register_profile("noisy machine", deadline=None)  # no example has to end within a time
settings.load_profile("noisy machine")


def pytest_configure(config: pytest.Config) -> None:
    """Keep traces of models where pytest keeps its own cache; commands that tests start do so too."""
    cache = getattr(config, "cache", None)  # absent where pytest is told to keep none
    if cache is not None:
        os.environ[CACHE_VARIABLE] = str(cache.mkdir("kareus"))
