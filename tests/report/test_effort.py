import dataclasses

import polars as pl
import pytest
from helpers.report_tables import PARTITIONS, WORKLOAD, write_inputs

from kareus.report.workload.effort import ALL, search_efforts
from kareus.report.workload.inputs import load
from kareus.report.workload.summary import efforts_sheet, summary_text


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return load(WORKLOAD, write_inputs(tmp_path_factory.mktemp("results")))


def test_every_candidate_on_a_frontier_is_found_by_one_pass(inputs):
    together, *each = search_efforts(inputs.searches)
    assert [effort.partition for effort in (together, *each)] == [ALL, *(s.partition for s in inputs.searches)]
    for effort, search in zip(each, inputs.searches, strict=True):
        assert effort.on_frontier == search.candidates["on_frontier"].sum() == 3
        assert {p.name: (p.measured, p.on_frontier) for p in effort.passes} == {
            "initial": (1, 0),
            "total": (1, 1),
            "dynamic": (1, 1),
            "static": (1, 1),
        }
    assert together.on_frontier == 3 * len(PARTITIONS)
    assert [(p.name, p.measured) for p in together.passes] == [(p.name, 2) for p in each[0].passes]


def test_a_candidate_is_credited_to_every_pass_that_chose_it(inputs):
    search = inputs.searches[0]
    both = pl.Series("chosen_by", [["initial"], ["total", "static"], ["total", "dynamic"], ["static"]])
    shared = dataclasses.replace(search, candidates=search.candidates.with_columns(both))
    effort = search_efforts([shared])[1]
    assert (effort.measured, effort.on_frontier) == (4, 3)
    assert {p.name: (p.measured, p.on_frontier) for p in effort.passes} == {
        "initial": (1, 0),
        "total": (2, 2),
        "static": (2, 2),
        "dynamic": (1, 1),
    }
    assert [effort.share_percent(p) for p in effort.passes] == pytest.approx([0, 40, 40, 20])


def test_a_search_that_its_budget_ended_is_named_on_the_page_and_in_the_summary(inputs):
    names = ", ".join(f"{name} (the most rounds allowed)" for name in PARTITIONS)
    sentence = f"Ended before their stopping rule was met: {names}."
    assert efforts_sheet(inputs.searches).note.endswith(sentence)
    assert sentence in " ".join(summary_text(inputs).split())


def test_nothing_is_said_of_a_budget_that_ended_no_search(inputs):
    ended = [
        dataclasses.replace(search, rounds=search.rounds.with_columns(is_cut_short=pl.lit(value=False)))
        for search in inputs.searches
    ]
    assert efforts_sheet(ended).note.endswith("one candidate.")
    assert "stopping rule" not in summary_text(dataclasses.replace(inputs, searches=ended))


def test_time_is_split_into_profiling_and_optimisation(inputs):
    together, *each = search_efforts(inputs.searches)
    assert [(e.profiling_s, e.optimisation_s) for e in each] == [(120.0, 1.5)] * len(PARTITIONS)
    assert (together.profiling_s, together.optimisation_s) == (240.0, 3.0)
    assert ([e.looking_s for e in each], together.looking_s) == ([12.0] * len(PARTITIONS), 24.0)
    assert together.profiling_share == pytest.approx(240 / 243)


def test_nothing_searched_took_nothing():
    assert search_efforts([]) == []


def test_the_summary_shows_search_passes_and_times(inputs):
    lines = summary_text(inputs).splitlines()
    (found,) = (i for i, line in enumerate(lines) if line.startswith("Search: "))
    assert " ".join(lines[found : found + 2]) == (
        "Search: of 6 candidates on the frontiers, found by initial 0.0 %, total 33.3 %, dynamic 33.3 %, static 33.3 %"
    )
    assert " ".join(lines[found + 2 : found + 4]) == (
        "Search time: profiling 0.07 h of the testbed's clock (98.8 %), time-only 10.0 % of it, 0.53 GPU-hours, "
        "optimisation 3.0 s"
    )
