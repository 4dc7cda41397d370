"""The page as a reader uses it, in headless Chromium: click, filter, zoom, keyboard; and as it looks on a telephone."""

import dataclasses
import itertools
import re
import shlex

import polars as pl
import pytest
from helpers.browser import DARK, LIGHT, needs_chromium, probe
from helpers.report_tables import FRONTIERS, PARTITIONS, WORKLOAD, Names, write_inputs
from test_page import NASTY, page_of

from kareus.report.theme import PAPER
from kareus.report.workload.headline import headline_of
from kareus.report.workload.inputs import load
from kareus.report.workload.page import trainer_command

pytestmark = needs_chromium
LABEL = "simulated testbed, A100-SXM4-40GB"
# A reader looks, filters, zooms, clicks on a point, opens the table behind a figure, sorts, and unfolds the searches.
READER = """
const texts = (selector) => all(selector).map((e) => e.textContent.trim());
const names = () => texts('[data-figure="iteration"] .role-mark[class*="frontier_names"] text').filter(Boolean);
const entry = (name) => all('[data-figure="iteration"] .role-legend-label text').find((t) => t.textContent === name);
const ticks = (figure) => texts(`[data-figure="${figure}"] .role-axis-label text`);
const timeline = () => document.getElementById("fastest");
const titles = () => texts('#fastest .role-title-text text');
const seen = { errors: [], figures: all("figure").filter(isOpen).map((f) => f.getAttribute("aria-label")) };
seen.points = marksOf("iteration", "frontier_points").length;
seen.bars = [marksOf("fastest", "plan_bars_0").length, marksOf("fastest", "baseline_bars_1").length];
seen.names = names();
seen.svg = all(".chart svg").map((svg) => svg.outerHTML).join("");
seen.tip = await tipOf(marksOf("iteration", "chosen_discs")[0]);
seen.titles = titles();
const count = seen.points;
clickOn(entry("kareus"));
await soon(() => marksOf("iteration", "frontier_points").length !== count);
seen.filtered = [marksOf("iteration", "frontier_points").length, names()];
clickOn(entry("kareus"));
await soon(() => marksOf("iteration", "frontier_points").length === count);
const before = ticks("fastest");
one('[data-zoom="0.6"]', timeline()).click();
await soon(() => ticks("fastest").join() !== before.join());
seen.zoomed = ticks("fastest").join() !== before.join();
one('[data-zoom="0"]', timeline()).click();
await soon(() => ticks("fastest").join() === before.join());
seen.unzoomed = ticks("fastest").join() === before.join()
const head = () => {
  const [link, copy, command] = one("#taking").children, tiles = all("#tiles strong").map((e) => e.textContent);
  const file = link.hidden ? null : link.getAttribute("href");
  return [one("#headline").textContent, tiles, command.textContent, copy.dataset.copy, file];
};
seen.heads = [head()];
const powers = () => ["plan_power_2", "plan_seen_2"].map((name) => marksOf("fastest", name)[0]?.getAttribute("d"));
seen.powers = [powers()];
all("#selected [role=group] button")[1].click();
seen.heads.push(head());
seen.saves = [one("#run output").textContent];
await soon(() => powers().join() !== seen.powers[0].join());
seen.powers.push(powers());
all("#selected [role=group] button")[0].click();
await soon(() => powers().join() !== seen.powers[1].join());
seen.powers.push(powers());
seen.heads.push(head());
seen.saves.push(one("#run output").textContent);
const saved = one("#run output").textContent;
one("#run [name=price]").value = 1;
one("#run [name=price]").dispatchEvent(new Event("input", { bubbles: true }));
seen.saved = [saved, one("#run output").textContent];
const isThird = ({ __data__: { datum } }) => datum.method === "kareus" && datum.plan === 2;
clickOn(marksOf("iteration", "frontier_points").find(isThird));
await soon(() => titles()[0] !== seen.titles[0]);
const links = all("#fastest [data-kind]").map((a) => a.hidden);
seen.clicked = { selected: one("#selected").innerText, titles: titles(), links, head: head() };
seen.clicked.pace = one("#bottleneck").textContent;
one('[data-table="iteration"] summary').click();
await soon(() => one('[data-table="iteration"] table'));
seen.behind = all('[data-table="iteration"] tbody tr').length;
seen.focusable = ["tbody button", ".scroll"].map((at) => one(`[data-table="iteration"] ${at}`).tabIndex);
one('[data-table="iteration"] tbody button').click();
seen.shown = one("#selected h3").textContent;
const methods = all("table.sortable").find((t) => t.caption.textContent.startsWith("Max throughput"));
const column = () => [...methods.tBodies[0].rows].map((r) => Number.parseFloat(r.cells[3].textContent));
const savings = () => [...methods.tBodies[0].rows].map((r) => r.cells[1].textContent);
all("th button", methods)[1].click();
seen.savings = savings();
all("th button", methods)[3].click();
seen.sorted = [column(), methods.tHead.rows[0].cells[3].getAttribute("aria-sort")];
const search = document.getElementById("search");
search.closest("details").open = true;
await soon(() => one('[data-figure="search"]').dataset.drawn !== undefined);
seen.candidates = all('[data-figure="search"] path[aria-roledescription="point"]').length;
seen.injected = document.images.length;
seen.requests = performance.getEntriesByType("resource").map((r) => r.name).filter((name) => !name.startsWith("data:"));
seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
seen.background = getComputedStyle(document.body).backgroundColor;
return seen;
"""
LOOK = """
return {
  width: innerWidth,
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  background: getComputedStyle(document.body).backgroundColor,
  drawn: all(".chart svg").map((svg) => svg.getBoundingClientRect().width),
  ink: getComputedStyle(one(".role-axis-title text")).fill,
  flags: all(".flag").map((flag) => [flag.textContent, flag.getClientRects().length]),
  rows: all("section tbody tr").map((row) => row.getBoundingClientRect().height).filter((height) => height),
};
"""


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    inputs = load(WORKLOAD, write_inputs(folder / "results"))
    heads = [
        (
            f"{line.sentence}.",
            [value for value, _, _ in line.facts],
            trainer_command(inputs, name),
            f"plans/{name}.json",
        )
        for name, plan in inputs.plans.items()
        for line in [headline_of(inputs, plan)]
    ]
    return {
        "folder": inputs.folder,
        "expected": heads,
        **probe(folder, page_of(inputs), READER, LIGHT, "--window-size=1280,900"),
    }


