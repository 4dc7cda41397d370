"""Snakemake with the logger plugin, on a workflow of three small jobs, one of which fails."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.preloaded import snakemake

SNAKEFILE = """\
rule all:
    input: "slow", "broken"
rule slow:
    output: "slow"
    log: "slow.log"
    message: "Being slow"
    shell: "sleep 1.1; touch {output}"
rule broken:
    output: "broken"
    log: text="broken.log", progress="broken.progress.json"
    message: "Breaking"
    shell: "(echo working; echo 'kareus stage search: x: no such file; run snakemake.'; false) > {log.text} 2>&1"
"""
LINE = "kareus stage search: x: no such file; run snakemake."


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    return tmp_path


OPTIONS = ("--cores=2", "--keep-going", "--logger=kareus")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "snakemake", *OPTIONS, *arguments]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return snakemake(folder, *OPTIONS, *arguments)


def test_a_pipe_gets_lines_with_the_one_line_of_what_failed(workflow):
    done = run(workflow)
    assert done.returncode != 0
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "3 jobs to do"
    assert lines[1:4] == [" failed  Breaking", f"         {LINE}", "         log: broken.log"]
    assert lines[4].endswith("  Being slow")
    assert lines[5].startswith("1 of 3 jobs done in ")
    assert len(lines) == 6


def test_programs_get_json_on_standard_output(workflow):
    done = run(workflow, "--logger-kareus-show=json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [t["event"] for t in told if t["event"] != "state"] == [
        "planned", "started", "started", "failed", "finished", "ended",
    ]  # fmt: skip
    assert told[-1] == told[-1] | {"done": 1, "failed": 1, "total": 3, "running": 0}
    assert done.stderr == ""


@pytest.mark.parametrize("quiet", [["--quiet"], ["--quiet", "all"]])
def test_the_quiet_mode_says_only_what_failed(workflow, quiet):
    done = run(workflow, *quiet)
    assert done.stderr.splitlines() == [" failed  Breaking", f"         {LINE}", "         log: broken.log"]


def test_what_cannot_be_planned_is_one_line(workflow):
    (workflow / "Snakefile").write_text(
        'from snakemake.exceptions import WorkflowError\nraise WorkflowError("a=1: no.")\n'
    )
    done = run(workflow)
    assert done.returncode != 0
    assert done.stderr == "error: a=1: no.\n"


@pytest.mark.parametrize("arguments", [["-n", "--verbose"], ["--printshellcmds"], ["--logger-kareus-show=snakemake"]])
def test_snakemake_speaks_for_itself_where_it_is_asked_to(workflow, arguments):
    done = run(workflow, *arguments)
    assert "Job stats:" in done.stdout + done.stderr
    assert "Being slow" in done.stdout + done.stderr


def test_a_dry_run_is_as_brief_as_a_run(workflow):
    done = run(workflow, "-n")
    assert done.returncode == 0
    assert done.stdout == ""
    first, time, *lines = done.stderr.splitlines()
    assert first.startswith("3 jobs would be ")
    assert time.startswith("about 0 seconds ")
    assert sorted(lines) == ["    1  Being slow", "    1  Breaking", "    1  rule all"]


def test_the_next_run_knows_how_long_rules_take(workflow):
    run(workflow)
    durations = json.loads((workflow / ".snakemake/kareus/durations.json").read_text())
    assert list(durations) == ["slow"]
    assert durations["slow"][0] >= 1.0
    assert "(by earlier runs here)" in run(workflow, "-n").stderr


def test_a_run_that_is_interrupted_ends_with_130(workflow):
    slow = SNAKEFILE.replace("sleep 1.1", "sleep 30").replace("(echo working", "sleep 30; (echo")
    (workflow / "Snakefile").write_text(slow)
    running = subprocess.Popen(
        command(), cwd=workflow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stderr.readline() == "3 jobs to do\n"
    time.sleep(1.0)
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    lines = err.splitlines()
    assert lines[0].startswith("interrupted: ending ")
    assert lines[1].startswith("interrupted: 0 of 3 jobs done in ")
    assert (out, len(lines)) == ("", 2)


def test_a_reader_that_is_gone_ends_no_run(workflow):
    with subprocess.Popen(
        command("--logger-kareus-show=json"), cwd=workflow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        running.stdout.close()
        assert running.stderr.read() == ""
    assert (workflow / "slow").exists()


def test_a_terminal_shows_what_runs_and_gets_its_cursor_back(workflow):
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    running = subprocess.Popen(command(), cwd=workflow, stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    assert running.wait(timeout=60) != 0
    text = shown.decode()
    assert "0:01  Being slow" in text
    assert LINE in text
    assert "0 of 3 jobs" in text
    assert text.rfind("\x1b[?25l") < text.rfind("\x1b[?25h")
    assert "1 of 3 jobs done in " in text.splitlines()[-1]
