"""Files beside a page: complete, linked, of the numbers that the page shows, and labelled with the testbed."""

from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import polars as pl
import pytest
from helpers.pages import Blocks
from helpers.report_tables import (
    FRONTIERS,
    PARTITIONS,
    SIMULATED,
    WORKLOAD,
    Names,
    candidate_rows,
    with_runs,
    write_inputs,
)
from test_report_stage import arguments

from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import problem_of, read_provenance
from kareus.cli import main
from kareus.emulate.tables import FLEET, HOURS, POWER_CAPS, STRAGGLERS
from kareus.pipeline.tables import ITERATION
from kareus.report.contents import DRAWN_AS, FLEET_TABLES, PLOTS, TABLES, WRITTEN_AS
from kareus.report.downloads import OF_WORKLOAD, labelled_schema, read_download
from kareus.report.drawing import save
from kareus.report.fleet_inputs import FleetInputs
from kareus.report.workload.inputs import load
from kareus.report.workload.page import figures, tables
from kareus.report.workload.searches import search_figure
from kareus.report.workload.tables import POWER, TIMELINE
from kareus.training.tables import ITERATIONS

LABEL = "simulated testbed, A100-SXM4-40GB"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return load(WORKLOAD, with_runs(write_inputs(folder), folder))


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    assert main(arguments(with_runs(write_inputs(folder), folder), folder / "report")) == 0
    return folder / "report"


def test_the_files_are_those_that_the_rule_declares(report):
    for folder, names in (("figures", PLOTS), ("timelines", ("fastest", "deadline=4s"))):
        drawn = {f"{name}.{kind}" for name in names for kind in DRAWN_AS}
        assert {path.name for path in (report / folder).iterdir()} == drawn
    assert {path.name for path in (report / "data").iterdir()} == {f"{t}.{k}" for t in TABLES for k in WRITTEN_AS}


def test_the_files_of_fleets_are_those_that_the_rule_declares():
    empty = [schema.frame([]) for schema in (FLEET, STRAGGLERS, POWER_CAPS, HOURS)]
    inputs = FleetInputs("x", SIMULATED, Provenance(config_hash="x"), *empty)
    assert tuple(schema.name for schema, _ in inputs.tables()) == FLEET_TABLES


def test_every_file_that_the_page_offers_is_there(report):
    offered = Blocks((report / "page.html").read_text()).links(*DRAWN_AS, *WRITTEN_AS, "json")
    assert {place.rpartition("/")[0] for place in offered} == {"figures", "timelines", "data", "plans"}
    assert {f"figures/{name}.{kind}" for name in PLOTS for kind in DRAWN_AS} <= offered
    assert [place for place in offered if not (report / unquote(place)).is_file()] == []


@pytest.mark.parametrize("name", TABLES)
def test_csv_and_parquet_hold_the_same_labelled_numbers(report, name):
    whole, flat = pl.read_parquet(report / f"data/{name}.parquet"), pl.read_csv(report / f"data/{name}.csv")
    nested = [column for column, dtype in whole.schema.items() if dtype.is_nested()]
    assert flat.columns == [column for column in whole.columns if column not in nested]
    typed = flat.with_columns(pl.col(c).cast(whole.schema[c], strict=False) for c in flat.columns)
    empty = pl.col(pl.String).fill_null("")  # which CSV cannot tell from no text
    assert typed.with_columns(empty).equals(whole.drop(nested).with_columns(empty))
    assert set(whole["testbed"]) == {LABEL}
    assert set(whole["workload"]) == {WORKLOAD}


def test_tables_have_a_declared_schema_and_provenance(report, inputs):
    for schema, frame in tables(inputs):
        assert problem_of(frame, schema) is None
    for schema in (ITERATION, ITERATIONS, TIMELINE, POWER):
        labelled = labelled_schema(schema, OF_WORKLOAD)
        assert read_provenance(report / f"data/{schema.name}.parquet", labelled).testbed == SIMULATED


def test_the_page_draws_the_numbers_of_its_downloads(report):
    drawn = Blocks((report / "page.html").read_text()).data["figures"]["iteration"]["data"]["plans"]
    frontier = read_download(report / "data", ITERATION).sort("time_s", maintain_order=True)
    assert drawn["time_s"] == frontier["time_s"].to_list()
    assert drawn["energy_kj"] == pytest.approx((frontier["energy_j"] / 1e3).to_list())


def test_plans_are_handed_on_as_they_are(report):
    """A plan is sealed, so its bytes are copied."""
    assert sorted(path.name for path in (report / "plans").iterdir()) == ["deadline=4s.json", "fastest.json"]
    for path in (report / "plans").iterdir():
        assert path.read_bytes() == (report.parent / "plan" / path.name).read_bytes()


SVG = "{http://www.w3.org/2000/svg}"


def test_every_drawing_names_its_testbed(report):
    """PDF and PNG are made of the SVG; text of a PDF is in glyphs, so only that it is one page is read back."""
    drawings = sorted(report.glob("[ft]*/*.*"))
    assert len(drawings) == 3 * (len(PLOTS) + 2)
    for path in drawings:
        if path.suffix == ".svg":
            root = ElementTree.parse(path).getroot()
            assert any(LABEL in (text.text or "") for text in root.iter(f"{SVG}text")), path
            assert LABEL in (root.find(f"{SVG}title").text or ""), path
        else:
            start = {".pdf": b"%PDF-", ".png": b"\x89PNG"}[path.suffix]
            assert path.read_bytes().startswith(start), path


def marks(path: Path, name: str) -> int:
    """Marks of a layer: Vega groups them under the name of its view."""
    groups = [g for g in ElementTree.parse(path).getroot().iter(f"{SVG}g") if f"{name}_marks" in g.get("class", "")]
    return sum(len(list(group)) for group in groups)


def test_a_drawing_has_a_mark_for_every_point(report):
    shown = sum(map(len, FRONTIERS.values()))
    assert marks(report / "figures/iteration.svg", "frontier_points") == shown
    assert marks(report / "figures/iteration.svg", "chosen_discs") == 2
    assert marks(report / "figures/search.svg", "search_points") == len(PARTITIONS) * len(candidate_rows())
    assert marks(report / "timelines/fastest.svg", "plan_bars_0") == 8
    assert marks(report / "timelines/fastest.svg", "baseline_bars_1") == 8


def test_equal_inputs_give_equal_drawings(inputs, tmp_path):
    figure = next(figure for figure in figures(inputs) if figure.name == "search")
    for folder in ("first", "second"):
        save(figure, LABEL, tmp_path / folder)
    for kind in DRAWN_AS:
        first, second = ((tmp_path / folder / f"figures/search.{kind}").read_bytes() for folder in ("first", "second"))
        assert first == second


def test_a_name_that_looks_like_markup_stays_text(tmp_path):
    names = Names(launch="<b>$x^2$", selector="a $\\frac{1}$ & <i>")
    nasty = load(names.workload, write_inputs(tmp_path, names))
    timeline = next(figure for figure in figures(nasty) if figure.name == "own")
    save(timeline, LABEL, tmp_path)
    texts = [e.text or "" for e in ElementTree.parse(tmp_path / "timelines/own.svg").getroot().iter()]
    assert any(names.selector in text for text in texts)


def test_an_empty_figure_says_why(inputs, tmp_path):
    save(search_figure([]), LABEL, tmp_path)
    assert "Nothing was searched" in (tmp_path / "figures/search.svg").read_text()
