"""The summary and the page of emulated fleets, the page as headless Chromium draws it."""

import json
import re
from pathlib import Path

import pytest
from helpers.report_tables import FRONTIERS, SIMULATED, STATIC_W
from test_browser import CHROMIUM, DARK, LIGHT, look

from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import write_table
from kareus.cli import main
from kareus.emulate.tables import FLEET, HOURS, POWER_CAPS, STRAGGLERS
from kareus.report.sheets import DASH

LABEL = "simulated testbed, A100-SXM4-40GB"
SIZES = {"large": (32, 4), "small": (16, 8)}
"""Pipelines and microbatches of each; a pipeline has two GPUs."""
METHODS = ("sequential", "sequential+perseus", "kareus")
PROBE = """
<script type="module">
const pointAt = (mark) => {
  const box = mark.getBoundingClientRect();
  const at = { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, bubbles: true };
  mark.closest("svg").dispatchEvent(new PointerEvent("pointermove", at));
  return document.getElementById("tooltip").innerText;
};
const seen = {
  header: document.querySelector("header").innerText,
  sections: [...document.querySelectorAll("h2")].map((h) => h.textContent),
  tables: [...document.querySelectorAll("table")].map((t) => t.innerText),
  labels: [...document.querySelectorAll("figcaption .label")].map((l) => l.textContent),
  charts: [...document.querySelectorAll('svg[role="img"]')].map((c) => ({
    aria: c.getAttribute("aria-label"),
    marks: c.querySelectorAll(".mark").length,
    steps: c.querySelectorAll(".line-of").length,
    html: c.outerHTML,
  })),
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  background: getComputedStyle(document.body).backgroundColor,
  tip: pointAt(document.querySelectorAll(".chart svg .mark")[3]),
};
const output = document.createElement("output");
output.textContent = JSON.stringify(seen);
document.body.append(output);
console.log("probe ran");
</script>
"""


def identity(name, method):
    pipelines, microbatches = SIZES[name]
    counts = {"fleet": name, "pipelines": pipelines, "num_microbatches": microbatches, "gpus": 2 * pipelines}
    return counts | {"method": method}


def fleet_rows(name):
    for method in METHODS:
        for number, (time_s, energy_j) in enumerate(FRONTIERS[method]):
            total_j, static_j = energy_j * SIZES[name][0], STATIC_W * time_s * 2 * SIZES[name][0]
            yield identity(name, method) | {
                "plan": number,
                "time_s": time_s,
                "pipeline_time_s": time_s,
                "reduction_s": 0.5,
                "energy_j": total_j,
                "static_energy_j": static_j,
                "dynamic_energy_j": total_j - static_j,
                "power_w": total_j / time_s,
                "lower_bound_j": total_j,
                "gap": 0.0,
                "points": [0],
            }


def straggler_row(name):
    saved = {"waiting_energy_j": 4e5, "energy_j": 3e5, "saving_percent": 25.0, "gap": 0.0, "points": [0]}
    return identity(name, "kareus") | {"slowdown": 1.1, "time_s": 3.3, "plan_time_s": 3.3} | saved


def cap_rows(name):
    empty = dict.fromkeys(("time_s", "energy_j", "power_w", "points"))
    yield identity(name, "sequential") | {"cap_w": 1e5} | empty
    yield identity(name, "kareus") | {"cap_w": 1e5, "time_s": 4.0, "energy_j": 4e5, "power_w": 1e5, "points": [0]}


def hour_rows(name):
    for policy, energies_j in (("steady", (3.6e6, 3.6e6)), ("hourly", (7.2e6, 0.0))):
        for hour, (energy_j, value) in enumerate(zip(energies_j, (1.0, 3.0), strict=True)):
            done = {"share": 1.0, "iterations": 1.0, "energy_j": energy_j, "unit": "price_per_kwh", "value": value}
            row = {"policy": policy, "hour": hour, "plan": 0 if energy_j else None}
            yield identity(name, "kareus") | row | done | {"charge": energy_j / 3.6e6 * value}


