"""The page of a workload as text: its numbers are those of the tables and plans, and names stay names."""

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from helpers.pages import Blocks, check_specifications
from helpers.report_tables import (
    FRONTIERS,
    PARTITIONS,
    WORKLOAD,
    Names,
    candidate_rows,
    iteration_rows,
    with_runs,
    write_inputs,
)

from kareus.model.config import model_words
from kareus.model.parameters import total_parameters
from kareus.pipeline.config import PipelineSchedule
from kareus.plans.build import select_plan
from kareus.plans.document import Plan
from kareus.plans.frontiers import Frontiers
from kareus.plans.selectors import check_costs_suffice, parse_selector
from kareus.report.charts import columns_of
from kareus.report.page import page_html
from kareus.report.savings_words import savings_words
from kareus.report.workload.frontiers import (
    gain_polygon,
    iteration_figure,
    method_ends,
    microbatch_figure,
    plan_points,
)
from kareus.report.workload.headline import bottleneck, bottleneck_stage, headline_of, trainer_words, workload_words
from kareus.report.workload.inputs import ReportInputs, load
from kareus.report.workload.page import in_trainer, trainer_command, workload_page
from kareus.report.workload.schedules import schedules
from kareus.report.workload.summary import method_sheets, plan_rows, summary_text
from kareus.report.workload.timeline import Drawn, instruction_rows

NASTY = "</script><script>alert(1)</script><!--<b>&amp;\u2028"


def page_of(inputs: ReportInputs) -> str:
    return page_html(workload_page(inputs))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return load(WORKLOAD, write_inputs(tmp_path_factory.mktemp("results")))


@pytest.fixture(scope="module")
def page(inputs):
    return page_of(inputs)


@pytest.fixture(scope="module")
def blocks(page):
    return Blocks(page)


def test_figures_are_specifications_of_vega_lite(page):
    check_specifications(page)


def test_the_first_line_is_the_answer(blocks):
    title = "Llama 3.2 3B on 16 A100-SXM4-40GB, pipeline 2, tensor 8"
    assert "".join(blocks.texts["h1"]) == title
    answer = "Plan fastest, in Kareus' engine: 25 % less time and 30 % less energy than the trainer's own execution."
    assert "".join(blocks.texts["headline"]) == answer
    assert "".join(blocks.texts["meaning"]) == "Fastest: least energy within 0.3 % of the least time."
    for value in ("3.000", "14.00", f"{2 * 8 * 4096 / 3:,.0f}", f"{14e6 / (2 * 8 * 4096):.3g}", "4.67"):
        assert value in blocks.texts["strong"], value
    assert "plans/fastest.json" in blocks.links("json")


@pytest.mark.parametrize(
    ("software", "method", "words"),
    [
        ("megatron-core", "kareus", ", in Kareus' engine"),
        ("megatron-core", "sequential+perseus", ", in Megatron-Core"),
        ("nanotron", "sequential+perseus", ", in Kareus' engine"),  # which has one clock for each step
        ("nanotron", "sequential", ", in nanotron"),
    ],
)
def test_the_answer_names_what_runs_the_plan(inputs, software, method, words):
    workload = replace(inputs.configured, software=replace(inputs.configured.software, name=software))
    assert trainer_words(workload, inputs.microbatch, method) == words


def test_the_page_says_how_large_the_model_is(page, inputs):
    model = inputs.configured.model
    assert f"{total_parameters(model):,} parameters, " in page


def test_a_title_names_what_departs_from_the_usual_pipeline(inputs):
    workload = inputs.configured
    shared = replace(workload.parallelism, sequence_parallel=True)
    interleaved = replace(workload.pipeline, schedule=PipelineSchedule.INTERLEAVED, chunks=2)
    said = workload_words(replace(workload, parallelism=shared, pipeline=interleaved))
    assert said.endswith(", pipeline 2, tensor 8, schedule interleaved, sequence parallel")
    experts = replace(workload, parallelism=replace(workload.parallelism, ep=4))
    assert workload_words(experts).endswith(", pipeline 2, tensor 8, expert 4")


def test_what_is_not_known_is_named_as_it_is(inputs):
    assert workload_words(inputs.configured).startswith("Llama 3.2 3B on")
    assert [model_words(name) for name in ("qwen3-1.7b", "llama3.3-70b", "tiny", "llama3")] == [
        "Qwen3 1.7B",
        "Llama 3.3 70B",
        "tiny",
        "llama3",
    ]


