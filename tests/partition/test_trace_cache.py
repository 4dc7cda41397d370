"""Traces of structures, kept in a folder."""

import json
import os
import subprocess
import sys
from functools import partial

import pytest
from helpers.builders import CONFIG, resealed

import kareus
from kareus.artifacts.cache import CACHE_VARIABLE, cache_folder
from kareus.partition import trace_cache
from kareus.partition.stage import TRACING, modules_of
from kareus.partition.structure import Structure, dimensions_of, structure_of
from kareus.partition.trace_cache import cached_template
from kareus.workload.slices import slice_text

PLAIN = Structure(qk_norm=False, qkv_bias=False, tensor_parallel=True, cp=1, ones=())
EXTRACT = """
import sys
from helpers.builders import small_model
from kareus.model.config import Parallelism, Sharding
from kareus.partition.extract import extract
parallelism = Parallelism(
    dp=1, pp=1, tp=2, cp=1, layers_per_stage=(2,), sharding=Sharding.NONE, sequence_parallel=False
)
extract(small_model(num_key_value_heads=4), parallelism, 4, 16)
print("torch" in sys.modules)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    cached_template.cache_clear()
    yield tmp_path / "cache" / "traces"
    cached_template.cache_clear()


@pytest.fixture
def traced(monkeypatch):
    """Structures that were traced, each with a template of another process."""
    known, asked = cached_template(PLAIN), []
    monkeypatch.setattr(trace_cache, "_traced", lambda structure: asked.append(structure) or known)
    return asked


def again():
    cached_template.cache_clear()
    return cached_template(PLAIN)


def test_a_structure_is_traced_once_for_all_processes(traced, folder):
    first = again()
    assert again() == first
    assert traced == [PLAIN]
    assert len(list(folder.iterdir())) == 1


def test_another_version_of_torch_or_the_code_traces_anew(traced, folder, monkeypatch):
    again()
    monkeypatch.setattr(trace_cache.metadata, "version", lambda _: "3.0.0")
    again()
    monkeypatch.setattr(trace_cache, "code_of", lambda _: "edited")
    again()
    assert len(traced) == len(list(folder.iterdir())) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "",
        lambda _: "[]",
        lambda text: text.replace("mm", "bmm", 1),
        lambda text: json.dumps(resealed({**json.loads(text), "products": []})),
        lambda text: json.dumps(resealed({"events": 1})),
    ],
    ids=["cut", "empty", "list", "edited", "without-products", "without-events"],
)
def test_a_damaged_file_is_ignored_and_written_anew(damage, traced, folder):
    first = again()
    (path,) = folder.iterdir()
    whole = path.read_text()
    path.write_text(damage(whole))
    assert again() == first
    assert path.read_text() == whole
    assert len(traced) == 2


def test_bytes_that_are_no_text_are_ignored(traced, folder):
    again()
    (path,) = folder.iterdir()
    path.write_bytes(b"\xff\xfe")
    again()
    assert len(traced) == 2


def test_a_folder_that_cannot_be_written_costs_only_time(traced, folder):
    folder.parent.mkdir()
    folder.write_text("a file where the folder would be")
    first = again()
    assert again() == first
    assert len(traced) == 2


def test_without_a_folder_each_process_traces(traced, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    for name in (CACHE_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(trace_cache.Path, "home", no_home)
    assert cache_folder() is None
    assert again() == again()
    assert len(traced) == 2
    cached_template.cache_clear()


@pytest.mark.slow
def test_a_cached_structure_is_extracted_without_torch(folder):
    command, paths = [sys.executable, "-c", EXTRACT], os.pathsep.join(sys.path)
    run = partial(subprocess.run, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": paths})
    printed = [run(command).stdout.strip() for _ in range(2)]
    assert printed == ["True", "False"]


@pytest.mark.parametrize("microbatch_size", [8, 2])
def test_a_fork_server_imports_torch_for_what_is_not_traced_yet(folder, traced, tmp_path, microbatch_size):
    """Half a microbatch of two is one sequence, whose structure is another."""
    (workload,) = kareus.resolve(["model=qwen3-1.7b", f"microbatch_size={microbatch_size}"], CONFIG)
    own = workload.model, workload.parallelism
    path = tmp_path / "partition.yaml"
    path.write_text(slice_text(workload, "partition"))
    command = ["stage", "partition", "--config", str(path), "--segments", "a.parquet", "--partitions", "b.parquet"]
    sizes = (microbatch_size, microbatch_size // 2)
    dimensions = [dimensions_of(*own, size, workload.sequence_length) for size in sizes]
    structures = {structure_of(*own, each) for each in dimensions}
    assert len(structures) == (2 if microbatch_size == 2 else 1)
    for structure in structures:
        assert modules_of(command) == TRACING
        cached_template(structure)
    assert modules_of(command) == ()
