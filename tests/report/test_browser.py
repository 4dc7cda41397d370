"""The page as a browser draws it: headless Chromium runs it together with a probe that writes down what it sees."""

import dataclasses
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.report_tables import FRONTIERS, PARTITIONS, WORKLOAD, Names, with_runs, write_inputs
from test_page import page_of

from kareus.report.workload.inputs import load

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason='chromium not found: install it with "apt-get install chromium"'
)
LABEL = "simulated testbed, A100-SXM4-40GB"
NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
DARK, LIGHT = "--blink-settings=preferredColorScheme=0", "--blink-settings=preferredColorScheme=1"

# Looks at every figure, then points at marks and chooses the second plan; tells the page around it, if any, and itself.
PROBE = """
<script type="module">
const pointAt = (chart, mark) => {
  if (!mark) return null;
  const box = mark.getBoundingClientRect();
  const at = { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, bubbles: true };
  chart.dispatchEvent(new PointerEvent("pointermove", at));
  return document.getElementById("tooltip").hidden ? null : document.getElementById("tooltip").innerText;
};
const bars = () => document.querySelectorAll("svg .bar");
const charts = [...document.querySelectorAll('svg[role="img"]')];
const of = (figure) => figure.querySelector('svg[role="img"]');
const figures = [...document.querySelectorAll("figure")];
const seen = {
  figures: figures.map((f) => ({
    label: f.querySelector("figcaption .label").textContent,
    aria: f.getAttribute("aria-label"),
    marks: f.querySelectorAll(".chart svg .mark").length,
    steps: f.querySelectorAll(".chart svg .line-of").length,
    bars: f.querySelectorAll("svg .bar").length,
    parts: f.querySelectorAll("svg .part").length,
    plans: f.querySelectorAll("svg .plan").length,
  })),
  header: document.querySelector("header").innerText,
  tables: [...document.querySelectorAll("table")].map((t) => t.querySelectorAll("tbody tr").length),
  charts: charts.map((c) => ({ aria: c.getAttribute("aria-label"), text: c.textContent, html: c.outerHTML })),
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  width: innerWidth,
  background: getComputedStyle(document.body).backgroundColor,
  plan_tip: pointAt(of(figures[0]), document.querySelector("svg .plan")),
  point_tip: pointAt(of(figures[0]), figures[0].querySelectorAll(".chart .mark")[2]),
  bar_tip: pointAt(of(figures[1]), bars()[0]),
  candidate_tip: pointAt(of(figures[3]), figures[3].querySelectorAll(".chart .mark")[1]),
  part_tip: pointAt(of(figures[4]), figures[4].querySelector("svg .part")),
  injected: document.images.length + document.querySelectorAll("script:not([type])").length,
};
const choice = document.querySelector("select");
choice.value = "1";
choice.dispatchEvent(new Event("change"));
const pressed = (chart, key) => {
  chart.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const tip = document.getElementById("tooltip");
  return tip.hidden ? null : tip.innerText;
};
const timeline = document.querySelector("svg .bar").closest("svg");
seen.focusable = timeline.tabIndex;
const keys = ["ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "Escape"];
seen.key_tips = keys.map((key) => pressed(timeline, key));
seen.links = [...document.querySelectorAll("a")].map((a) => a.getAttribute("href"));
seen.second_plan = document.querySelector("section:nth-of-type(3) .line").innerText;
seen.second_bars = bars().length;
parent.postMessage(JSON.stringify(seen), "*");
const output = document.createElement("output");
output.textContent = JSON.stringify(seen);
if (parent === window) document.body.append(output);
console.log("probe ran");
</script>
"""
FRAME = """<!doctype html><body style="margin:0">
<iframe src="page.html" width="390" height="900" style="border:0"></iframe>
<output></output><script>onmessage = (e) => { document.querySelector("output").textContent = e.data; };</script>"""


def look(folder: Path, name: str, *flags: str) -> dict:
    """What the probe saw in `name`, after checking that the console says nothing else."""
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=4000", "--enable-logging=stderr", "--v=0"),
        *("--dump-dom", *flags, (folder / name).as_uri()),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    console = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    assert len(console) == 1, console
    assert '"probe ran"' in console[0], console
    (text,) = re.findall(r"<output>(.*?)</output>", ran.stdout, flags=re.DOTALL)
    return json.loads(html.unescape(text))


