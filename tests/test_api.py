"""The package from Python: what it offers, what it imports, and what it returns."""

import importlib.util
import json
import subprocess
import sys

import pytest
from helpers.builders import CONFIG

import kareus
from kareus.errors import ArtifactError, ConfigError, RefusedWorkloadError
from kareus.evidence import shipped_files
from kareus.workload.resolve import resolve_accepted

HEAVY = ["hydra", "numpy", "omegaconf", "polars", "pyarrow", "scipy", "torch", "yaml"]


def printed(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_importing_the_package_imports_nothing_heavy():
    script = f"import kareus, json, sys; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    assert printed(script) == []


def test_every_public_name_is_there():
    assert set(kareus.__all__) <= set(dir(kareus))
    assert all(getattr(kareus, name) for name in kareus.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'unknown'"):
        kareus.unknown  # noqa: B018


@pytest.mark.parametrize("name", [name for name in kareus.__all__ if name != "__version__"])
def test_no_module_replaces_a_public_function(name):
    """Importing `kareus.advise`, were it a module, would bind that name in the package to it."""
    assert importlib.util.find_spec(f"kareus.{name}") is None


def test_advice_may_be_asked_for_twice():
    for _ in range(2):
        with pytest.raises(ConfigError, match="must be from 1 to"):
            kareus.advise([], gpus=0, global_batch=1, config_dir=CONFIG)


def test_a_sweep_resolves_to_its_workloads():
    overrides = ["parallelism=tp8,cp2tp4", "microbatch_size=8,16"]
    found = kareus.resolve(overrides, CONFIG)
    assert found == list(resolve_accepted(overrides, CONFIG).values())
    assert [(w.parallelism.cp, w.microbatch_size) for w in found] == [(1, 8), (2, 8), (2, 16)]  # (1, 16) does not fit


def test_measured_iterations_are_predicted_as_any_workload():
    found = list(kareus.measured_iterations(shipped_files()["training_iterations"], config_dir=CONFIG))
    assert len(found) == 884
    workload, row = next(pair for pair in found if pair[1].family == "dgxc")
    assert (workload.software.name, workload.parallelism.gpus) == ("megatron-core", row.gpus)
    assert kareus.predict(workload).time_s == pytest.approx(row.iteration_time_s, rel=0.3)


def test_what_cannot_run_is_left_out_or_refused():
    (only,) = kareus.resolve(["microbatch_size=8,64"], CONFIG)
    assert only.microbatch_size == 8
    with pytest.raises(RefusedWorkloadError, match="out of memory"):
        kareus.resolve(["microbatch_size=64"], CONFIG)


def test_unknown_keys_and_folders_are_errors(tmp_path):
    with pytest.raises(ConfigError, match="microbatch_size"):
        kareus.resolve(["microbatch_sise=8"], CONFIG)
    with pytest.raises(ConfigError, match="not a configuration folder"):
        kareus.resolve([], tmp_path)


def test_the_configuration_of_the_current_folder_is_the_default(monkeypatch):
    monkeypatch.chdir(CONFIG.parent)
    assert kareus.resolve() == kareus.resolve([], CONFIG)


def test_arguments_of_another_kind_are_errors():
    with pytest.raises(ConfigError, match=r"must be a list, such as \['seed=1'\]"):
        kareus.resolve("seed=1", CONFIG)
    workloads = kareus.resolve([], CONFIG)
    for function in (kareus.predict, kareus.plan, kareus.frontier):
        with pytest.raises(ConfigError, match="is a list; must be one Workload"):
            function(workloads)


def test_unknown_methods_are_refused_before_planning(monkeypatch):
    monkeypatch.setattr("kareus.plans.planning.plan_tables", None)
    (workload,) = kareus.resolve([], CONFIG)
    with pytest.raises(ConfigError, match="method='perseus': not known"):
        kareus.plan(workload, method="perseus")


def test_a_workload_is_predicted():
    (workload,) = kareus.resolve([], CONFIG)
    assert kareus.predict(workload).time_s > kareus.predict(workload, "nanobatching").time_s > 0


@pytest.mark.slow
def test_a_known_structure_is_predicted_without_torch():
    kareus.predict(*kareus.resolve([], CONFIG))
    script = f"import kareus, json, sys; kareus.predict(*kareus.resolve([], {str(CONFIG)!r})); "
    assert printed(script + "print(json.dumps('torch' in sys.modules))") is False


def test_a_plan_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(ArtifactError, match="cannot be read"):
        kareus.load_plan(str(tmp_path / "fastest.json"))