def paced(plan: Plan, times_s: Sequence[float], clocks_mhz: Sequence[Sequence[int]]) -> Plan:
    """The plan with stages whose instructions take this time each, at these clocks in turn."""
    return dataclasses.replace(
        plan,
        stages=tuple(
            dataclasses.replace(
                plan.stages[0],
                stage=number,
                instructions=tuple(
                    dataclasses.replace(instruction, time_s=time_s, frequency_mhz=mhz[n % len(mhz)])
                    for n, instruction in enumerate(plan.stages[0].instructions)
                ),
            )
            for number, (time_s, mhz) in enumerate(zip(times_s, clocks_mhz, strict=True))
        ),
    )


def test_the_bottleneck_waits_least_at_the_baseline_however_busy_a_plan_keeps_the_others(inputs):
    """Stage 0 is slowed until it is the busiest of the plan; stage 2 is never slowed."""
    plan = inputs.plans["fastest"]
    baseline = paced(plan, (0.768, 0.765, 0.803, 0.754), [[1980]] * 4)
    slowed = paced(plan, (0.6947, 0.6868, 0.6917, 0.6806), [[1500, 1980], [1500], [1980], [1500]])
    text = bottleneck(slowed, baseline)
    assert text.startswith("Stage 2 is the bottleneck. At the baseline it is busy for 3.21 of 3.00 s and waits least.")
    assert "The plan runs its 4 forwards and backwards at 1980 MHz; the other stages run at 1500 to 1980 MHz" in text
    assert text.endswith(", for longest at 1500, slowed down where they would only wait.")


def test_of_a_stage_whose_clocks_vary_their_range_is_said_and_where_it_computes_for_longest(inputs):
    """Three instructions of four are at one clock; of the clocks of the others the time decides, not the number."""
    plan = inputs.plans["fastest"]
    baseline = paced(plan, (0.7, 0.8), [[1410]] * 2)
    varied = paced(plan, (0.7, 0.8), [[1110], [1155, 1410, 1410, 1410]])
    first, *others = varied.stages[0].instructions
    long = dataclasses.replace(first, frequency_mhz=930, time_s=9.0)
    mixed = dataclasses.replace(varied.stages[0], instructions=(long, *others))
    text = bottleneck(dataclasses.replace(varied, stages=(mixed, varied.stages[1])), baseline)
    assert "forwards and backwards at 1155 to 1410 MHz, for longest at 1410; " in text
    assert "; stage 0 runs at 930 to 1110 MHz, for longest at 930, slowed down where it would only wait." in text


def test_beside_the_pace_stands_what_changes_of_clock_are_taken_to_cost(inputs):
    """Where clocks alternate, each instruction changes its; none costs time where none was measured."""
    plan = inputs.plans["fastest"]
    changed = paced(plan, [1.0] * len(plan.stages), [[1500, 1980]] * len(plan.stages))
    changes = ", ".join(str(len(stage.instructions)) for stage in changed.stages)
    said = f"Changes of clock an iteration, stage by stage: {changes}, taken to cost no time until `kareus doctor"
    assert said in page_of(replace(inputs, plans=inputs.plans | {"fastest": changed}))


def test_of_stages_that_wait_alike_the_bottleneck_is_the_one_that_the_plan_slows_least(inputs):
    plan = inputs.plans["fastest"]
    baseline = paced(plan, (0.8, 0.8), [[1410]] * 2)
    for first, second, expected in ((1410, 1200, 0), (1200, 1410, 1)):
        assert bottleneck_stage(paced(plan, (0.8, 0.8), [[first], [second]]), baseline) == expected


@pytest.mark.parametrize("others_mhz", [[1410], [1200, 1410]])
def test_no_stage_is_called_slowed_beside_a_bottleneck_at_a_lower_clock(inputs, others_mhz):
    plan = inputs.plans["fastest"]
    baseline = paced(plan, (0.7, 0.8), [[1410]] * 2)
    assert "slowed down" not in bottleneck(paced(plan, (0.7, 0.8), [[1410], [1200]]), baseline)
    assert "slowed down" in bottleneck(paced(plan, (0.7, 0.8), [[1200], others_mhz]), baseline)


