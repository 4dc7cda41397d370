"""What people and programs are shown of a run, event by event."""

import io
import json
import re
import time

import pytest

from kareus.errors import ArtifactError
from kareus.progress import events as run_events
from kareus.progress import wording
from kareus.progress.events import Failed, Finished, Interrupted, JobsPlanned, NothingToDo, Said, Started
from kareus.progress.history import add_to_history, read_history, usual_s
from kareus.progress.journal import Journal, Standing
from kareus.progress.live import LiveView
from kareus.progress.run_state import TimeLeft
from kareus.progress.shows import DryRun, JsonLines, Lines, Show
from kareus.progress.watch import Watch

NOW_S = time.time()
LINE = "kareus stage search: results/x/space.parquet: no such file; run snakemake."


@pytest.fixture
def events(tmp_path):
    """A search that finishes, and one that fails and says why."""
    log = tmp_path / "b.log"
    log.write_text(f"round 0: 3 measured\n{LINE}\n")
    return [
        JobsPlanned(jobs={"search": 2}),
        Said(level="info", text="Nothing to be done."),
        Said(level="warning", text="beware"),
        Started(at_s=NOW_S, job=1, rule="search", what="Searching a", wildcards={"partition": "a"}),
        Started(at_s=NOW_S, job=2, rule="search", what="Searching b", logs=(log, tmp_path / "b.progress.json")),
        Finished(at_s=NOW_S + 65.0, job=1),
        Failed(at_s=NOW_S + 66.0, job=2, rule="search", logs=(log, tmp_path / "b.progress.json")),
    ]


def shown(show, stream, events):
    watch = Watch(show)
    for event in events:
        watch.tell(event)
    watch.close()
    watch.close()  # as logging does at exit
    return stream.getvalue()


def test_lines_show_slow_jobs_and_failures(events, tmp_path):
    stream = io.StringIO()
    lines = shown(Lines(stream), stream, events).splitlines()
    assert lines[:-1] == [
        "2 jobs to do",
        "Nothing to be done.",
        "warning: beware",
        "   1:05  Searching a",
        " failed  Searching b",
        f"         {LINE}",
        f"         log: {tmp_path / 'b.log'}",
    ]
    assert lines[-1].startswith("1 of 2 jobs done in ")
    assert "1 failed" in lines[-1]


def test_one_job_is_not_jobs():
    stream = io.StringIO()
    lines = shown(Lines(stream), stream, [JobsPlanned(jobs={"search": 1}), *_searched(1)]).splitlines()
    assert (lines[0], lines[-1]) == ("1 job to do", "1 of 1 job done in 0:00.")


def _searched(jobs):
    """Jobs that start and finish."""
    for job in range(jobs):
        yield Started(at_s=NOW_S, job=job, rule="search", what=f"Searching {job}")
        yield Finished(at_s=NOW_S + 0.1, job=job)


@pytest.fixture
def answered():
    """An answer of a run, taken back afterwards."""
    before = list(run_events._LINES)
    run_events.end_with(lambda: ["plan fastest: 10.0 % less time", "page  \x1b[31mx"])
    yield ["plan fastest: 10.0 % less time", "page  \\x1b[31mx"]
    run_events._LINES[:] = before


def test_a_run_that_succeeds_ends_with_its_answer(answered):
    stream = io.StringIO()
    lines = shown(Lines(stream), stream, [JobsPlanned(jobs={"search": 2}), *_searched(2)]).splitlines()
    assert lines[-3].startswith("2 of 2 jobs done in ")
    assert lines[-2:] == answered
    stream = io.StringIO()
    assert shown(Lines(stream), stream, [NothingToDo()]).splitlines()[1:] == answered
    stream = io.StringIO()
    told = [json.loads(line) for line in shown(JsonLines(stream), stream, [NothingToDo()]).splitlines()]
    assert [line for line in told if line["event"] == "answer"] == [told[-2]]
    assert told[-2]["lines"] == answered


def test_a_run_that_fails_has_no_answer(answered, events):
    stream = io.StringIO()
    assert not set(answered) & set(shown(Lines(stream), stream, events).splitlines())


def test_an_answer_that_cannot_be_read_is_one_warning():
    def damaged():
        raise ArtifactError("a.json: damaged.")

    before = list(run_events._LINES)
    run_events.end_with(damaged)
    stream = io.StringIO()
    assert shown(Lines(stream), stream, [NothingToDo()]).splitlines()[-1] == "warning: a.json: damaged."
    run_events._LINES[:] = before