def test_every_figure_is_drawn_and_names_its_testbed(read):
    assert len(read["figures"]) == 2
    assert all(LABEL in figure for figure in read["figures"])
    assert read["points"] == sum(map(len, FRONTIERS.values()))
    assert read["bars"] == [8, 8]
    assert not re.search(r"NaN|Infinity|undefined", read["svg"])


def test_the_page_asks_for_nothing_and_fits_its_window(read):
    assert read["requests"] == []
    assert (read["overflow"] <= 0, read["background"]) == (True, rgb(PAPER["light"]))


def test_pointing_at_a_mark_tells_its_numbers(read):
    assert "1: kareus, fastest" in read["tip"]
    assert re.search(r"time saved \(%\)\s+25.0", read["tip"])


def test_a_click_on_the_legend_hides_a_method(read):
    assert set(read["names"]) == set(FRONTIERS)
    points, names = read["filtered"]
    assert points == read["points"] - len(FRONTIERS["kareus"])
    assert set(names) == set(FRONTIERS) - {"kareus"}


def test_buttons_zoom_and_end_zooming(read):
    assert read["zoomed"]
    assert read["unzoomed"]


def test_a_click_on_a_point_shows_its_plan(read):
    """The third plan of kareus: 5 s, 10 kJ, against 4 s and 20 kJ of the baseline."""
    assert read["titles"][0] == "kareus, fastest: 3.000 s, 14.00 kJ"
    assert "kareus, deadline=5.0000s: 5.000 s, 10.00 kJ" in read["clicked"]["titles"]
    assert f"kareus select deadline=5.0000s {shlex.quote(read['folder'])}" in read["clicked"]["selected"]
    assert "25 % more time and 50 % less energy" in read["clicked"]["selected"]
    assert all(read["clicked"]["links"])  # files are of chosen plans