def write_page(folder: Path, names: Names) -> Path:
    inputs = load(names.workload, write_inputs(folder / "results", names))
    page = page_of(inputs)
    (folder / "page.html").write_text(page.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return look(write_page(tmp_path_factory.mktemp("wide"), Names()), "page.html", LIGHT, "--window-size=1280,900")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    folder = write_page(tmp_path_factory.mktemp("narrow"), Names())
    return look(folder, "frame.html", DARK, "--window-size=800,900")


def test_every_figure_is_drawn(wide):
    iteration, timeline, power, search, shares, microbatch = wide["figures"]
    plans = sum(map(len, FRONTIERS.values()))
    assert (iteration["marks"], iteration["steps"], iteration["plans"]) == (plans, len(FRONTIERS), 2)
    assert (timeline["bars"], wide["second_bars"]) == (8, 8)
    assert power["steps"] == 2 * 2
    assert (search["marks"], search["steps"]) == (4 * len(PARTITIONS), len(PARTITIONS))
    assert shares["parts"] == 3 * (len(PARTITIONS) + 1)
    assert (microbatch["marks"], microbatch["steps"]) == (4, 6)
    assert wide["tables"] == [len(FRONTIERS), len(FRONTIERS) - 1, 2, 1 + len(PARTITIONS), 8]


def test_what_ran_has_a_table_of_its_own(tmp_path):
    results = tmp_path / "results"
    inputs = load(WORKLOAD, with_runs(write_inputs(results), results))
    (tmp_path / "page.html").write_text(page_of(inputs).replace("</body>", PROBE + "</body>"), encoding="utf-8")
    seen = look(tmp_path, "page.html", LIGHT, "--window-size=1280,900")
    assert seen["tables"] == [len(FRONTIERS), len(FRONTIERS) - 1, 2, 2, 1 + len(PARTITIONS), 9]
    assert seen["overflow"] <= 0


def test_a_page_without_searches_says_so_and_draws_the_rest(tmp_path):
    inputs = load(
        WORKLOAD, dataclasses.replace(write_inputs(tmp_path / "results"), candidates=[], rounds=[], proposals=[])
    )
    (tmp_path / "page.html").write_text(page_of(inputs).replace("</body>", PROBE + "</body>"), encoding="utf-8")
    iteration, timeline, _, search, _, _ = look(tmp_path, "page.html", LIGHT, "--window-size=1280,900")["figures"]
    assert (iteration["plans"], timeline["bars"], search["marks"]) == (2, 8, 0)


def test_chunks_and_split_backwards_have_names_of_their_own(tmp_path):
    def split(instruction):
        if instruction.direction == "forward":
            return instruction
        return dataclasses.replace(instruction, direction=("input-gradient", "weight-gradient")[instruction.microbatch])

    def cut(plan):
        first, second = (
            dataclasses.replace(stage, instructions=tuple(map(split, stage.instructions))) for stage in plan.stages
        )
        last = dataclasses.replace(second.instructions[-1], chunk=1)
        return dataclasses.replace(
            plan, stages=(first, dataclasses.replace(second, instructions=(*second.instructions[:-1], last)))
        )

    inputs = load(WORKLOAD, write_inputs(tmp_path / "results"))
    inputs = dataclasses.replace(inputs, plans={name: cut(plan) for name, plan in inputs.plans.items()})
    (tmp_path / "page.html").write_text(page_of(inputs).replace("</body>", PROBE + "</body>"), encoding="utf-8")
    seen = look(tmp_path, "page.html", LIGHT, "--window-size=1280,900")
    (drawn,) = [chart["text"] for chart in seen["charts"] if "stage 0" in chart["text"]]
    assert all(name in drawn for name in ("F0.0", "B0.0", "W1.0", "W1.1"))
    assert "microbatch.chunk (B: input gradients, W: weight gradients), MHz" in drawn


def test_nothing_is_drawn_at_no_number(wide):
    for chart in wide["charts"]:
        assert not re.search(r"NaN|Infinity|undefined|null", chart["html"]), chart["html"][:2000]


def test_the_testbed_stands_in_the_header_and_on_every_figure(wide):
    assert "SIMULATED TESTBED" in wide["header"]
    assert LABEL in wide["header"]
    assert [figure["label"] for figure in wide["figures"]] == [LABEL] * 6
    assert all(LABEL in figure["aria"] for figure in wide["figures"])
    drawings = [chart["aria"] for chart in wide["charts"] if not chart["aria"].startswith("Colours")]
    assert len(drawings) == 9
    assert all(LABEL in aria for aria in drawings)


def test_axes_have_units(wide):
    texts = [chart["text"] for chart in wide["charts"]]
    assert "iteration time (s)" in texts[0]
    assert "(kJ)" in texts[0]
    assert all("time (ms)" in text and "(J)" in text for text in (*texts[-5:-3], *texts[-2:]))


def test_pointing_at_a_mark_tells_its_numbers(wide):
    assert "1: kareus, fastest" in wide["plan_tip"]
    assert "25.0\u00a0% less" in wide["plan_tip"]
    assert "sequential+perseus" in wide["point_tip"]
    assert "5.000 s" in wide["point_tip"]
    assert "1.00\u00a0%" in wide["point_tip"]
    assert "F0, stage 0" in wide["bar_tip"]
    assert "340 W" in wide["bar_tip"]
    assert "6 SMs, beside up" in wide["bar_tip"]
    assert "predicted\n1.515 ms" in wide["candidate_tip"]
    assert "total-energy pass, all partitions" in wide["part_tip"]
    assert "33\u00a0% (2)" in wide["part_tip"]


def test_the_arrow_keys_lead_from_instruction_to_instruction(wide):
    assert wide["focusable"] == 0
    tips = [tip and tip.splitlines()[0] for tip in wide["key_tips"]]
    assert tips == ["F1, stage 0", "B0, stage 0", "F1, stage 1", "B0, stage 1", None]
    assert all(word in wide["key_tips"][0] for word in ("1410 MHz", "340 W", "6 SMs, beside up"))


def test_links_lead_to_files_of_every_kind(wide):
    kinds = {link.rpartition(".")[2] for link in wide["links"]}
    assert kinds == {"svg", "pdf", "csv", "parquet"}
    assert "timelines/deadline=4s.svg" in wide["links"]


def test_another_plan_can_be_chosen(wide):
    assert "4.000 s, 12.00 kJ" in wide["second_plan"]


def test_a_narrow_screen_does_not_scroll_sideways(narrow):
    assert narrow["width"] == 390
    assert narrow["overflow"] <= 0
    assert [figure["marks"] + figure["bars"] for figure in narrow["figures"]] == [9, 8, 0, 8, 0, 4]


def test_the_page_follows_the_colour_scheme(wide, narrow):
    assert wide["background"] == "rgb(255, 255, 255)"
    assert narrow["background"] == "rgb(20, 23, 27)"
    assert wide["overflow"] <= 0


def test_names_stay_text_in_the_browser(tmp_path):
    seen = look(write_page(tmp_path, Names(launch=NASTY, selector=NASTY)), "page.html")
    assert seen["injected"] == 0
    assert NASTY in seen["plan_tip"]