def test_an_interruption_is_not_a_failure(events):
    stream = io.StringIO()
    lines = shown(Lines(stream), stream, [*events[:1], *events[3:5], Interrupted(), events[6]]).splitlines()
    assert lines[1] == "interrupted: ending the running jobs; what was measured is kept"
    assert len(lines) == 3
    assert lines[2].startswith("interrupted: 0 of 2 jobs done in ")


def test_a_dry_run_is_a_line_for_each_rule():
    stream = io.StringIO()
    jobs = [Started(at_s=NOW_S, job=n, rule="search", what=f"Searching {n}") for n in range(1, 4)]
    jobs.append(Started(at_s=NOW_S, job=0, rule="report", what="Reporting"))
    assert shown(DryRun(stream), stream, [JobsPlanned(jobs={"search": 3, "report": 1}), *jobs]).splitlines() == [
        "4 jobs would be done; nothing was",
        "about 0 seconds on one quiet core, less on more (simulated testbed; no run here yet to tell)",
        "    3  Searching 1, and 2 more like it",
        "    1  Reporting",
    ]


def test_durations_of_a_run_are_kept_for_the_next(tmp_path, events):
    history = tmp_path / "kareus/durations.json"
    for _ in range(2):
        watch = Watch(Lines(io.StringIO()), history)
        for event in (JobsPlanned(jobs={"search": 2}), *_searched(2)):
            watch.tell(event)
        watch.close()
    assert [len(values) for values in read_history(history).values()] == [4]
    assert usual_s(read_history(history)) == {"search": pytest.approx(0.1, abs=1e-3)}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"search": 1}', '{"search": []}', '{"search": ["x"]}'])
def test_a_history_that_cannot_be_used_is_none(tmp_path, text):
    path = tmp_path / "durations.json"
    path.write_text(text)
    assert read_history(path) == {}
    add_to_history(path, {"search": [1.0] * 30})
    assert read_history(path) == {"search": [1.0] * 20}


def test_the_quiet_mode_tells_only_what_went_wrong(events):
    stream = io.StringIO()
    said = shown(Show(stream), stream, events)
    assert LINE in said
    assert "beware" in said
    assert "Searching a" not in said
    assert "Nothing" not in said


def test_every_json_line_has_an_event_and_a_time(events):
    stream = io.StringIO()
    told = [json.loads(line) for line in shown(JsonLines(stream), stream, events).splitlines()]
    assert [t["event"] for t in told] == [
        "planned", "said", "said", "started", "started", "finished", "failed", "ended",
    ]  # fmt: skip
    assert all("at" in t for t in told)
    assert told[3]["wildcards"] == {"partition": "a"}
    assert told[5]["duration_s"] == 65.0
    assert told[6]["why"][0] == LINE
    assert (told[7]["done"], told[7]["failed"], told[7]["total"]) == (1, 1, 2)


def test_json_lines_report_changed_search_progress(events, tmp_path):
    stream = io.StringIO()
    watch = Watch(JsonLines(stream))
    for event in events[:5]:
        watch.tell(event)
    Journal(tmp_path / "b.progress.json", Standing(budget=64, space=1521, measured=9, round=1, hypervolume=0.5))
    show = watch._show
    for _ in range(2):
        show.tick(watch._state, NOW_S + 10.0)
    watch.close()
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    (progress,) = [t for t in told if t["event"] == "progress"]
    assert (progress["job"], progress["measured"], progress["space"], progress["round"]) == (2, 9, 1521, 1)


def test_lines_tell_now_and_then_what_is_running(events, tmp_path):
    stream = io.StringIO()
    show = Lines(stream)
    watch = Watch(show)
    for event in events[:1] + events[3:5]:
        watch.tell(event)
    Journal(tmp_path / "b.progress.json", Standing(budget=64, space=1521, measured=9))
    show.tick(watch._state, NOW_S + 40.0)
    watch.close()
    lines = stream.getvalue().splitlines()
    assert lines[1].startswith("0 of 2 jobs in ")
    assert lines[2:5] == ["     0:40  Searching a", "     0:40  Searching b", "           9 of 1,521 measured"]


def test_a_cluster_of_jobs_is_not_all_drawn():
    stream = io.StringIO()
    stream.isatty = lambda: True
    jobs = [Started(at_s=NOW_S, job=n, rule="search", what=f"Searching {n}.") for n in range(100)]
    said = shown(LiveView(stream, colour=False), stream, [JobsPlanned(jobs={"search": 100}), *jobs])
    assert "Searching 7." in said
    assert "Searching 8." not in said
    assert "and 92 more" in said


