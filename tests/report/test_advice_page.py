"""The page of the adviser: that it begins with the answer, and has a colour for each layout of the frontier."""

import html
import re
from dataclasses import replace

import pytest
from helpers.builders import CONFIG
from helpers.pages import Blocks, check_specifications

from kareus.adviser.advice import answer
from kareus.adviser.answers import LayoutChoice
from kareus.adviser.lines import answer_lines, commands, error_text, gain_words, layout_settings, layout_words
from kareus.adviser.question import ask
from kareus.report.advice_figure import frontier_figure
from kareus.report.advice_page import advice_page, write_folder
from kareus.report.charts import columns_of

FEW = ("model=qwen3-1.7b", "gpu=h100-sxm5-80gb", "tp=1,2", "cp=1", "pp=1,2", "microbatch_size=2", "recompute=none")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("advice")
    advice = answer(ask(FEW, gpus=4, global_batch=16, sequence_length=2048, config_dir=CONFIG))
    return advice, write_folder(folder, advice)


def test_figures_are_specifications_of_vega_lite(written):
    check_specifications(written[1].read_text())


def test_the_page_begins_with_the_answer_and_has_the_commands(written):
    advice, path = written
    page = path.read_text()
    said, costs = gain_words(advice)
    answer = html.unescape(page[page.index("<strong>") : page.index("</strong>")])
    assert said.replace("`", "")[1:] in re.sub("</?code>", "", answer)
    lead = html.unescape(page[page.index("</strong>", page.index('class="answer"')) : page.index("<h2")])
    assert advice.chosen.layout.candidate.layout.words not in said, "words of trainers come after the answer"
    assert costs.replace("`", "") in re.sub("</?code>", "", lead), "and what it takes"
    assert layout_words(advice)[1:] in lead
    flags = layout_settings(advice).removeprefix("Megatron-Core: ")
    assert flags.startswith("--tensor-model-parallel-size ")
    assert f"In Megatron-Core: <code>{flags}</code>" in lead
    assert error_text(advice) in lead, "and how wrong that may be"
    for command in commands(advice):
        assert command in page


def test_the_page_labels_its_figures_as_the_terminal_does(written):
    advice, path = written
    page = path.read_text()
    badge = page[page.index('class="badge">') : page.index("</span>")].partition(">")[2]
    assert badge == "predicted by the GPU model, H100-SXM5-80GB"
    assert any(line.startswith("[predicted by the GPU model, for ") for line in answer_lines(advice))
    assert "simulated testbed, H100" not in page, "on which nothing was measured"


def test_the_chosen_layout_is_emphasised_among_all(written):
    advice, path = written
    table = next(t for t in Blocks(path.read_text()).tables if t.names[:3] == ["layout", "s", "kJ"])
    assert len(table.rows) == sum(bool(one.plans) for one in advice.size.layouts)
    assert table.ours.count(True) == 1


def test_the_table_says_why_layouts_are_listed_that_need_more_than_a_gpu_has(written):
    """It marks those of over 95 %, and the estimate may be off by 5 %."""
    advice, _ = written

    def note(share):
        layouts = []
        for one in advice.size.layouts:
            workload = one.candidate.workload
            gpu = replace(workload.gpu, memory_gib=one.candidate.memory.total_gib / share)
            layouts.append(replace(one, candidate=replace(one.candidate, workload=replace(workload, gpu=gpu))))
        shown = advice_page(replace(advice, sizes=(replace(advice.size, layouts=layouts),)))
        return next(sheet.note for section in shown.sections for sheet in section.sheets if sheet.note)

    assert note(1.04).endswith(" Memory: up to 105 % may fit, since the estimate may be off by 5 %.")
    assert "may fit" not in note(0.9)


