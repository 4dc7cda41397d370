"""The report on a campaign: tables worked out by hand, complete files, one clear line where something is missing."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import polars as pl
import pytest
from helpers.campaign_results import (
    CAMPAIGN_NAME,
    EMULATED,
    ENERGIES_J,
    MEMBERS,
    OTHER,
    PROVENANCE,
    REASON,
    REFUSED,
    write_campaign,
)
from helpers.pages import Blocks, Table, check_specifications
from helpers.report_tables import WORKLOAD, candidate_rows

import kareus
from kareus.artifacts.manifest import read_manifest
from kareus.artifacts.tables import read_table, write_table
from kareus.campaign.config import CAMPAIGN
from kareus.cli import main
from kareus.report.campaign.overview import tokens
from kareus.report.campaign.sheets import search_sheet, throughput_sheet
from kareus.report.contents import CAMPAIGN_TABLES, DRAWN_AS, WRITTEN_AS, campaign_figure_names
from kareus.report.workload.tables import COMPARISON, FLEET_COMPARISON, PASSES, PROFILER, SEARCH_TIME

LABEL = "simulated testbed, A100-SXM4-40GB"


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = write_campaign(tmp_path_factory.mktemp("campaign") / "results")
    assert main(["stage", "report-campaign", CAMPAIGN_NAME, "--results", str(folder.parents[2])]) == 0
    return folder


@pytest.fixture(scope="module")
def page(report):
    return Blocks((report / "index.html").read_text())


def sheets(page: Blocks) -> dict[str, Table]:
    return {f"{table.section}: {table.caption.strip()}": table for table in page.tables}


def sheet(page: Blocks, start: str) -> Table:
    (found,) = (sheet for name, sheet in sheets(page).items() if name.startswith(start))
    return found


def cells(sheet: Table, texts: int = 2) -> list[list[str]]:
    """Cells after those that are text."""
    return [row[texts:] for row in sheet.rows]


SHOWN_REASON = REASON.replace("`", "")
"""As a page shows it, whose command is code."""
CONTENTS = {"index.html", "summary.txt", "manifest.json", "data", "figures", "workloads"}


def test_figures_are_specifications_of_vega_lite(report):
    check_specifications((report / "index.html").read_text())


def test_the_manifest_lists_every_file_with_its_hash(report):
    files = {path: path.relative_to(report).as_posix() for path in report.rglob("*") if path.is_file()}
    listed = read_manifest(report / "manifest.json")
    assert listed == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for path, name in files.items() if name != "manifest.json"
    }


def test_the_files_are_those_that_the_rule_declares(report):
    assert {path.name for path in report.iterdir()} == CONTENTS
    assert {path.name for path in (report / "workloads").iterdir()} == {WORKLOAD, OTHER, EMULATED}
    declared = {f"{table}.{kind}" for table in CAMPAIGN_TABLES for kind in WRITTEN_AS}
    assert {path.name for path in (report / "data").iterdir()} == declared
    names = campaign_figure_names((m["part"], m["kind"]) for m in MEMBERS if not m["refusal"])
    assert names == ["overview", "frontiers_testbed", "frontiers_sensitivity", "fleets", "passes", "profiler"]
    drawn = {f"{name}.{kind}" for name in names for kind in DRAWN_AS}
    assert {path.name for path in (report / "figures").iterdir()} == drawn


def test_every_link_leads_to_a_file_in_the_folder(report, page):
    links = page.links("html", "csv", "parquet", *DRAWN_AS)
    assert {f"workloads/{WORKLOAD}/page.html", f"workloads/{EMULATED}/fleets.html", "figures/overview.svg"} <= links
    assert [link for link in links if not (report / link).is_file()] == []
    shutil.move(report, report.parent / "handed-on")  # whole, wherever it stands
    try:
        handed = report.parent / "handed-on"
        assert [link for link in links if not (handed / link).is_file()] == []
    finally:
        shutil.move(report.parent / "handed-on", report)


def test_copied_pages_have_all_that_they_offer(report):
    for copied in report.glob("workloads/*/*.html"):
        offered = Blocks(copied.read_text()).links("csv", "parquet", "json", *DRAWN_AS)
        assert offered
        assert [place for place in offered if not (copied.parent / unquote(place)).is_file()] == []


def test_the_index_lists_what_was_planned_and_refused(page):
    found = sheet(page, "Members")
    rows = {(row[0], row[1]): (row, link) for row, link in zip(found.rows, found.links, strict=True)}
    assert len(rows) == len(MEMBERS)
    assert rows[WORKLOAD, "testbed"][0][2:] == ["planned", "16"]
    refused, link = rows[REFUSED, "testbed"]
    assert (refused[2], link) == (f"refused: {SHOWN_REASON}", None)
    assert rows[f"{EMULATED}, fleet small", "emulation"][1] == f"workloads/{EMULATED}/fleets.html"


def test_all_workloads_are_compared_in_absolute_figures(page):
    """2 microbatches of 8 sequences of 4,096 tokens in 3 s and 14 kJ, against 4 s and 20 kJ; savings come first."""
    found = sheet(page, "All workloads")
    tokens = 2 * 8 * 4096
    figures = [["3.000", "14.00"], ["4.000", "20.00"]]
    for row, time_s, energy_j in ((0, 3, 14e3), (1, 4, 20e3)):
        figures[row] += [f"{tokens / time_s:,.0f}", f"{1e3 * energy_j / tokens:.1f}"]
    assert found.rows[0] == ["tiny, pp2-tp8, 8\u00d74,096, A100", "25.0 %", "30.0 %", *figures[0], *figures[1]]
    assert found.rows[1] == ["tiny, pp2-tp8, 16\u00d74,096, A100", f"refused: {SHOWN_REASON}"]
    assert found.links[:2] == [f"workloads/{WORKLOAD}/page.html", None]
    assert " of 2 workloads, in Kareus' engine: 25 % less time and 30 % less energy" in "".join(page.texts["strong"])


def test_data_parallel_replicas_count_in_tokens():
    row = {"num_microbatches": 2, "microbatch_size": 8, "sequence_length": 4096}
    assert tokens(row | {"parallelism": "dp4-pp2-tp8"}) == 4 * tokens(row | {"parallelism": "pp2-tp8"}) == 4 * 65536


def test_the_scatter_has_every_workload_and_method(report, page):
    comparison = read_table(report / f"data/{COMPARISON.name}.parquet", COMPARISON)
    drawn = page.data["figures"]["overview"]["data"]["overview"]
    assert len(drawn["method"]) == comparison.n_unique(["workload", "method"])
    assert set(drawn["link"]) == {f"workloads/{name}/page.html" for name in (WORKLOAD, OTHER)}


def test_improvements_are_those_worked_out_by_hand(page):
    """M+P 4 s, 18 kJ; N+P 4.4 s, 20 kJ; kareus 3 s, 14 kJ; all against 4 s, 20 kJ."""
    assert cells(sheet(page, "Testbed: Max"), 1) == [
        ["0.0", "-10.0", "25.0", "10.0", "0.0", "30.0"],
        ["OOM"] * 6,
    ]
    assert cells(sheet(page, "Testbed: Frontier"), 1) == [
        ["\u2013", "33.3", "\u2013", "40.0"],
        ["OOM"] * 4,
    ]
    named = [row[0] for row in sheet(page, "Sensitivity: Max").rows]
    assert named == ["tiny, pp2-tp8, 8\u00d74,096, A100", "tiny, pp2-tp8, 12\u00d74,096, A100"]


def test_ablations_and_runs_are_those_worked_out_by_hand(page):
    assert cells(sheet(page, "Sensitivity: Ablation"), 1)[0] == ["\u2013"] * 4 + ["46.7", "50.0"]
    ran = cells(sheet(page, "Predicted and run"), 1)
    assert ran[0] == ["10.0", "\u2013", "\u2013", "10.0", "0.0", "\u2013", "\u2013", "-10.0"]


def test_fleets_are_compared_as_the_paper_does(page):
    assert cells(sheet(page, "Emulation: Strong")) == [["32", "16", "8", "128", "1,024"]]
    assert cells(sheet(page, "Emulation: Emulation, max"), 1) == [["8", "0.0", "25.0", "10.0", "30.0"]]
    assert cells(sheet(page, "Emulation: Emulation, frontier"), 1) == [["8", "33.3", "40.0"]]


def test_passes_and_times_of_searches_add_up(page):
    first, other, together = sheet(page, "Searches").rows
    names = sheet(page, "Searches").names
    assert [row[0] for row in (first, other)] == [f"tiny, pp2-tp8, {n}\u00d74,096, A100" for n in (8, 12)]
    found = dict(zip(names, together, strict=True))
    assert found["measured"] == str(4 * len(candidate_rows()))
    assert found["on the frontier"] == "12"
    assert [found[name] for name in ("initial", "total")] == ["0", "33"]
    assert found["profiling (%)"] == f"{100 * 120 / 121.5:.1f}"


def test_the_figure_of_passes_names_workloads_in_few_words(page):
    bars = page.data["figures"]["passes"]["data"]["passes"]["what"]
    assert bars[0].startswith("all workloads (")
    assert all(" on " not in bar and "_" not in bar for bar in bars), bars


def test_a_sweep_tells_the_distribution_over_trials(report, page):
    rows = sheet(page, "Profiler").rows
    assert [row[:3] for row in rows] == [
        ["window", "2", "5"],
        ["window", "5", "5"],
        *(["cooldown", "5", str(rest)] for rest in (0, 2, 5)),
    ]
    deviation = 100 * pl.Series(ENERGIES_J).std() / pl.Series(ENERGIES_J).mean()
    assert rows[0][3:] == ["3", "1000.00", "980.00", "1020.00", f"{deviation:.2f}", "36.0", "52.0"]


@pytest.mark.parametrize("schema", [COMPARISON, FLEET_COMPARISON, PASSES, SEARCH_TIME, PROFILER])
def test_tables_are_declared_labelled_and_opened_together(report, schema):
    frame = read_table(report / f"data/{schema.name}.parquet", schema)
    assert len(frame)
    assert set(frame["testbed"]) == {LABEL}
    opened = kareus.open_results(report.parents[2])[schema.name].collect()
    assert set(opened["campaign"]) == {CAMPAIGN_NAME}
    assert opened.drop("campaign").equals(frame)
    flat = pl.read_csv(report / f"data/{schema.name}.csv")
    assert flat.with_columns(pl.col(c).cast(frame.schema[c], strict=False) for c in frame.columns).equals(frame)


def test_the_tables_of_the_page_are_those_of_the_parquet(report, page):
    comparison = read_table(report / f"data/{COMPARISON.name}.parquet", COMPARISON)
    (row,) = comparison.filter(part="testbed", workload=WORKLOAD, method="kareus").to_dicts()
    shown = sheet(page, "Testbed: Max").rows[0]
    assert (shown[3], shown[6]) == tuple(f"{row[f'{cost}_reduction_percent']:.1f}" for cost in ("time", "energy"))


def test_the_text_fits_a_terminal_and_shows_the_same_cells(report, page):
    text = (report / "summary.txt").read_text()
    assert text.splitlines()[:2] == [f"campaign {CAMPAIGN_NAME}", LABEL]
    assert f"{REFUSED}: {REASON}" in text
    for name, one in sheets(page).items():
        for row in one.rows if not name.startswith("Members") else []:
            shown = [row[0], "refused"] if row[1].startswith("refused") else row
            assert re.search(r"\s+".join(map(re.escape, shown)), text), row


def test_the_page_says_how_wrong_its_plans_may_be(report):
    text = (report / "index.html").read_text()
    said = text[text.index('class="answer"') : text.index("<section>")]
    assert "The paper&#39;s Megatron-LM on A100-SXM4-40GB, simulated; error: " in said
    assert said.count("error: ") == 1, "once for each trainer and GPU"


def test_everything_is_labelled_simulated(report, page):
    assert LABEL in page.texts["span"]
    assert LABEL in "".join(page.texts["title"])
    for path in (report / "figures").glob("*.svg"):
        assert LABEL in path.read_text(), path


def test_results_says_where_the_report_is(report, caplog):
    caplog.set_level("INFO")
    assert main(["results", str(report.parents[2])]) == 0
    assert f"campaign {CAMPAIGN_NAME}" in caplog.text
    assert str(report / "index.html") in caplog.text


def test_a_member_that_was_not_planned_is_told_in_one_line(report, tmp_path, capsys):
    results = tmp_path / "results"
    shutil.copytree(report.parents[2], results)
    shutil.rmtree(results / OTHER / "report")
    capsys.readouterr()
    assert main(["stage", "report-campaign", CAMPAIGN_NAME, "--results", str(results)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{OTHER}/report/data/iteration.parquet: no such file" in line
    assert main(["stage", "report-campaign", "none", "--results", str(results)]) == 2
    assert "campaigns/none/campaign.parquet: no such file" in capsys.readouterr().err


def test_a_campaign_of_sweeps_alone_has_all_declared_files(report, tmp_path):
    results = tmp_path / "results"
    shutil.copytree(report.parents[2], results)
    table = results / "campaigns/sweeps/campaign.parquet"
    write_table(table, CAMPAIGN.frame([m for m in MEMBERS if m["kind"] == "sweep"]), CAMPAIGN, PROVENANCE)
    assert main(["stage", "report-campaign", "sweeps", "--results", str(results)]) == 0
    written = {path.name for path in table.with_name("report").iterdir()}
    assert written == CONTENTS


def test_results_lists_what_earlier_campaigns_planned_too(report, tmp_path, caplog):
    results = tmp_path / "results"
    shutil.copytree(report.parents[2], results)  # whose table of workloads has none
    caplog.set_level("INFO")
    assert main(["results", str(results)]) == 0
    lines = [record.message for record in caplog.records]
    for name in (WORKLOAD, OTHER):
        (line,) = [line for line in lines if line.startswith(str(results / name))]
        assert "deadline=4s (+1)" in line
        assert "40.0 %" in line
    assert any(LABEL in line for line in lines)


def test_results_of_one_workload_are_its_summary(report, caplog):
    caplog.set_level("INFO")
    assert main(["results", str(report.parents[2] / WORKLOAD)]) == 0
    assert (report.parents[2] / WORKLOAD / "report/summary.txt").read_text().rstrip() in caplog.text


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (["--match", "other"], [OTHER]),
        (["--match", "*pp2-tp8", "--match", "tiny*"], [WORKLOAD]),
        (["--campaign", CAMPAIGN_NAME, "--match", "tiny"], [WORKLOAD]),
    ],
)
def test_results_are_filtered_and_printed_for_programs(report, caplog, filters, names):
    caplog.set_level("INFO")
    assert main(["results", str(report.parents[2]), "--json", *filters]) == 0
    listed = [json.loads(record.message) for record in caplog.records]
    assert [one["workload"] for one in listed] == names
    assert all(plan["energy_reduction_percent"] == pytest.approx(40.0) for one in listed for plan in one["plans"][:1])


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        (["--match", "nope"], "none of its "),
        (["--campaign", "nope"], "--campaign nope: not in"),
        (["--newest", "0"], "--newest 0: must be 1 or more."),
    ],
)
def test_a_filter_that_leaves_nothing_is_refused(report, capsys, filters, said):
    assert main(["results", str(report.parents[2]), *filters]) == 2
    assert said in capsys.readouterr().err


def test_a_damaged_plan_hides_no_other_workload(report, tmp_path, caplog):
    results = tmp_path / "results"
    shutil.copytree(report.parents[2], results)
    next((results / OTHER / "plan").glob("*.json")).write_text("{}")
    caplog.set_level("INFO")
    assert main(["results", str(results)]) == 0
    lines = [record.message for record in caplog.records]
    assert any(line.startswith(f"{results / OTHER}: ") and "not a plan; give the one" in line for line in lines)
    assert any(line.startswith(f"{results / WORKLOAD} ") for line in lines)


def test_searches_are_added_up_by_strategy_in_gpu_hours_and_shares_of_choices():
    workloads = {"one": "informed", "two": "paper", "three": "paper"}
    names = {"testbed": LABEL, "partition": "forward-mlp-allreduce"}
    passes = [
        {"workload": name, **names, "chosen_by": chosen_by, "measured": 6, "on_frontier": on_frontier}
        for name in workloads
        for chosen_by, on_frontier in (("total", 3), ("dynamic", 1))
    ]
    times = [
        {
            "workload": name,
            **names,
            "measured": 10,
            "on_frontier": 3,
            "profiling_s": 3600.0,
            "looking_s": 0.0,
            "optimisation_s": 1.0,
        }
        | {"strategy": strategy, "gpu_s": 8 * 3600.0}
        for name, strategy in workloads.items()
    ]
    sheet = search_sheet(PASSES.frame(passes), SEARCH_TIME.frame(times), {name: name.upper() for name in workloads})
    assert [row.cells[0] for row in sheet.rows[:3]] == ["ONE", "TWO", "THREE"]
    hours = [name for _, name in sheet.heads].index("GPU-hours")
    assert {row.cells[0]: (*row.cells[1:5], row.cells[hours]) for row in sheet.rows[3:]} == {
        "all workloads, search=informed": ("10", "3", "75", "25", "8.0"),
        "all workloads, search=paper": ("20", "6", "75", "25", "16.0"),
    }


def test_tables_say_how_far_noise_may_be_off():
    compared = dict.fromkeys(COMPARISON.polars.names(), 1.0) | {"method": "kareus"}
    compared |= dict.fromkeys(("part", "workload", "testbed", "model", "gpu", "parallelism"), "x")
    compared |= dict.fromkeys(("microbatch_size", "sequence_length", "num_microbatches", "gpus"), 1)
    compared |= {"time_reduction_error_percent": 0.1, "energy_reduction_error_percent": 0.6}
    members = pl.DataFrame([compared | {"refusal": None}])
    note = throughput_sheet(members, COMPARISON.frame([compared])).note
    assert "standard errors from the noise of measuring are 0.1 to 0.6 points" in note
    without = compared | {"time_reduction_error_percent": None, "energy_reduction_error_percent": None}
    assert "noise" not in throughput_sheet(members, COMPARISON.frame([without])).note
