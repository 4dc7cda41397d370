"""Traces of structures, kept in a folder."""

import dataclasses
import json
import os
import shutil
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
from kareus.model.parallelism import Parallelism, Sharding
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


def of_content(change):
    """A sealed edit of what a file holds."""

    def damage(text):
        document = json.loads(text)
        change(document["content"])
        return json.dumps(resealed(document))

    return damage


def _last_event_gone(content):
    del content["events"][-1]


def _number_as_float(content):
    content["regions"][0][4] = float(content["regions"][0][4])


DAMAGE = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda _: "",
    "list": lambda _: "[]",
    "edited": lambda text: text.replace("mm", "bmm", 1),
    "nested too deeply": lambda _: "[" * 100_000,
    "no key": lambda text: json.dumps(resealed({"content": json.loads(text)["content"]})),
    "no content": lambda text: json.dumps(resealed({**json.loads(text), "content": 5})),
    "no products": of_content(lambda content: content["products"].clear()),
    "no regions": of_content(lambda content: content["regions"].clear()),
    "no events": of_content(lambda content: content.pop("events")),
    "a path that is none": of_content(lambda content: content["events"][0].__setitem__(0, 7)),
    "an axis that is none": of_content(lambda content: content["events"][0].__setitem__(5, "dp")),
    "an index beyond": of_content(lambda content: content["events"][0][3].append(10**6)),
    "a negative index": of_content(lambda content: content["events"][0][3].append(-1)),
    "a dimension that is none": of_content(lambda content: content["products"][-1].append("heads")),
    "a number as a float": of_content(_number_as_float),
    "the last event gone": of_content(_last_event_gone),
    "a buffer that is none": of_content(lambda content: content["lasting"].append(10**6)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_ignored_and_written_anew(damage, traced, folder):
    first = again()
    (path,) = folder.iterdir()
    whole = path.read_text()
    path.write_text(damage(whole))
    assert again() == first
    assert path.read_text() == whole
    assert len(traced) == 2


def test_a_sound_trace_under_the_name_of_another_structure_is_not_used(traced, folder):
    first = again()
    (path,) = folder.iterdir()
    other = cached_template(dataclasses.replace(PLAIN, qkv_bias=True))
    (path_of_other,) = set(folder.iterdir()) - {path}
    assert other == first  # the fixture's; what tells files apart is the key
    shutil.copy(path_of_other, path)
    assert again() == first
    assert len(traced) == 3


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