@pytest.mark.parametrize(
    ("percents", "words"),
    [
        ((2.0, 5.2), "2.0 to 5.2 % less time"),
        ((-5.2, -2.0), "2.0 to 5.2 % more time"),
        ((-3.0, 16.0), "from 3.0 % more time to 16 % less time"),
        ((16.0, 16.2), "16 % less time"),
    ],
)
def test_savings_of_several_plans_name_gains_and_losses(percents, words):
    plans = [SimpleNamespace(time_reduction_percent=p, energy_reduction_percent=7.0) for p in percents]
    assert f" of both, in Kareus' engine: {words} and 7.0 % less energy" in savings_words(plans, "both")


def test_the_command_is_of_what_the_headline_says_the_plan_runs_in(inputs):
    """Megatron-Core runs no nanobatches; of plans that it runs it gets the layout."""
    plan = inputs.plans["fastest"]
    whole = replace(inputs, plans={"fastest_whole": replace(plan, method="sequential+perseus")})
    assert headline_of(inputs, plan).trainer == ", in Kareus' engine"
    assert trainer_command(inputs, "fastest").startswith("kareus train ")
    assert "/plan/fastest.json --communicator nccl " in trainer_command(inputs, "fastest")
    assert trainer_command(whole, "fastest_whole").endswith("/plan/fastest_whole.json --format megatron-args")


def test_tiles_have_the_digits_that_the_saving_beside_them_needs(inputs):
    shown = headline_of(inputs, inputs.plans["fastest"])
    (_, _, time_before), (_, _, energy_before), *_ = shown.facts
    base = shown.baseline.prediction
    close = replace(shown, row=replace(shown.row, time_s=base.time_s * 1.004, energy_j=base.energy_j * 0.88))
    (time, unit, _), (energy, of_energy, _), *_ = close.facts
    assert (unit, of_energy) == ("s an iteration", "kJ an iteration")
    assert float(time) / float(time_before) == pytest.approx(1.004, abs=5e-4)
    assert float(energy) / float(energy_before) == pytest.approx(0.88, abs=5e-4)


def test_the_page_says_what_the_trainer_gets_and_what_turns_it_on(inputs, blocks):
    """The headline is of a plan of Kareus, which Megatron-Core does not run whole."""
    assert "".join(blocks.texts["trust"]).startswith("Simulated; error: 9 of 10 ")
    assert "".join(blocks.texts["size"]).endswith("; timed as the paper's Megatron-LM (software=megatron-paper)")
    assert "padding" not in "".join(blocks.texts["size"])
    padding = replace(inputs.configured, software=replace(inputs.configured.software, vocabulary_multiple=128))
    multiple = 128 * padding.parallelism.tp
    rows = f"; vocabulary of {padding.model.vocab_size:,} after padding to a multiple of {multiple:,}; timed as "
    assert rows in workload_page(replace(inputs, configured=padding)).extra["size"]
    shown = in_trainer(inputs, "fastest")
    assert "".join(blocks.texts["in-trainer"]) == shown["words"].partition("`")[0]
    assert shown["words"].endswith(f": `{shown['lines'][0]}`"), "a command is code, without a full stop behind it"
    assert "--method sequential+perseus" in shown["words"]
    select, *others = shown["lines"]
    assert any("plan/fastest_sequential+perseus.json" in line for line in others)
    assert select.startswith("kareus select fastest ") and select.endswith(" --method sequential+perseus")
    assert f": {shown['turning'].partition('(')[2].partition(')')[0]}: " in shown["words"]  # the trainer's saving
    assert shown["turning"].endswith(', first with clocks="dry", which only logs, then without, by')
    assert others[-1].endswith(', clocks="dry")'), "as it is said"
    made = inputs.plans | {"fastest_sequential+perseus": inputs.plans["fastest"]}
    assert in_trainer(replace(inputs, plans=made), "fastest")["lines"] == tuple(others)


@pytest.mark.parametrize(("selector", "is_within"), [("deadline=3.5s", False), ("deadline=4s", True)])
def test_no_line_turns_on_a_plan_that_the_trainer_cannot_have(tmp_path, selector, is_within):
    """The least time of plans of clocks alone is 4 s."""
    inputs = load(WORKLOAD, write_inputs(tmp_path, Names(selector=selector)))
    shown = in_trainer(inputs, next(iter(inputs.plans)))
    assert (f"has no plan for {selector}: its fastest plan takes 4.000 s" in shown["words"]) is not is_within
    assert ".." not in shown["words"]
    assert ('id="turning" hidden' in page_of(inputs)) is not is_within


