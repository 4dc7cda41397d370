"""Files beside a page: complete, linked, of the numbers that the page shows, and labelled with the testbed."""

import json
import re
import zlib
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest
from helpers.report_tables import SIMULATED, WORKLOAD, Names, with_runs, write_inputs
from test_page import Blocks
from test_report_stage import arguments

from kareus.artifacts.tables import problem_of, read_provenance
from kareus.cli import main
from kareus.pipeline.tables import ITERATION
from kareus.report.charts import PALETTE, Form, plot_data
from kareus.report.contents import FLEET_TABLES, PLOTS, TABLES, WRITTEN_AS
from kareus.report.downloads import OF_WORKLOAD, labelled_schema, read_download
from kareus.report.drawing import save
from kareus.report.fleet.inputs import FleetInputs
from kareus.report.workload.figures import figures, tables
from kareus.report.workload.inputs import load
from kareus.report.workload.tables import POWER, TIMELINE
from kareus.training.tables import ITERATIONS

LABEL = "simulated testbed, A100-SXM4-40GB"
STATIC = Path(__file__).parents[2] / "kareus/report/static"


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
    for folder, names in (("figures", PLOTS), ("timelines", ("fastest", "deadline=4s", "baseline"))):
        drawn = {f"{name}.{kind}" for name in names for kind in ("svg", "pdf")}
        assert {path.name for path in (report / folder).iterdir()} == drawn
    assert {path.name for path in (report / "data").iterdir()} == {f"{t}.{k}" for t in TABLES for k in WRITTEN_AS}


def test_the_files_of_fleets_are_those_that_the_rule_declares():
    assert tuple(schema.name for schema, _ in FleetInputs(*("x",) * 7).tables()) == FLEET_TABLES


def test_every_file_that_the_page_offers_is_there(report):
    data = Blocks((report / "page.html").read_text()).data
    shown = [*data["plots"].values(), *data["shares"].values(), *data["timelines"]]
    assert len(shown) == len(PLOTS) + 3
    offered = [f"{figure['file']}.{kind}" for figure in shown for kind in ("svg", "pdf")]
    named = {figure["table"] for figure in shown} | {table["name"] for table in data["tables"]}
    offered += [f"data/{name}.{kind}" for name in named for kind in WRITTEN_AS]
    assert [place for place in offered if not (report / place).is_file()] == []


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
    plots = Blocks((report / "page.html").read_text()).data["plots"]
    power = read_download(report / "data", POWER)
    for panel, name in zip(plots["power"]["panels"], ("fastest", "deadline=4s"), strict=True):
        for series, plan_name in zip(panel["series"], ("baseline", name), strict=True):
            drawn = power.filter(pl.col("plan_name") == plan_name)
            assert series["points"] == drawn.select("time_s", "power_w").to_dict(as_series=False)
    frontier = read_download(report / "data", ITERATION)
    for series in plots["iteration"]["panels"][0]["series"][:-1]:
        own = frontier.filter(pl.col("method") == series["name"]).sort("time_s")
        assert series["points"]["energy_j"] == own["energy_j"].to_list()


def pdf_text(path: Path) -> str:
    """Text of a PDF file's streams, glyphs joined (they are of one font, written as the characters that they show)."""
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", path.read_bytes(), flags=re.DOTALL)
    found = []
    for stream in streams:
        try:
            content = zlib.decompress(stream)
        except zlib.error:
            continue
        found += re.findall(rb"\(((?:[^()\\]|\\.)*)\)", content) if b" Tf" in content else []
    return b"".join(found).replace(b"\0", b"").decode("latin-1")


def test_every_drawing_names_its_testbed(report):
    drawings = sorted(report.glob("[ft]*/*.*"))
    assert len(drawings) == 2 * (len(PLOTS) + 3)
    for path in drawings:
        if path.suffix == ".svg":
            root = ElementTree.parse(path).getroot()
            texts = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
            assert any(LABEL in text for text in texts), path
            assert path.read_text().count(LABEL) > sum(LABEL in text for text in texts), path
        else:
            assert LABEL in pdf_text(path), path
            assert LABEL.encode() in re.search(rb"/Subject \((.*?)\)", path.read_bytes())[1], path


def test_a_drawing_has_a_mark_for_every_point(report, inputs):
    """Matplotlib writes each mark of a line as a `use`; ticks are some, too."""
    plots = {figure.name: plot_data(figure) for figure in figures(inputs) if figure.name in ("iteration", "search")}
    for name, plot in plots.items():
        series = [one for panel in plot["panels"] for one in panel["series"] if one["shape"]]
        points = sum(len(next(iter(one["points"].values()))) for one in series)
        text = (report / f"figures/{name}.svg").read_text()
        marks = [m for color, _ in PALETTE.values() for m in re.findall(rf'<use [^>]*style="[^"]*{color}', text)]
        in_legend = {one["name"] for one in series}
        assert len(marks) == points + len(in_legend)


def test_equal_inputs_give_equal_drawings(inputs, tmp_path):
    figure = next(figure for figure in figures(inputs) if figure.name == "passes")
    for folder in ("first", "second"):
        save(figure, LABEL, tmp_path / folder)
    for kind in ("svg", "pdf"):
        first, second = ((tmp_path / folder / f"figures/passes.{kind}").read_bytes() for folder in ("first", "second"))
        assert first == second


def test_a_name_that_looks_like_markup_stays_text(tmp_path):
    names = Names(launch="<b>$x^2$", selector="a $\\frac{1}$ & <i>")
    nasty = load(names.workload, write_inputs(tmp_path, names))
    timeline = next(figure for figure in figures(nasty) if figure.name == "own")
    save(timeline, LABEL, tmp_path)
    texts = [e.text or "" for e in ElementTree.parse(tmp_path / "timelines/own.svg").getroot().iter()]
    assert any(names.selector in text for text in texts)


def test_the_page_can_write_every_form_of_a_number():
    script = (STATIC / "plot.js").read_text()
    forms = re.search(r"const FORMS = \{(.*?)\n\};", script, flags=re.DOTALL)[1]
    assert set(re.findall(r"^  (\w+)", forms, flags=re.MULTILINE)) == {str(form) for form in Form}


def test_the_data_block_of_the_page_is_plain_json(report):
    assert json.loads(json.dumps(Blocks((report / "page.html").read_text()).data))["title"] == WORKLOAD
