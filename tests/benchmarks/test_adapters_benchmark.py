"""The benchmark of what adapters cost, in a single run."""

import pytest

import adapters
from kareus.device.claims import FOLDER_VARIABLE


@pytest.mark.parametrize("name", adapters.ADAPTERS)
def test_an_adapter_is_measured_beside_the_bare_calls(name, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    monkeypatch.setattr(adapters, "RUNS", 2)
    host_s, process_s = adapters.overhead_s(adapters.ADAPTERS[name], tmp_path / name)
    assert 0 < host_s < process_s
