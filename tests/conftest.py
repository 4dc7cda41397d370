"""For all tests: repeatable examples, one thread, a cache of traces apart from the user's, one planned workload."""

import gc
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before NumPy and PyTorch are imported, which start their threads by it: two workers of two threads each on two cores
# spend most of their time waiting for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from helpers.default_workload import planned_once
from helpers.examples import EXPLORING, REPEATABLE
from helpers.forked_workers import fork_workers

from kareus.artifacts.cache import CACHE_VARIABLE
from kareus.processes import collect_rarely

# No example has to end within a time, since machines are noisy. Examples are the same in each run, so that a failure is
# the change's; `pytest --hypothesis-profile=exploring`, which `make acceptance` runs, draws new ones, and more of them.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=REPEATABLE)
settings.register_profile("exploring", deadline=None)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Keep traces of models where pytest keeps its own cache; processes that tests start do so too, and explore."""
    if config.getoption("--hypothesis-profile", None) == "exploring":
        os.environ[EXPLORING] = "yes"
    cache = getattr(config, "cache", None)  # absent where pytest is told to keep none
    if cache is not None:
        os.environ[CACHE_VARIABLE] = str(cache.mkdir("kareus"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Import and collect once for all workers of this machine."""
    fork_workers(config, specs)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with slow tests first, so that no worker is left with one while others have nothing to do."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what has been imported by now, a million objects that stay to the end."""
    gc.collect()
    gc.freeze()
    collect_rarely()


@pytest.fixture(scope="session")
def default_workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which the default workload is planned, which all processes of a run share: change only copies."""
    base = tmp_path_factory.getbasetemp()
    return planned_once((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "default-workload")
