"""Spoilt inputs of commands: each is refused in one line or read, and from a sealed file what was written is read.

Plan files, journals and checkpoints are spoilt in `tests/plans`, `tests/artifacts` and `tests/training`.
"""

import gzip
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from helpers.builders import CONFIG
from helpers.examples import about
from helpers.judged import judged
from helpers.mutations import hostile_texts, spoilt, spoilt_csv, spoilt_json
from helpers.planned import SMALL, planned_folder
from hypothesis import given
from hypothesis import strategies as st

from kareus import open_results
from kareus.errors import KareusError
from kareus.plans.file import read_plan
from kareus.workload.overrides import groups, options

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1800)]

MOST_MEMORY = 16 * 2**30
"""Addresses: an absurd number ends in an error instead of taking the machine's memory."""
PLAIN = (
    "model=qwen3-1.7b", "parallelism=tp8,cp2tp4", "microbatch_size=range(2,8,2)", "memory_reserve_gib=4.5",
    "parallelism.layers_per_stage=[14,14]", "search=glob(*)", "seed=choice(1,2)", "pipeline=interleaved",
    "gpu.search_frequencies={minimum_mhz:900,maximum_mhz:1410,stride_mhz:30}", "pipeline.chunks=2",
    *(f"{group}={option}" for group in groups() for option in options(group, CONFIG)),
)  # fmt: skip
"""Overrides that are right."""
KEYS = (
    "microbatch_size", "num_microbatches", "sequence_length", "recomputation", "seed", "memory_reserve_gib",
    "model.name", "model.hidden_size", "model.num_layers", "model.num_attention_heads", "model.vocab_size",
    "model.norm_epsilon", "model.rotary_base", "model.rotary_scaling", "model.layers_per_stage", "parallelism.dp",
    "parallelism.pp", "parallelism.tp", "parallelism.cp", "parallelism.layers_per_stage", "gpu.name", "gpu.memory_gib",
    "gpu.gpus_per_node", "gpu.sm_count", "gpu.static_power_w", "gpu.search_frequencies.stride_mhz",
    "gpu.search_frequencies.minimum_mhz", "testbed.time_noise", "testbed.kind", "testbed.cuda", "protocol.window_s",
    "protocol.cooldown_s", "space.sm_max", "space.sm_stride", "search.draws", "search.most", "search.enough",
    "pipeline.schedule", "pipeline.chunks", "pipeline.deadlines", "search", "model", "gpu", "testbed",
)  # fmt: skip
"""Keys whose values are drawn; most exist."""
PUBLISHED = Path(__file__).parents[1] / "cases/hf"
FORMS = ("{}", "[{}]", "{{a:{}}}", "'{}'", "range({},9)", "{0},{0}1")
COLUMNS = "model,cp,tp,pp,num_microbatches,microbatch_size,seq_len"
WORKLOAD = "qwen3-1.7b,1,8,2,2,2,4096"
FRONTIERS = (
    f"{COLUMNS},method,point,iteration_time_s,total_energy_j,stage0_mhz,stage1_mhz\n"
    f"{WORKLOAD},sequential,0,0.9,500,F1410;F1410;B1410;B1410,F1410;B1410;F1410;B1410\n"
    f"{WORKLOAD},sequential,1,1.1,450,,\n"
)
REDUCTIONS = (
    f"{COLUMNS},table,metric,sequential+perseus,nanobatching+perseus,kareus\n"
    f"{WORKLOAD},end_to_end,time_reduction_pct,0.1,2.3,6.5\n"
)
PRICES = "hour,price_per_kwh\n0,0.12\n1,0.30\n2,-0.01\n3,0.05\n"
FLEET = (
    *("model=qwen3-1.7b", "parallelism=tp8", "model.num_layers=4", "model.vocab_size=8192", "search=random"),
    *(f"search.{size}.{key}" for size in ("medium", "large") for key in ("initial=6", "max_rounds=0")),
    *("gpu.search_frequencies.stride_mhz=510", "pipeline.deadlines=2", "parallelism.layers_per_stage=[2,2]"),
    *("microbatch_size=2", "emulation.pipelines=2", "emulation.num_microbatches=2", "emulation.deadlines=2"),
    *("emulation.stragglers=[]", "emulation.power_caps=[]"),
)
"""A fleet that is emulated within a second."""
TABLES = {"microbatch": "frontier", "iteration": "pipeline", "segments": "partition", "space": "schedule"}
"""Names of tables, and where they are."""


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, whose file is spoilt again and again."""
    folder, before = tmp_path_factory.mktemp("fuzzed"), Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def odd_overrides() -> st.SearchStrategy[str]:
    plain = st.sampled_from(PLAIN)
    valued = st.builds(
        lambda key, form, text: f"{key}={form.format(text)}", *map(st.sampled_from, (KEYS, FORMS)), hostile_texts
    )
    mutated = plain.flatmap(lambda text: spoilt(text.encode())).map(lambda text: text.decode(errors="replace")[:20_000])
    return plain | valued | mutated


@about(400)
@given(texts=st.lists(odd_overrides(), min_size=1, max_size=3))
def test_spoilt_overrides_are_refused_or_resolved(place: Path, texts: list[str]) -> None:
    judged("resolve", *texts)


def configurations() -> st.SearchStrategy[bytes]:
    published = [json.loads(path.read_text()) for path in sorted(PUBLISHED.rglob("*.json"))]
    return st.sampled_from(published).flatmap(lambda config: spoilt_json(config) | spoilt_json(config).flatmap(spoilt))


@about(300)
@given(content=configurations())
def test_spoilt_configurations_of_models_are_refused_or_read(place: Path, content: bytes) -> None:
    (place / "config.json").write_bytes(content)
    judged("resolve", "model=config.json", "microbatch_size=2")


def rows_of(text: str) -> st.SearchStrategy[bytes]:
    return spoilt_csv(text) | spoilt(text.encode())


@about(200)
@given(
    content=rows_of(FRONTIERS) | rows_of(REDUCTIONS),
    words=st.sampled_from((["validate"], ["validate", "--json"], ["fit"])),
)
def test_spoilt_measurements_are_refused_or_compared(place: Path, content: bytes, words: list[str]) -> None:
    (place / "reference.csv").write_bytes(content)
    judged(*words, "--reference", "reference.csv")


@about(100)
@given(content=spoilt(gzip.compress(FRONTIERS.encode(), mtime=0)))
def test_spoilt_compressed_measurements_are_refused_or_compared(place: Path, content: bytes) -> None:
    (place / "reference.csv.gz").write_bytes(content)
    judged("validate", "--reference", "reference.csv.gz")


@about(100)
@given(content=rows_of(PRICES), iterations=st.sampled_from((10, 1000, 10**9)))
def test_spoilt_prices_are_refused_or_emulated(place: Path, content: bytes, iterations: int) -> None:
    (place / "prices.csv").write_bytes(content)
    hours = "emulation.series=prices.csv", f"emulation.iterations={iterations}"
    judged("emulate", *FLEET, *hours)


@pytest.fixture(scope="module")
def folder(place: Path) -> Path:
    judged("resolve", *SMALL, "--output", "results", "--config-dir", CONFIG)
    return planned_folder(place / "results")


@about(200)
@given(name=st.sampled_from(sorted(TABLES)), data=st.data())
def test_a_spoilt_table_is_refused_or_what_was_written(folder: Path, name: str, data: st.DataObject) -> None:
    path = folder / TABLES[name] / f"{name}.parquet"
    content, plan = path.read_bytes(), read_plan(folder / "plan/fastest.json")
    table = open_results(folder.parent)[name].collect()
    path.write_bytes(data.draw(spoilt(content)))
    try:
        if judged("select", "fastest", folder).is_done:
            assert read_plan(folder / "plan/fastest.json").stages == plan.stages
        assert open_results(folder.parent)[name].collect().equals(table)
    except (KareusError, pl.exceptions.PolarsError) as error:
        assert isinstance(error, KareusError), f"{type(error).__name__}: {error}"
    finally:
        path.write_bytes(content)