@pytest.mark.parametrize("selector", ["fastest", "swing=10percent", "edp"])
def test_one_clock_is_chosen_by_a_goal_that_the_adapter_takes(inputs, selector):
    """`nanotron` has one clock for all steps; limits on how power moves are kept by plans alone."""
    software = dataclasses.replace(inputs.configured.software, name="nanotron")
    chosen = dataclasses.replace(inputs.plans["fastest"], selector=selector)
    configured = dataclasses.replace(inputs.configured, software=software)
    alike = dataclasses.replace(inputs, configured=configured, plans={"fastest": chosen})
    line = in_trainer(alike, "fastest")["lines"][-1]
    goal = re.search(r'choose_clock\("(.+?)"', line)[1]
    check_costs_suffice(parse_selector(goal))
    assert goal == (selector if selector == "edp" else "straggler=1.05x")


def test_names_of_methods_that_end_side_by_side_do_not_cross():
    rows = pl.DataFrame(
        [("kareus", t, 9.0 - t) for t in (1.0, 2.0)]
        + [("sequential+perseus", t, 12.0 - t) for t in (1.0, 2.5)]
        + [("nanobatching+perseus", t, 12.1 - t) for t in (1.0, 2.6)]
        + [("sequential", 1.5, 20.0), ("nanobatching", 1.6, 20.1)],
        schema=["method", "time_s", "energy_kj"],
        orient="row",
    )
    places = dict(method_ends(rows).select("method", "place").iter_rows())
    assert (places["sequential"], places["nanobatching"]) == ("left", "right")
    assert places["sequential+perseus"] != places["nanobatching+perseus"]


def test_names_of_methods_whose_ends_are_near_do_not_meet_between_them():
    """Ends at 12.6, 12.67 and 12.81 kJ of a span of 2.2: a pixel is 0.006 kJ, and names are 13 from their ends."""
    ends = {"kareus": (3.58, 12.6), "sequential+perseus": (3.64, 12.67), "nanobatching+perseus": (3.61, 12.81)}
    rows = pl.DataFrame(
        [(method, time_s, energy_kj) for method, end in ends.items() for time_s, energy_kj in ((2.96, 14.8), end)],
        schema=["method", "time_s", "energy_kj"],
        orient="row",
    )
    places = dict(method_ends(rows).select("method", "place").iter_rows())
    signs = {"below": -1, "above": 1}
    levels = [ends[method][1] + 13 * 0.006 * signs[place] for method, place in places.items() if place in signs]
    assert len(levels) >= 2
    assert min(abs(a - b) for n, a in enumerate(levels) for b in levels[n + 1 :]) > 12 * 0.006
    assert places["kareus"] == "below"


def test_names_of_methods_that_end_at_one_point_do_not_cross():
    """Where nothing overlaps, plans of `kareus` are those of `sequential+perseus`."""
    rows = pl.DataFrame(
        [(method, t, 9.0 - t) for method in ("sequential+perseus", "kareus") for t in (1.0, 2.0)]
        + [(method, 1.5, 20.0) for method in ("sequential", "nanobatching")],
        schema=["method", "time_s", "energy_kj"],
        orient="row",
    )
    places = dict(method_ends(rows).select("method", "place").iter_rows())
    assert {places["kareus"], places["sequential+perseus"]} == {"below", "above"}
    assert {places["sequential"], places["nanobatching"]} == {"left", "right"}


def test_the_frontiers_of_the_page_are_those_of_the_table(blocks):
    drawn = blocks.data["figures"]["iteration"]["data"]["plans"]
    names = ("method", "time_s", "energy_kj", "gap_percent")
    assert set(zip(*(drawn[name] for name in names), strict=True)) == {
        (row["method"], row["time_s"], row["energy_j"] / 1e3, 100 * row["gap"]) for row in iteration_rows()
    }
    chosen = blocks.data["figures"]["iteration"]["data"]["chosen"]
    expected = [(time_s, energy_j / 1e3) for time_s, energy_j in FRONTIERS["kareus"][:2]]
    assert list(zip(chosen["time_s"], chosen["energy_kj"], strict=True)) == expected


