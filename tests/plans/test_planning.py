"""Planning in one process: that it computes as jobs of the workflow do."""

from types import SimpleNamespace

import numpy as np  # noqa: F401 - brings the library whose threads are counted
from threadpoolctl import threadpool_info, threadpool_limits

from kareus.plans import planning


def test_linear_algebra_has_one_thread(monkeypatch):
    def threads(*_workload_and_methods):
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    monkeypatch.setattr(planning, "_tables", threads)
    simulated = SimpleNamespace(testbed=SimpleNamespace(kind=planning.TestbedKind.SIMULATED))
    with threadpool_limits(limits=2):
        before = threads(None)
        assert set(before) == {2}
        assert set(planning.plan_tables(simulated)) == {1}
        assert threads(None) == before
