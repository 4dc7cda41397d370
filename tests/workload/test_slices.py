import dataclasses
from functools import cache
from pathlib import Path

import pytest
from helpers.builders import CONFIG
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.artifacts.configuration import load_slice, to_yaml
from kareus.artifacts.records import content_hash
from kareus.errors import ArtifactError, ConfigError
from kareus.frontiers.config import frontier_hash
from kareus.partition.config import subject_of
from kareus.pipeline.config import PipelineSlice
from kareus.search.config import SearchSlice
from kareus.workload.config import Workload
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import SLICES, cut, slice_text


@cache
def default() -> Workload:
    (only,) = resolve_accepted([], CONFIG).values()
    return only


@pytest.fixture
def workload() -> Workload:
    return default()


@pytest.mark.parametrize("stage", SLICES)
def test_a_slice_comes_back_from_its_text(stage: str, workload: Workload, tmp_path: Path) -> None:
    path = tmp_path / f"{stage}.yaml"
    path.write_text(slice_text(workload, stage))
    assert load_slice(path, SLICES[stage]) == cut(workload, stage)


def test_a_text_keeps_the_order_of_the_fields(workload: Workload) -> None:
    keys = [line.partition(":")[0] for line in slice_text(workload, "pipeline").splitlines() if line[0].isalpha()]
    assert keys == [field.name for field in dataclasses.fields(PipelineSlice) if field.name != "training"]


@dataclasses.dataclass(frozen=True)
class Exact:
    """Numbers without the bounds that those of a workload have."""

    number: float
    seed: int


@settings(max_examples=40)
@given(number=st.floats(min_value=1e-30, max_value=1e30), seed=st.integers(0, 2**63))
def test_every_number_comes_back_exactly(number: float, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "exact.yaml"
    path.write_text(to_yaml(Exact(number, seed)))
    assert load_slice(path, Exact) == Exact(number, seed)


@settings(max_examples=40)
@given(number=st.floats(min_value=0, max_value=1e6), seed=st.integers(0, 2**63 - 1))
def test_a_workload_with_any_numbers_comes_back_exactly(
    number: float, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    changed = dataclasses.replace(default(), memory_reserve_gib=number, seed=seed)
    path = tmp_path_factory.getbasetemp() / "workload.yaml"
    path.write_text(to_yaml(changed))
    assert load_slice(path, Workload) == changed


def changed_stages(before: Workload, **changes: object) -> set[str]:
    after = dataclasses.replace(before, **changes)
    return {stage for stage in SLICES if slice_text(before, stage) != slice_text(after, stage)}


def test_a_change_reaches_the_stages_that_read_it_and_no_others(workload: Workload) -> None:
    assert changed_stages(workload, sequence_length=8192) == {"partition", "profile", "frontier", "pipeline", "plan"}
    assert changed_stages(workload, num_microbatches=16) == {"pipeline", "plan"}
    assert changed_stages(workload, seed=1) == {"profile", "search", "plan"}
    assert changed_stages(workload, memory_reserve_gib=1.0) == {"plan"}
    space = dataclasses.replace(workload.space, sm_max=27)
    assert changed_stages(workload, space=space) == {"schedule", "plan"}
    search = dataclasses.replace(workload.search, batch=5)
    assert changed_stages(workload, search=search) == {"search", "plan"}
    (paper,) = resolve_accepted(["search=paper"], CONFIG).values()
    assert changed_stages(workload, search=paper.search) == {"search", "plan"}


def test_what_extraction_sees_alone_changes_the_subject(workload: Workload) -> None:
    subject = content_hash(cut(workload, "partition"))
    slices = [cut(workload, stage) for stage in ("profile", "frontier", "pipeline")]
    assert {subject_of(config) for config in (workload, *slices)} == {subject}
    assert subject_of(dataclasses.replace(workload, sequence_length=8192)) != subject
    assert subject_of(dataclasses.replace(workload, num_microbatches=16, seed=1)) == subject


def test_the_pipeline_slice_has_its_frontiers_composition(workload: Workload) -> None:
    composed = content_hash(cut(workload, "frontier"))
    assert frontier_hash(workload) == frontier_hash(cut(workload, "pipeline")) == composed


def test_an_unknown_stage_is_answered_with_those_that_exist(workload: Workload) -> None:
    with pytest.raises(ConfigError) as raised:
        cut(workload, "serch")
    assert str(raised.value) == "no stage 'serch' has a slice of the configuration; perhaps you meant search."


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed: 0", "sead: 0", "sead: unknown key; perhaps you meant seed."),
        ("seed: 0\n", "", "seed: missing; give it a value."),
        ("seed: 0", "seed: zero", "seed: expected int, got 'zero'."),
        ("  batch: 3", "  batch: 2.5", "search.batch: expected int, got 2.5."),
        ("  batch: 3", "  batch: -2", "search: batch=-2: must be greater than 0."),
        ("seed: 0", "seed: [", "not valid YAML (line"),
    ],
)
def test_a_spoilt_slice_names_its_file_and_key(
    old: str, new: str, message: str, workload: Workload, tmp_path: Path
) -> None:
    path = tmp_path / "search.yaml"
    text = slice_text(workload, "search")
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ArtifactError) as raised:
        load_slice(path, SearchSlice)
    assert str(raised.value).startswith(f"{path}: {message}")
    assert str(raised.value).lower().endswith("rerun the stage that makes it.")
    assert "\n" not in str(raised.value)


def test_an_edited_slice_is_refused_and_a_handwritten_one_read(workload: Workload, tmp_path: Path) -> None:
    path = tmp_path / "search.yaml"
    text = slice_text(workload, "search")
    path.write_text(text.replace("seed: 0", "seed: 1"))
    with pytest.raises(ArtifactError, match="was edited or damaged"):
        load_slice(path, SearchSlice)
    path.write_text(text.replace("seed: 0", "seed: 1").rpartition("# seal")[0])
    assert load_slice(path, SearchSlice).seed == 1


def test_a_missing_empty_or_foreign_slice_is_refused(workload: Workload, tmp_path: Path) -> None:
    path = tmp_path / "search.yaml"
    with pytest.raises(ArtifactError, match="cannot be read"):
        load_slice(path, SearchSlice)
    path.write_text("")
    with pytest.raises(ArtifactError, match="SearchSlice: expected keys and values, got None"):
        load_slice(path, SearchSlice)
    path.write_text(slice_text(workload, "schedule"))
    with pytest.raises(ArtifactError, match="space: unknown key"):
        load_slice(path, SearchSlice)