def test_the_gain_lies_between_two_frontiers(inputs):
    """Area by the shoelace formula, against that of the steps: (18 - 14) + (18 - 12) in kJ over 1 s each."""
    corners = gain_polygon(plan_points(inputs.iteration)).select("time_s", "energy_kj").rows()
    pairs = zip(corners, [*corners[1:], corners[0]], strict=True)
    area = abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in pairs)) / 2
    assert area == pytest.approx(4.0 + 6.0)


def test_nothing_is_called_shaded_where_nothing_is_gained(inputs):
    """Where no microbatch can be halved, `kareus` plans what `sequential+perseus` does."""
    others = inputs.iteration.filter(pl.col("method") != "kareus")
    theirs = others.filter(pl.col("method") == "sequential+perseus")
    same = pl.concat([others, theirs.with_columns(method=pl.lit("kareus").cast(others["method"].dtype))])
    plans = plan_rows(inputs.iteration, list(inputs.plans.values()))
    shown = [iteration_figure(rows, plans, None).note for rows in (inputs.iteration, same)]
    assert [note.startswith("Shaded") for note in shown] == [True, False]


def test_code_in_texts_is_marked_as_code(tmp_path):
    page = page_of(load(WORKLOAD, with_runs(write_inputs(tmp_path), tmp_path)))
    text = re.sub(r"(?s)<(script|pre|style).*?</\1>", "", page)
    assert "`" not in text
    assert "<code>fastest</code>" in text


def test_the_candidates_of_the_page_are_those_of_the_tables(blocks):
    drawn = blocks.data["figures"]["search"]["data"]["candidates"]
    assert drawn["partition"] == [name for name in PARTITIONS for _ in candidate_rows()]
    for name, scale in (("time_s", 1e3), ("dynamic_energy_j", 1), ("predicted_time_s", 1e3)):
        shown = drawn[name.replace("time_s", "time_ms")]
        expected = [row[name] and row[name] * scale for _ in PARTITIONS for row in candidate_rows()]
        assert shown == pytest.approx(expected), name


def test_no_table_says_of_every_method_that_there_is_nothing_to_say(inputs):
    """As of a trainer that runs `sequential` alone beside `sequential+perseus`, where no plan is as fast."""
    shown = [sheet.caption.partition(":")[0] for sheet in method_sheets(inputs.savings)]
    assert shown == ["Max throughput", "Frontier improvement"]
    (alone,) = [saved for saved in inputs.savings if saved.compared.method == "sequential"]
    none = {"iso_time_energy_reduction_percent": None, "iso_energy_time_reduction_percent": None}
    alone = replace(alone, compared=replace(alone.compared, **none))
    assert [sheet.caption.partition(":")[0] for sheet in method_sheets([alone])] == ["Max throughput"]


def test_the_answer_comes_before_the_name_of_a_folder(page):
    head = page[page.index("<h1>") : page.index("<h2>")]
    assert head.index('class="answer"') < head.index(f"Folder: {WORKLOAD}")


def test_the_tables_of_the_page_are_those_of_the_terminal(blocks, inputs):
    for sheet in method_sheets(inputs.savings):
        shown = blocks.table(sheet.caption)
        assert [tuple(row) for row in shown.rows] == [row.cells for row in sheet.rows]
        assert shown.ours == [row.cells[0] == "kareus" for row in sheet.rows]
    assert "".join(blocks.texts["pre"]).startswith(summary_text(inputs))


def test_the_timelines_of_the_page_are_those_of_the_plans(blocks, inputs):
    for plan, shown in zip(inputs.plans.values(), blocks.data["chosen"], strict=True):
        rows = [(stage.stage, i) for stage in plan.stages for i in stage.instructions]
        assert shown["rows"]["stage"] == [stage for stage, _ in rows]
        assert shown["rows"]["start_s"] == pytest.approx([i.start_s for _, i in rows], abs=1e-6)
        assert shown["rows"]["end_s"] == pytest.approx([i.start_s + i.time_s for _, i in rows], abs=1e-6)
        assert shown["rows"]["frequency_mhz"] == [i.frequency_mhz for _, i in rows]
        assert shown["rows"]["power_w"] == pytest.approx([i.energy_j / i.time_s for _, i in rows])


def unpacked(found, method, plan):
    """The rows of a plan, added up as page.js does."""
    numbers, gaps, *_ = found["plans"][method][str(plan)]
    points, ended, rows = found["points"], {}, []
    for stage, number, gap in zip(found["instructions"]["stage"], numbers, gaps, strict=True):
        start = ended.get(stage, 0) + gap
        ended[stage] = start + points["time_us"][number]
        rows.append((start / 1e6, ended[stage] / 1e6, points["frequency_mhz"][number], points["energy_j"][number]))
    return rows