def test_sentences_of_the_lead_stay_short(written):
    """Layouts that save more are a list."""
    advice, _ = written
    most_j = 0.9 * advice.size.baseline.cost.energy_j
    slower = replace(advice.chosen.cost, time_s=1.02 * advice.chosen.cost.time_s, energy_j=most_j)
    layouts = [replace(one, plans=(*one.plans[:1], slower)) if one.number == 2 else one for one in advice.size.layouts]
    lead = advice_page(replace(advice, sizes=(replace(advice.size, layouts=layouts),))).extra["lead"]
    words = next(one.candidate.words for one in layouts if one.number == 2)
    (listed,) = (each for each in lead if not isinstance(each, str))
    (other,) = listed  # which beats the chosen layout's slower plan in time and energy
    assert f": {words}, at " in other
    lead = [line for each in lead for line in ([each] if isinstance(each, str) else each)]
    sentences = [part for line in lead if not line.startswith("In ") for part in re.split(r"[.:] ", line)]
    assert max(len(sentence.split()) for sentence in sentences) <= 40


def test_bands_are_of_the_error_of_each_layout(written):
    """Where some were never measured, those that were are no less sure for it."""
    advice, _ = written
    percent = advice.ties.energy_percent
    (wide, narrow), size = (2 * percent, percent), advice.size
    mixed = replace(size, ties=replace(size.ties, energy_percent=wide, measured_percent=narrow))
    rows = frontier_figure(advice, mixed).data["layouts_4"].to_dicts()
    assert {round(100 * (row["most"] / row["millijoules_per_token"] - 1), 6) for row in rows} == {narrow}
    assert f"{narrow:g} % where a layout's kind was measured, else {wide:g} %" in frontier_figure(advice, mixed).note


def test_the_figure_marks_what_the_headline_compares_with(written):
    """A job's layout may be far slower than all that is drawn: its name is written into the figure, not out of it."""
    advice, _ = written
    slow = advice.size.layouts[-1]
    cost = replace(advice.chosen.cost, time_s=2 * advice.chosen.cost.time_s)
    job = replace(advice.size, job=LayoutChoice(layout=slow, cost=cost))
    for size, name, side in ((advice.size, "Megatron-Core", "right"), (job, "your script's layout", "left")):
        figure = frontier_figure(advice, size)
        marked = figure.data["layouts_4_marked"].to_dicts()
        assert [row["name"] for row in marked] == [f"{name} without a plan", "chosen: fastest"]
        assert marked[0]["tokens_per_s"] == pytest.approx(16 * 2048 / size.reference.cost.time_s)
        aligned = {layer["name"]: layer["mark"].get("align") for layer in figure.spec["layer"]}
        assert (aligned["layouts_4_trainer"], aligned["layouts_4_chosen"]) == (side, "right")


def test_downloads_are_beside_the_page(written):
    _, path = written
    names = {file.name for file in (path.parent / "data").iterdir()}
    assert names == {f"advised_{name}.{kind}" for name in ("layouts", "plans") for kind in ("csv", "parquet")}


def test_the_line_of_a_layout_does_not_fold_back_where_plans_take_the_same_time(written):
    """The solver's least time may lie 6e-9 of it before that of a plan of less energy."""
    advice, _ = written
    first = advice.size.frontier[0].layout
    plan = first.plans[0]
    worse = replace(plan, time_s=plan.time_s * (1 - 6e-9), energy_j=plan.energy_j * 1.02)
    layouts = [replace(one, plans=(worse, *one.plans)) if one is first else one for one in advice.size.layouts]
    figure = frontier_figure(advice, replace(advice.size, layouts=layouts))
    points = columns_of(figure.data["layouts_4"])
    rows = zip(points["words"], points["tokens_per_s"], points["energy_kj"], strict=True)
    line = [(speed, energy_kj) for words, speed, energy_kj in rows if words.startswith(f"#{first.number} ")]
    speeds = [speed for speed, _ in line]
    assert speeds == sorted(set(speeds), reverse=True)
    assert len(line) == len(first.plans)
    assert line[0][1] == pytest.approx(plan.energy_j / 1e3), "not the worse one"
