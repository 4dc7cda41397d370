import json
import re
from html.parser import HTMLParser

import polars as pl
import pytest
from helpers.report_tables import FRONTIERS, PARTITIONS, WORKLOAD, Names, candidate_rows, iteration_rows, write_inputs

from kareus.report.page import page_html
from kareus.report.workload.figures import figures, tables
from kareus.report.workload.frontiers import microbatch_plot
from kareus.report.workload.inputs import ReportInputs, load
from kareus.report.workload.page import workload_page
from kareus.report.workload.summary import method_sheets, summary_text
from kareus.report.workload.timeline import Timeline, timeline_data

NASTY = "</script><script>alert(1)</script><!--<b>&amp;\u2028"


class Blocks(HTMLParser):
    """What a browser takes for the data block, for text and for tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._open = dict(attrs).get("id") or tag

    def handle_data(self, data):
        self.texts.setdefault(self._open, []).append(data)

    @property
    def data(self):
        return json.loads("".join(self.texts["data"]))


def page_of(inputs: ReportInputs) -> str:
    return page_html(workload_page(inputs, figures(inputs), tables(inputs)), summary_text(inputs))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return load(WORKLOAD, write_inputs(tmp_path_factory.mktemp("results")))


@pytest.fixture(scope="module")
def page(inputs):
    return page_of(inputs)


def test_the_frontiers_of_the_page_are_those_of_the_table(page):
    (panel,) = Blocks(page).data["plots"]["iteration"]["panels"]
    *lines, chosen = panel["series"]
    drawn = {
        (line["name"], *point)
        for line in lines
        for point in zip(*(line["points"][name] for name in ("time_s", "energy_j", "gap_percent")), strict=True)
    }
    assert drawn == {(row["method"], row["time_s"], row["energy_j"], 100 * row["gap"]) for row in iteration_rows()}
    assert list(zip(chosen["points"]["time_s"], chosen["points"]["energy_j"], strict=True)) == FRONTIERS["kareus"][:2]


def test_the_candidates_of_the_page_are_those_of_the_tables(page):
    panels = Blocks(page).data["plots"]["search"]["panels"]
    assert [panel["title"] for panel in panels] == list(PARTITIONS)
    for panel in panels:
        *passes, frontier = panel["series"]
        assert len(passes) == len(candidate_rows())
        for drawn, row in zip(passes, candidate_rows(), strict=True):
            assert all(row[name] == value for name, (value,) in drawn["points"].items() if name in row)
        assert frontier["points"]["time_s"] == sorted(r["time_s"] for r in candidate_rows() if r["on_frontier"])


def test_the_summary_of_the_page_is_that_of_the_terminal(page, inputs):
    blocks = Blocks(page)
    shown = [sheet["rows"] for sheet in blocks.data["sections"][0]["sheets"]]
    for rows, sheet in zip(shown, method_sheets(inputs.savings), strict=False):
        assert [tuple(row["cells"]) for row in rows] == [row.cells for row in sheet.rows]
    assert [row["ours"] for row in shown[0]] == [method == "kareus" for method in FRONTIERS]
    assert "".join(blocks.texts["pre"]).startswith(summary_text(inputs))


def test_the_timeline_is_that_of_the_plan(inputs):
    plans = [*inputs.plans.values(), inputs.baseline]
    timelines = [timeline_data(figure) for figure in figures(inputs) if isinstance(figure, Timeline)]
    for plan, drawn in zip(plans, timelines, strict=True):
        bars = [
            (stage["stage"], {**drawn["schedules"][i["schedule"]], **i})
            for stage in drawn["stages"]
            for i in stage["instructions"]
        ]
        planned = [(stage.stage, instruction) for stage in plan.stages for instruction in stage.instructions]
        assert len(bars) == len(planned) == 8
        for (stage, bar), (planned_stage, instruction) in zip(bars, planned, strict=True):
            assert stage == planned_stage
            for name in (
                "direction",
                "microbatch",
                "chunk",
                "start_s",
                "time_s",
                "energy_j",
                "frequency_mhz",
                "execution",
            ):
                assert bar[name] == getattr(instruction, name)
            assert [choice["sm_count"] for choice in bar["partitions"]] == [c.sm_count for c in instruction.partitions]


def test_stages_that_cost_the_same_share_a_panel(inputs):
    panels = microbatch_plot(inputs.microbatch).panels
    assert [panel.title for panel in panels] == ["forward, stage 0, 1", "backward, stage 0, 1"]
    for panel in panels:
        assert [len(series.points) for series in panel.series] == [2, 2, 2, 1, 0, 1]


def test_chunks_of_a_stage_have_panels_in_order_of_passing(inputs):
    second = inputs.microbatch.with_columns(chunk=pl.lit(1, pl.Int64), time_s=pl.col("time_s") * 2)
    split = pl.concat([inputs.microbatch, second]).with_columns(
        pl.col("direction").replace("backward", "input-gradient")
    )
    assert [panel.title for panel in microbatch_plot(split).panels] == [
        f"{direction}, stage 0 chunk {chunk}, 1 chunk {chunk}"
        for direction in ("forward", "input-gradient")
        for chunk in (0, 1)
    ]


def test_waiting_costs_what_the_frontiers_left_out(inputs):
    assert inputs.blocking_power_w == pytest.approx(85.0)


def test_the_page_asks_the_network_for_nothing(page):
    blocks = Blocks(page)
    assert {value for name, value in blocks.attributes if name in ("src", "href", "action", "srcset")} == {"data:,"}
    assert set(re.findall(r"https?://[^\s\"'<>]+", page)) == {
        "http://www.w3.org/2000/svg"
    }  # the name of the SVG namespace
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(", page)


def test_names_cannot_end_the_data_block_or_become_markup(tmp_path, page):
    names = Names(workload=f"nasty {NASTY}", launch=NASTY, selector=NASTY)
    nasty = load(names.workload, write_inputs(tmp_path, names))
    blocks = Blocks(page_of(nasty))
    assert blocks.tags == Blocks(page).tags
    assert blocks.data["title"] == names.workload
    assert blocks.data["timelines"][0]["selector"] == NASTY
    assert "".join(blocks.texts["title"]).startswith(names.workload)


def test_the_page_is_small(page):
    assert len(page.encode()) < 200_000