def test_every_plan_of_a_frontier_can_be_shown(inputs):
    found = schedules(inputs)
    frontiers = Frontiers(iteration=inputs.iteration, microbatch=inputs.microbatch, testbed=inputs.testbed)
    assert {m: len(plans) for m, plans in found["plans"].items()} == {m: len(points) for m, points in FRONTIERS.items()}
    for method in FRONTIERS:
        plan = select_plan(inputs.configured, frontiers, "fastest", method, name=WORKLOAD)
        columns = columns_of(instruction_rows(plan).select("start_s", "end_s", "frequency_mhz", "energy_j"))
        assert unpacked(found, method, 0) == list(zip(*columns.values(), strict=True))


def test_a_plan_that_is_clicked_on_draws_the_power_of_its_plan_file(inputs):
    frontiers = Frontiers(iteration=inputs.iteration, microbatch=inputs.microbatch, testbed=inputs.testbed)
    for method, plans in schedules(inputs)["plans"].items():
        plan = select_plan(inputs.configured, frontiers, "fastest", method, name=WORKLOAD)
        _, _, between_us, powers_w, means_w = plans["0"]
        frames = Drawn("plan", "plan", plan, inputs.configured.gpu).frames
        moments = np.cumsum(between_us) / 1e6
        assert moments.tolist() == pytest.approx(frames["plan_powers"]["start_s"].to_list())
        assert powers_w == pytest.approx((1e3 * frames["plan_powers"]["power_kw"]).to_list(), abs=1)
        assert means_w == pytest.approx((1e3 * frames["plan_means"]["power_kw"]).to_list()[::2], abs=1)


def test_stages_that_cost_the_same_share_a_panel(inputs):
    rows = microbatch_figure(inputs.microbatch).data["microbatch"]
    assert rows["panel"].unique(maintain_order=True).to_list() == ["forward, stage 0, 1", "backward, stage 0, 1"]
    assert rows.group_by("panel").len()["len"].to_list() == [3 * 2 + 2] * 2


def test_chunks_of_a_stage_have_panels_in_order_of_passing(inputs):
    second = inputs.microbatch.with_columns(chunk=pl.lit(1, pl.Int64), time_s=pl.col("time_s") * 2)
    split = pl.concat([inputs.microbatch, second]).with_columns(
        pl.col("direction").replace("backward", "input-gradient")
    )
    rows = microbatch_figure(split).data["microbatch"]
    assert rows["panel"].unique(maintain_order=True).to_list() == [
        f"{direction}, stage 0 chunk {chunk}, 1 chunk {chunk}"
        for direction in ("forward", "input-gradient")
        for chunk in (0, 1)
    ]


def test_waiting_costs_what_the_frontiers_left_out(inputs):
    assert inputs.blocking_power_w == pytest.approx(85.0)


def test_the_page_asks_the_network_for_nothing(page, blocks):
    """Its policy forbids every request; what is its own has no address but names of schemas and namespaces."""
    assert ("content", "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
            "img-src data:") in blocks.attributes  # fmt: skip
    assert {value for name, value in blocks.attributes if name in ("src", "action", "srcset")} == set()
    own = page.replace("".join(blocks.texts["vega"]), "")
    named = set(re.findall(r"https?://[^\s\"'<>]+", own))
    assert all(name.startswith("https://vega.github.io/schema/vega-lite/") for name in named), named
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(", own)


def test_names_cannot_end_the_data_block_or_become_markup(tmp_path):
    names = Names(workload=f"nasty {NASTY}", launch=NASTY, selector=NASTY)
    nasty = Blocks(page_of(load(names.workload, write_inputs(tmp_path, names))))
    plain = Blocks(page_of(load(WORKLOAD, write_inputs(tmp_path / "plain", Names(selector="plain")))))
    assert nasty.tags == plain.tags
    assert any(names.workload in text for texts in nasty.texts.values() for text in texts)
    assert nasty.data["chosen"][0]["selector"] == NASTY


def test_equal_inputs_give_equal_pages(page, inputs):
    assert page_of(inputs) == page


def test_the_page_is_small(page):
    assert len(page.encode()) < 1_500_000
    assert json.loads("".join(Blocks(page).texts["data"]))
