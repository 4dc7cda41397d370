"""Versions of PyTorch that training refuses."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from helpers.trainings import here, tiny_workload

from kareus.artifacts.configuration import to_yaml
from kareus.errors import EngineError
from kareus.launch.torch_version import OLDEST, TOO_NEW, check_torch_version, warn_of_torch_version

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("version", ["2.11.0", "2.14.1+cu130", "2.12.0a0+git1"])
def test_a_version_that_was_tried_is_accepted(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: version)
    check_torch_version()


@pytest.mark.parametrize("version", ["2.10.2+cpu", "2.15.0", "3.0.1", "1.13.1", "unknown"])
def test_another_version_is_refused_in_one_line(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: version)
    with pytest.raises(EngineError) as refused:
        check_torch_version()
    assert str(refused.value) == (
        f"torch {version}: training uses private parts of PyTorch and needs 2.11 or newer and older than 2.15; install "
        "such a version (pip install 'torch>=2.11,<2.15')."
    )


@pytest.mark.parametrize(("version", "lines"), [("2.14.0", 0), ("2.15.0", 1), ("2.10.2+cpu", 1)])
def test_adapters_warn_of_another_version_once(
    version: str, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: version)
    warn_of_torch_version.cache_clear()
    warn_of_torch_version()
    warn_of_torch_version()
    assert len(caplog.messages) == lines
    assert all(message.startswith(f"torch {version}: adapters were tried with 2.11") for message in caplog.messages)
    warn_of_torch_version.cache_clear()


def test_training_refuses_another_version_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = tmp_path / "workload.yaml"
    workload.write_text(to_yaml(tiny_workload()))
    monkeypatch.setattr(metadata, "version", lambda _: "2.15.0")
    assert here("--workload", workload, "--iterations", 1, "--output", tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert said.startswith("kareus train: torch 2.15.0: training uses private parts of PyTorch and needs 2.11 or newer")
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_package_requires_the_same_range() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (torch,) = (line for line in required if line.startswith("torch>"))
    assert torch == f"torch>={OLDEST[0]}.{OLDEST[1]},<{TOO_NEW[0]}.{TOO_NEW[1]}"