def test_another_plan_changes_the_whole_head_of_the_page(read):
    """Sentence, tiles, command and savings are those that the page of that plan alone would have."""
    first, second = read["expected"]
    assert [head[:2] for head in read["heads"]] == [[sentence, facts] for sentence, facts, *_ in (first, second, first)]
    for head, (_, _, export, file) in zip(read["heads"], (first, second, first), strict=True):
        assert head[2:] == [export, export, file.replace("=", "%3D")]
    assert read["saves"][0].startswith("takes as long ("), "its 4 s are those of the baseline"
    assert read["saves"][1].startswith("saves ")


def area(path: str) -> float:
    """The area above the line of a path, whose points are joined as they come."""
    points = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+),([\d.]+)", path)]
    return sum((right[0] - left[0]) * (left[1] + right[1]) / 2 for left, right in itertools.pairwise(points))


def test_the_power_that_is_drawn_is_that_of_the_plan_that_is_shown(read):
    first, second, again = ([area(path) for path in paths] for paths in read["powers"])
    assert again == pytest.approx(first, rel=1e-3)
    assert second[0] != pytest.approx(first[0], rel=1e-2)


def test_a_point_that_is_no_plan_yet_has_the_command_that_selects_it_at_the_head(read):
    sentence, tiles, command, copied, link = read["clicked"]["head"]
    assert sentence.startswith("Plan deadline=5.0000s, in Kareus' engine: 25 % more time and 50 % less energy ")
    assert tiles[:2] == ["5.000", "10.00"]
    assert command == copied == f"kareus select deadline=5.0000s {shlex.quote(read['folder'])}"
    assert link is None
    pace = read["clicked"]["pace"]
    assert pace.startswith("Stage 0 is the bottleneck")
    clocks = r"(\d+ MHz|\d+ to \d+ MHz, for longest at \d+)"
    assert re.search(rf" The plan runs its \d+ forwards and backwards at {clocks}\.$", pace)


def test_the_table_behind_a_figure_serves_the_keyboard(read):
    assert read["behind"] == sum(map(len, FRONTIERS.values()))
    assert read["focusable"] == [0, 0]
    assert read["shown"].startswith("Plan: kareus, deadline=3.0000s")


def test_tables_sort_by_a_column(read):
    values, order = read["sorted"]
    assert values == sorted(values)
    assert order == "ascending"
    assert read["savings"] == ["-10.0 %", "-10.0 %", "0.0 %", "25.0 %", "\u2013"]  # what has no number comes last


def test_a_price_is_worked_into_the_savings(read):
    cheap, dear = (re.search(r"([\d,.]+) EUR", text)[1] for text in read["saved"])
    assert float(dear.replace(",", "")) == pytest.approx(10 * float(cheap.replace(",", "")), rel=0.01)


def test_what_is_folded_is_drawn_when_it_is_opened(read):
    assert read["candidates"] == 4 * len(PARTITIONS)


def test_a_narrow_dark_screen_is_served_too(tmp_path):
    names = Names(launch=NASTY, selector=NASTY)
    page = page_of(load(WORKLOAD, write_inputs(tmp_path / "results", names)))
    seen = probe(tmp_path, page, LOOK, DARK, "--window-size=800,900", width=400)
    assert (seen["width"], seen["overflow"] <= 0) == (400, True)
    assert (seen["background"], seen["ink"]) == (rgb(PAPER["dark"]), "rgb(236, 238, 241)")
    assert all(0 < width <= 400 for width in seen["drawn"])
    assert {"--method", "--format"} & {flag for flag, _ in seen["flags"]}
    assert max(lines for _, lines in seen["flags"]) == 1, "no line breaks within the dashes of a flag"
    assert all(height == round(height) for height in seen["rows"]), "else a head that stays covers the rule above it"