def test_the_live_view_draws_running_jobs_and_leaves_one_line(events, tmp_path):
    stream = io.StringIO()
    stream.isatty = lambda: True
    view = LiveView(stream, colour=False)
    Journal(tmp_path / "b.progress.json", Standing(budget=64, space=1521, measured=9, round=1, hypervolume=0.5))
    said = shown(view, stream, events)
    assert "  Searching b\n         round 1, 9 of 1,521 measured, hypervolume 0.5000" in re.sub(r"\x1b\[\d*m", "", said)
    assert LINE in said
    assert "1 of 2 jobs done in " in said.splitlines()[-1]
    assert said.rfind("\x1b[?25l") < said.rfind("\x1b[?25h")  # the cursor is there


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (754, "12:34"), (3723, "1:02:03"), (360000, "100:00:00")]
)
def test_durations(seconds, text):
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (TimeLeft(125.0, 0), "; about 2:05 left"),
        (TimeLeft(125.0, 1), ""),
        (TimeLeft(0.0, 7), ""),
    ],
)
def test_the_estimate_is_silent_while_it_does_not_know(left, text):
    assert wording.time_left(left) == text


def test_a_job_that_dies_silently_shows_the_end_of_its_log(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    failed = Failed(at_s=0.0, job=1, rule="search", said="SLURM status is: 'OUT_OF_MEMORY'", logs=(log,))
    assert wording.why(failed) == [failed.said, *(f"line {n}" for n in range(90, 100)), f"log: {log}"]


def test_a_log_that_is_not_there_is_named_nevertheless(tmp_path):
    failed = Failed(at_s=0.0, job=1, rule="search", logs=(tmp_path / "x.log",))
    assert wording.why(failed) == [f"log: {tmp_path / 'x.log'}"]


TRACEBACK = "Traceback (most recent call last):\n  File x\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'WorkflowError in file "/x/workflow/rules/common.smk", line 45:\nfoo=1: not allowed.\n'
            '  File "/x/workflow/rules/common.smk", line 45, in <module>',
            "foo=1: not allowed.",
        ),
        (
            'InputFunctionException in rule write_report in file "/x/report.smk", line 1:\nError:\n  WorkflowError:\n'
            "    results/foo: not a workload.\nWildcards:\n  workload=foo\nTraceback:\n  File ...",
            "results/foo: not a workload.",
        ),
        ("MissingRuleException:\nNo rule to produce nosuch", "No rule to produce nosuch"),
        ("Nothing to be done.", "Nothing to be done."),
        (
            f"{TRACEBACK}FileNotFoundError: [Errno 2] No such file or directory: 'a.yaml'",
            "a.yaml: No such file or directory; check the path.",
        ),
        (
            f"{TRACEBACK}ValueError: Invalid config definition: Config entries have to be defined as name=value pairs. "
            "(Unparsable value: 'overrides')",
            "--config: 'overrides' is not KEY=VALUE; write it as select=fastest.",
        ),
    ],
)
def test_workflow_errors_are_shown_without_their_location(text, said):
    assert wording.message(text) == said


def test_no_control_character_reaches_a_terminal(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("kareus stage search: \x1b[31mevil\n")
    stream = io.StringIO()
    shown(
        Lines(stream),
        stream,
        [
            Said(level="info", text="first\x1b[2J\nsecond"),
            Started(at_s=NOW_S, job=1, rule="search", what="Searching \x1b[31ma", logs=(log,)),
            Failed(at_s=NOW_S + 1.0, job=1, rule="search", logs=(log,)),
        ],
    )
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["first\\x1b[2J", "second"]
    assert all(line.isprintable() for line in lines)
    assert any("kareus stage search: \\x1b[31mevil" in line for line in lines)


def test_a_repeated_reason_is_shown_once(tmp_path):
    jobs = {1: "search", 2: "profile"}
    events = [JobsPlanned(jobs=dict.fromkeys(jobs.values(), 1))]
    for job, rule in jobs.items():
        log = tmp_path / f"{rule}.log"
        log.write_text(f"kareus stage {rule}: no GPU can be used here.\n")
        events += [
            Started(at_s=NOW_S, job=job, rule=rule, what=rule.title(), logs=(log,)),
            Failed(at_s=NOW_S + 1.0, job=job, rule=rule, logs=(log,)),
        ]
    stream = io.StringIO()
    assert shown(Lines(stream), stream, events).splitlines()[1:-1] == [
        " failed  Search",
        "         kareus stage search: no GPU can be used here.",
        f"         log: {tmp_path / 'search.log'}",
        " failed  Profile, for the same reason",
    ]
