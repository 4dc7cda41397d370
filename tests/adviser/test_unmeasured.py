"""Software that was never measured: what a wrong order may cost, what to measure first, and the answer after that."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.builders import CONFIG

import kareus
from kareus.adviser.answers import Advice, LayoutChoice
from kareus.adviser.beside import full_line, measure_lines, order_lines, run_of
from kareus.adviser.lines import answer_lines, row_lines, unset_line
from kareus.adviser.measured import with_measured
from kareus.adviser.order import TIED_SHARE
from kareus.adviser.plain import plain
from kareus.adviser.rows import full_note, memory_share, table_lines
from kareus.adviser.runs import LayoutRun, LayoutTimes, read_runs, runs_text
from kareus.adviser.tables import layouts_frame
from kareus.adviser.unmeasured import sorted_by_trainer, to_measure
from kareus.errors import ArtifactError, ConfigError
from kareus.pipeline.config import PipelineSchedule
from kareus.report.advice_page import advice_page
from kareus.software.record import driven, with_numbers
from kareus.workload.compose import compose
from kareus.workload.memory import MAY_FIT

pytestmark = pytest.mark.slow

FEW = (
    "model=qwen3-1.7b", "gpu=h100-sxm5-80gb", "cp=1", "tp=1,2", "pp=1,2", "microbatch_size=1,2", "recompute=none",
    "schedule=1f1b", "sharding=none,optimizer",
)  # fmt: skip
BATCH = {"gpus": 16, "global_batch": 32, "sequence_length": 1024}


def advised(software: str, measured: Path | None = None) -> Advice:
    return kareus.advise([*FEW, f"software={software}"], **BATCH, measured=measured, config_dir=CONFIG)


@pytest.fixture(scope="module")
def unmeasured() -> Advice:
    return advised("nanotron")


def test_the_answer_says_what_a_wrong_order_may_cost(unmeasured: Advice) -> None:
    _check_wrong_order(unmeasured)
    assert any("nanotron was never measured on this GPU" in line for line in answer_lines(unmeasured))


def test_models_with_experts_are_compared_by_software_that_was_measured_with_them() -> None:
    few = (
        "model=qwen3-30b-a3b",
        "model.num_layers=4",
        "cp=1",
        "microbatch_size=1,2",
        "recompute=none",
        "schedule=1f1b",
    )
    advice = kareus.advise([*few, "gpu=h100-sxm5-80gb", "software=torchtitan"], **BATCH, config_dir=CONFIG)
    _check_wrong_order(advice)
    assert advice.unmeasured is not None
    assert advice.unmeasured.most_unlike == "megatron-core"
    itself = kareus.advise([*few, "tp=1", "gpu=h200", "software=megatron-core"], **BATCH, config_dir=CONFIG)
    assert itself.unmeasured is not None
    assert itself.unmeasured.most_unlike is None, "no other software was measured with experts"
    assert len(itself.measure_first) > 1
    assert "what a wrong order costs is not known" in "\n".join(answer_lines(itself))


def _check_wrong_order(advice: Advice) -> None:
    """By hand: times of the compared layouts by the software that is named."""
    known = advice.unmeasured
    assert known is not None
    compared = sorted_by_trainer(advice.size.layouts)[: known.compared]
    (other,) = compose([f"software={known.most_unlike}"], CONFIG)
    times_s = []
    for one in compared:
        workload, software = one.candidate.workload, other.workload.software
        own = workload.parallelism
        alike = replace(workload, software=software, gpu=driven(workload.gpu, software, own.gpus, own.pp))
        times_s.append(kareus.predict(alike).time_s)
    assert known.wrong_order_percent == pytest.approx(100 * (times_s[0] / min(times_s) - 1), abs=1e-6)


def test_five_layouts_to_measure_are_printed_as_a_file_of_runs(unmeasured: Advice, tmp_path: Path) -> None:
    lines = list(answer_lines(unmeasured))
    begin = next(n for n, line in enumerate(lines) if line.startswith("dp,pp,tp,"))
    path = tmp_path / "layout.csv"
    path.write_text("\n".join(lines[begin : begin + 6]))
    runs = read_runs(path)
    asked = [one.candidate.layout for one in unmeasured.measure_first]
    bases = [one.candidate.workload for one in unmeasured.measure_first]
    for run, layout, workload in zip(runs, asked, bases, strict=True):
        blocks = workload.parallelism.placed
        usual = layout if len(set(blocks)) == 1 else replace(layout, layers_per_stage=blocks)
        assert run.layout == usual, "with blocks that a trainer would not take by itself"
    assert asked[0] == unmeasured.chosen.layout.candidate.layout
    alone = [one.sequential.time_s for one in unmeasured.measure_first if one.sequential]
    assert [run.predicted_s for run in runs] == pytest.approx(alone, rel=1e-5), "to compare with what is measured"
    assert len(set(asked)) == 5
    assert all(run.time_s is None for run in runs)


def test_the_choice_is_measured_first_wherever_it_stands_in_order(unmeasured: Advice) -> None:
    """Limits may choose one that is not among the first that are compared, and that tells little."""
    question, order = unmeasured.question, sorted_by_trainer(unmeasured.size.layouts)
    for chosen in (order[1], order[-1]):
        first, *others = to_measure(question, question.base, unmeasured.size, chosen)
        assert first == chosen
        assert len({one.number for one in others} - {chosen.number}) == len(others) == 4


def test_layouts_to_measure_are_the_same_everywhere_and_said_once(unmeasured: Advice) -> None:
    known = unmeasured.unmeasured
    assert known is not None
    text = "\n".join(answer_lines(unmeasured)).lower()
    assert text.count("measure these") == text.count("before a long training") == 1
    order = [one.number for one in sorted_by_trainer(unmeasured.size.layouts)]
    _, *others = unmeasured.measure_first
    assert max(order.index(one.number) for one in others) <= known.compared
    places = {one.number: place for place, one in enumerate(unmeasured.measure_first, 1)}
    rows = layouts_frame(unmeasured).iter_rows(named=True)
    assert {row["layout"]: row["measure_first"] for row in rows if row["measure_first"]} == places
    printed = json.loads(json.dumps(plain(unmeasured)))
    assert [one["number"] for one in printed["measure_first"]] == list(places)
    shown = advice_page(unmeasured)
    notes = [sheet.note for section in shown.sections for sheet in section.sheets]
    assert not any("easure these" in note or "before a long training" in note for note in notes)


def test_layouts_by_themselves_are_the_first_in_order(unmeasured: Advice) -> None:
    lines = list(order_lines(unmeasured))
    first = sorted_by_trainer(unmeasured.size.layouts)[:3]
    assert [line.rpartition(": ")[2] for line in lines[2:]] == [one.candidate.words for one in first]


def test_software_that_was_measured_is_not_asked_for() -> None:
    assert advised("megatron-core").unmeasured is None


def test_measured_layouts_change_the_answer(unmeasured: Advice, tmp_path: Path) -> None:
    """They took what a trainer with a slow host and network takes, and so does the answer."""
    asked, base = [one.candidate.layout for one in unmeasured.measure_first], unmeasured.question.base
    hidden = {"network_slowdown": 12.0, "host_launch_s": 8e-5, "hidden_reduction": 0.1}
    by_layout = {one.candidate.layout: one.candidate.workload for one in unmeasured.size.layouts}
    workloads = [by_layout[layout] for layout in asked]
    times_s = LayoutTimes(replace(base, software=with_numbers(base.software, hidden)), workloads).of({})
    path = tmp_path / "layout.csv"
    runs = zip(asked, times_s, strict=True)
    path.write_text(runs_text([LayoutRun(layout=layout, time_s=float(time_s)) for layout, time_s in runs]))
    again = advised("nanotron", path)
    assert again.unmeasured is None
    assert again.question.base.software.measured is not None
    assert any(text.startswith("software.network_slowdown=") for text in again.overrides)
    lines = list(answer_lines(again))
    assert any("rank by it: no, measure more" in line for line in lines)  # of five runs
    for one in sorted_by_trainer(again.size.layouts)[:3]:
        (true_s,) = LayoutTimes(
            replace(base, software=with_numbers(base.software, hidden)), [one.candidate.workload]
        ).of({})
        assert one.sequential is not None
        assert one.sequential.time_s == pytest.approx(true_s, rel=0.15)
    (workload,) = kareus.resolve(list(again.overrides), CONFIG)
    planned = again.chosen.layout.candidate.workload
    assert replace(workload.software, measured=None) == replace(planned.software, measured=None)


def test_too_few_measured_layouts_are_refused(unmeasured: Advice, tmp_path: Path) -> None:
    path = tmp_path / "layout.csv"
    path.write_text(runs_text([LayoutRun(layout=unmeasured.chosen.layout.candidate.layout, time_s=1.0)]))
    with pytest.raises(ConfigError, match="1 measured run: "):
        advised("nanotron", path)


def measured_as(advice: Advice, path: Path, *texts: str) -> Path:
    """A file with the first layouts to measure, and a text for the time of each."""
    runs = [run_of(one) for one in advice.measure_first[: len(texts)]]
    header, *rows = runs_text(runs).splitlines()
    path.write_text("\n".join([header, *(row + text for row, text in zip(rows, texts, strict=True))]))
    return path


def test_a_layout_that_ran_out_of_memory_is_none_of_the_answer_which_says_so(
    unmeasured: Advice, tmp_path: Path
) -> None:
    """The chosen one, whose place another takes; times of the others are those that were predicted."""
    times = [f"{one.sequential.time_s}" for one in unmeasured.measure_first if one.sequential]
    again = advised("nanotron", measured_as(unmeasured, tmp_path / "runs.csv", "OOM", *times[1:]))
    chosen = unmeasured.chosen.layout.candidate
    assert again.question.unfit == (chosen.placed,)
    assert again.chosen.layout.candidate.placed != chosen.placed
    assert chosen.placed not in [one.candidate.placed for one in again.size.layouts]
    assert len(again.size.layouts) == len(unmeasured.size.layouts) - 1
    assert again.size.effort.refused["out of memory when measured"] == 1
    measured = again.question.base.software.measured
    assert measured is not None
    assert measured.runs == 4
    said = f"left out, since it ran out of memory when measured: {chosen.words}"
    assert list(answer_lines(again)).count(said) == 1
    assert plain(again)["unfit"] == said
    assert f"L{said[1:]}." in advice_page(again).extra["lead"]
    assert plain(unmeasured)["unfit"] == ""
    timed = {one.candidate.placed for one in unmeasured.measure_first[1:]}
    assert timed == set(again.question.timed)
    assert again.measure_first, "of four runs no order may be had"
    assert not timed & {one.candidate.placed for one in again.measure_first}
    assert "ask again with these rows added to the file of --measured:" in next(measure_lines(again))


def test_a_job_that_ran_out_of_memory_is_not_compared_with(unmeasured: Advice, tmp_path: Path) -> None:
    first, *others = (one for one in unmeasured.measure_first if one.sequential)
    times = [f"{one.sequential.time_s}" for one in others if one.sequential]
    for oom, is_compared in (("oom", False), ("9.5", True)):
        path = measured_as(unmeasured, tmp_path / "runs.csv", oom, *times)
        question = replace(unmeasured.question, job=first.candidate.layout)
        assert (with_measured(question, path).job is not None) is is_compared


def test_where_too_few_have_times_the_next_to_measure_are_rows_below_the_refusal(
    unmeasured: Advice, tmp_path: Path
) -> None:
    """They need less memory than what ran out of it, and are none of those that the file has."""
    path = measured_as(unmeasured, tmp_path / "runs.csv", "oom", "1.5")
    with pytest.raises(ConfigError) as refusal:
        advised("nanotron", path)
    said = f"{path}: 1 measured run and 1 out of memory: a calibration needs 3 at least; measure 2 more of these rows, "
    assert str(refusal.value).startswith(said)
    below = tmp_path / "below.csv"
    below.write_text("\n".join(refusal.value.__notes__))
    unfit, timed, *more = read_runs(below)
    assert [unfit, timed] == read_runs(path)
    layouts = {one.candidate.layout: one for one in unmeasured.size.layouts}
    placed = {one.candidate.placed: one for one in unmeasured.size.layouts}
    assert len({run.layout for run in more} - {unfit.layout, timed.layout}) == 2
    for run in more:
        assert (run.time_s, run.failure) == (None, None)
        one = layouts.get(run.layout) or placed[run.layout]
        assert memory_share(one) < memory_share(unmeasured.chosen.layout)
    below.write_text(below.read_text().replace("oom", "2.5"))
    with pytest.raises(ConfigError, match=r"2 measured runs: .* measure 1 more of these rows") as refusal:
        advised("nanotron", below)
    assert len(refusal.value.__notes__) == 5, "those that wait are enough"


@pytest.mark.parametrize(
    ("column", "meant"),
    [("time", "allowed: "), ("recompute", "recomputation"), ("iteration_times", "iteration_time_s")],
)
def test_a_column_that_is_misspelt_is_not_passed_over(column: str, meant: str, tmp_path: Path) -> None:
    """A layout whose recomputation stood under another name would count as one without."""
    path = tmp_path / "layout.csv"
    path.write_text(f"dp,pp,tp,microbatch_size,num_microbatches,{column}\n1,1,1,1,1,full\n")
    with pytest.raises(ArtifactError, match=f"column '{column}': not known; .*{meant}"):
        read_runs(path)


def test_layouts_of_the_trainer_by_itself_are_in_the_order_of_recommendation(unmeasured: Advice) -> None:
    order = sorted_by_trainer(unmeasured.size.layouts)
    times_s = [one.sequential.time_s for one in order if one.sequential]
    assert len(times_s) == len(order)
    assert times_s[0] <= min(times_s) * (1 + TIED_SHARE)
    tied = [one for one in order if one.sequential and one.sequential.time_s <= min(times_s) * (1 + TIED_SHARE)]
    assert order[0].candidate.memory.total_gib == min(one.candidate.memory.total_gib for one in tied)
    printed = json.loads(json.dumps(plain(unmeasured)))
    assert [one["number"] for one in printed["by_itself"]] == [one.number for one in order]


def test_the_page_lists_what_to_measure_under_a_heading(unmeasured: Advice) -> None:
    (section,) = (part for part in advice_page(unmeasured).sections if part.title == "Layouts to measure first")
    assert unmeasured.unmeasured is not None
    runs, settings = section.commands
    lines = list(answer_lines(unmeasured))
    assert settings.splitlines() == list(row_lines(unmeasured))
    assert runs.splitlines() == lines[lines.index(runs.splitlines()[0]) :][: len(unmeasured.measure_first) + 1]
    assert f"would be {unmeasured.unmeasured.wrong_order_percent:.0f} % slower than the best" in section.text


def test_a_trainer_is_recommended_nothing_that_it_has_no_setting_for(unmeasured: Advice) -> None:
    """nanotron has no pipeline zb-h1, whatever else the adviser tries."""
    assert unset_line(unmeasured) == ""
    layouts = list(unmeasured.size.layouts)
    place = next(n for n, one in enumerate(layouts) if one.sequential and one.candidate.layout.pp == 2)
    candidate = layouts[place].candidate
    pipeline = replace(candidate.workload.pipeline, schedule=PipelineSchedule.ZERO_BUBBLE_H1)
    other = replace(
        layouts[place], candidate=replace(candidate, workload=replace(candidate.workload, pipeline=pipeline))
    )
    before = {one.number for one in sorted_by_trainer(layouts)}
    layouts[place] = other
    assert before - {one.number for one in sorted_by_trainer(layouts)} == {other.number}
    chosen = replace(unmeasured, chosen=LayoutChoice(layout=other, cost=unmeasured.chosen.cost))
    assert "nanotron has no setting for" in unset_line(chosen)


def test_a_chosen_layout_that_fills_the_memory_is_said_to(unmeasured: Advice) -> None:
    """On a GPU that has just what the chosen layout needs; those that need less are named."""
    assert full_line(unmeasured) == ""
    chosen = unmeasured.chosen.layout
    layouts = []
    for one in unmeasured.size.layouts:
        gpu = replace(one.candidate.workload.gpu, memory_gib=chosen.candidate.memory.total_gib / 0.97)
        layouts.append(
            replace(one, candidate=replace(one.candidate, workload=replace(one.candidate.workload, gpu=gpu)))
        )
    full = next(one for one in layouts if one.number == chosen.number)
    advice = replace(
        unmeasured,
        sizes=(replace(unmeasured.size, layouts=layouts),),
        chosen=replace(unmeasured.chosen, layout=full),
    )
    assert full_line(advice).startswith("memory: 97 % of a GPU's, so try it before a long training; ")
    others = [one for one in layouts if (one.plans or one.sequential) and memory_share(one) <= 0.95]
    assert others
    assert "the fastest below 95 % is" in full_line(advice)
    rows = list(table_lines(advice, [full, others[0]], ()))
    assert [row.endswith(", over 95 % of memory: try it first") for row in rows] == [False, True, False]
    planned = replace(
        advice, sizes=(replace(unmeasured.size, layouts=[full, *(replace(o, plans=()) for o in others)]),)
    )
    assert "the fastest below 95 % is" in full_line(planned), "whether it was planned or only predicted"
    alone = replace(advice, sizes=(replace(unmeasured.size, layouts=[full]),))
    assert "no other that was predicted needs less" in full_line(alone)
    assert MAY_FIT not in full_line(advice)
    assert full_note([full, others[0]]) == f"memory: {MAY_FIT}"
    assert full_note(others) == ""


def test_why_a_layout_is_listed_that_needs_more_than_a_gpu_has_is_said(unmeasured: Advice) -> None:
    """5 % more is not refused (`kareus.workload.memory`); tables and the answer give one reason."""
    chosen = unmeasured.chosen.layout
    workload = chosen.candidate.workload
    gpu = replace(workload.gpu, memory_gib=chosen.candidate.memory.total_gib / 1.04)
    over = replace(chosen, candidate=replace(chosen.candidate, workload=replace(workload, gpu=gpu)))
    size = replace(unmeasured.size, layouts=[over])
    advice = replace(unmeasured, sizes=(size,), chosen=replace(unmeasured.chosen, layout=over))
    reason = "up to 105 % may fit, since the estimate may be off by 5 %"
    assert full_line(advice).startswith(f"memory: 104 % of a GPU's ({reason}), so try it before a long training; ")
    assert f"memory: {reason}" in list(answer_lines(advice))
    assert f"memory: {reason}" not in list(answer_lines(unmeasured))


def test_layouts_that_other_software_cannot_run_are_not_asked_of_it() -> None:
    """Attention of vTrain's traces is not fused, so that it has no context parallelism."""
    few = [text for text in FEW if not text.startswith(("cp=", "tp=", "pp="))]
    advice = kareus.advise([*few, "cp=2", "tp=2", "pp=1", "software=nanotron"], **BATCH, config_dir=CONFIG)
    assert advice.unmeasured is not None
    assert advice.unmeasured.most_unlike != "vtrain"