LABELS = """
const middle = (e) => e.getBoundingClientRect().x + e.getBoundingClientRect().width / 2;
const axes = all(".role-axis").filter((axis) => {
  const lines = all(".role-axis-tick line", axis).map((e) => e.getBoundingClientRect());
  return lines.length && lines.every((line) => line.height > line.width);
});
const far = (axis) => {
  const ticks = all(".role-axis-tick line", axis).map(middle);
  return all(".role-axis-label text", axis).map((e) => Math.min(...ticks.map((x) => Math.abs(x - middle(e)))));
};
const words = one(".chosen_told_marks text"), said = words.getBoundingClientRect();
const covers = ({ left, right, top, bottom }) =>
  left < said.right && right > said.left && top < said.bottom && bottom > said.top;
return {
  far: axes.map(far),
  told: words.textContent,
  covered: marksOf("iteration", "frontier_points").filter((e) => covers(e.getBoundingClientRect())).length,
};
"""


@pytest.mark.parametrize("width", [400, 1280])
def test_labels_are_at_their_ticks_and_words_cover_no_plan(tmp_path, width):
    inputs = load(WORKLOAD, write_inputs(tmp_path / "results"))
    ours = inputs.iteration.filter(pl.col("method") == "kareus").head(1)
    faster = ours.with_columns(plan=9, time_s=pl.col("time_s") * 0.98, energy_j=pl.col("energy_j") * 1.01)
    page = page_of(dataclasses.replace(inputs, iteration=pl.concat([inputs.iteration, faster.cast(dict(ours.schema))])))
    seen = probe(tmp_path, page, LABELS, LIGHT, "--window-size=1500,900", width=width)
    assert len(seen["far"]) == 2 and all(seen["far"]), "of the frontiers and of the timeline"
    assert max(pixels for axis in seen["far"] for pixels in axis) < 1
    assert seen["told"].startswith("fastest: 3.000 s"), "as the tile above has it"
    assert width < 560 or seen["covered"] == 0, "narrow figures have no such words"


PARTS = """
const ticks = () => all('#fastest .role-axis-label text').map((e) => Number.parseFloat(e.textContent));
const ends = () => ticks().filter(Number.isFinite);
const seen = { names: all(".parts button").map((b) => b.textContent), begins: Math.max(...ends()) };
all(".parts button")[2].click();
await soon(() => Math.max(...ends()) > 2 * seen.begins);
seen.cooled = Math.max(...ends());
return seen;
"""


def test_a_long_timeline_begins_with_its_warm_up_and_has_its_parts_as_buttons(tmp_path):
    inputs = load(WORKLOAD, write_inputs(tmp_path / "results"))
    (name, short), *_ = inputs.plans.items()
    period = [i for i in short.stages[0].instructions if i.direction == "forward"][:1]
    period += [i for i in short.stages[0].instructions if i.direction == "backward"][:1]
    long_stage, now_s = [], 0.0
    for number in range(60):
        planned = dataclasses.replace(period[number % 2], microbatch=number // 2, start_s=now_s)
        long_stage.append(planned)
        now_s += planned.time_s
    stages = tuple(dataclasses.replace(stage, instructions=tuple(long_stage)) for stage in short.stages)
    cost = dataclasses.replace(short.prediction, time_s=now_s)
    plan = dataclasses.replace(short, stages=stages, prediction=cost)
    page = page_of(dataclasses.replace(inputs, plans={name: plan}, plan_errors={name: inputs.plan_errors[name]}))
    seen = probe(tmp_path, page, PARTS, LIGHT, "--window-size=1280,900")
    assert seen["names"] == ["Warm-up", "One period", "Cool-down"]
    assert seen["begins"] < 10.0  # of 45 s; kilowatts are among the ticks
    assert seen["cooled"] > 40.0