def report(folder: Path, *, with_hours: bool) -> tuple[str, str]:
    """Text and page of two fleets."""
    provenance = Provenance(config_hash="0123456789abcdef", testbed=SIMULATED, seed=7)
    arguments = ["stage", "report-fleets", "--title", "tiny", "--output", str(folder / "report")]
    for option, schema, rows in (
        ("--fleet", FLEET, fleet_rows),
        ("--stragglers", STRAGGLERS, lambda name: [straggler_row(name)]),
        ("--power-caps", POWER_CAPS, cap_rows),
        ("--hours", HOURS, hour_rows if with_hours else lambda _: []),
    ):
        paths = [folder / name / f"{schema.name}.parquet" for name in SIZES]
        for path in paths:
            write_table(path, schema.frame(list(rows(path.parent.name))), schema, provenance)
        arguments += [option, *map(str, reversed(paths))]
    assert main(arguments) == 0
    return (folder / "report/fleets.txt").read_text(), (folder / "report/fleets.html").read_text()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleets")
    text, html = report(folder, with_hours=True)
    (folder / "probed.html").write_text(html.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    return folder, text


def lines(text, title):
    """Cells of the table below a title."""
    block = text.split(title)[1].split("\n\n")[1]
    return [re.split(r"\s{2,}", line) for line in block.splitlines()[2:]]


def test_the_summary_is_the_papers_by_rising_microbatches(page):
    _, text = page
    assert LABEL in text
    throughput = lines(text, "Max throughput")
    assert [row[:3] for row in throughput] == [
        [fleet, str(SIZES[fleet][1]), method] for fleet in ("large", "small") for method in METHODS
    ]
    assert [row[-2:] for row in throughput[:3]] == [[DASH, DASH], ["0.0 %", "10.0 %"], ["25.0 %", "30.0 %"]]
    assert lines(text, "Frontier improvement") == [
        ["large", "4", "kareus", "33.3 %", "40.0 %"],
        ["small", "8", "kareus", "33.3 %", "40.0 %"],
    ]


def test_the_summary_says_what_scenarios_give(page):
    _, text = page
    assert lines(text, "Stragglers")[0] == ["large", "kareus", "1.1x", "3.300", "0.400", "0.300", "25.0 %"]
    assert lines(text, "Power caps")[:2] == [
        ["large", "sequential", "0.100", DASH, DASH],
        ["large", "kareus", "0.100", "0.100", "4.000"],
    ]
    assert lines(text, "Hours")[0] == ["large", "kareus", "price_per_kwh", "4", "2", "50.0 %"]


def test_what_was_not_asked_for_is_left_out(tmp_path):
    text, html = report(tmp_path, with_hours=False)
    assert "Hours" not in text
    titles = [section["title"] for section in json.loads(re.search(r'id="data">(.*?)</script>', html)[1])["sections"]]
    assert titles == ["Strong scaling", "Iteration frontiers", "Stragglers", "Power caps"]


def test_fleets_are_listed_where_nothing_else_was_planned(tmp_path, caplog):
    folder = tmp_path / "tiny/report"
    folder.mkdir(parents=True)
    (folder / "fleets.txt").write_text("tiny: emulated fleets\n")
    with caplog.at_level("INFO"):
        assert main(["results", str(tmp_path)]) == 0
    assert "tiny: emulated fleets" in caplog.text
    assert str(folder / "fleets.html") in caplog.text


@pytest.mark.skipif(CHROMIUM is None, reason='chromium not found: install it with "apt-get install chromium"')
@pytest.mark.parametrize(("scheme", "background"), [(LIGHT, "rgb(255, 255, 255)"), (DARK, "rgb(20, 23, 27)")])
def test_the_page_draws_every_fleet_and_labels_everything(page, scheme, background):
    seen = look(page[0], "probed.html", scheme, "--window-size=1280,900")
    assert "SIMULATED TESTBED" in seen["header"]
    assert "64 GPUs, 32 GPUs" in seen["header"]
    assert seen["sections"] == [
        "Strong scaling",
        "Iteration frontiers",
        "Stragglers",
        "Power caps",
        "Hours of a series",
        "Downloads",
    ]
    assert all(LABEL in table for table in seen["tables"])
    assert seen["labels"] == [LABEL] * 2
    frontiers, hours = seen["charts"][:2], seen["charts"][2:]
    assert [(chart["marks"], chart["steps"]) for chart in frontiers] == [(6, 3)] * 2
    assert [chart["steps"] for chart in hours] == [1] * 4
    for chart in seen["charts"]:
        assert LABEL in chart["aria"]
        assert not re.search(r"NaN|Infinity|undefined|null", chart["html"])
    assert "kareus" in seen["tip"]
    assert "30.0\u00a0% less" in seen["tip"]
    assert (seen["overflow"] <= 0, seen["background"]) == (True, background)
