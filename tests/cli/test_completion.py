"""Completion in a shell: what a line so far may go on with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.builders import CONFIG

from kareus.cli import main
from kareus.cli.completion import overrides, selectors
from kareus.plans.selectors import EXAMPLES, Goal, parse_selector

IFS = "\n"


def completions(line: str, tmp_path: Path) -> list[str]:
    """What a shell would offer after `line`."""
    answer = tmp_path / "answer"
    environment = os.environ | {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": IFS,
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    command = [sys.executable, "-m", "kareus"]
    subprocess.run(command, cwd=CONFIG.parent, env=environment, capture_output=True, check=True)
    return [word.strip() for word in answer.read_text().split(IFS)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kareus sel", ["select"]),
        ("kareus stage report", ["report", "report-fleets", "report-advice", "report-campaign"]),
        ("kareus plan gpu=h", ["gpu=h100-96gb-hbm2e", "gpu=h100-sxm5-80gb", "gpu=h200"]),
        ("kareus resolve mod", ["model="]),
        ("kareus select dead", ["deadline="]),
        ("kareus export x --form", ["--format"]),
        ("kareus help check", ["check-plan"]),
    ],
)
def test_a_shell_is_offered_what_may_follow(line, words, tmp_path):
    assert completions(line, tmp_path) == words


def test_every_goal_is_offered_as_it_begins():
    examples = {**EXAMPLES, "cost": "0.12perkWh"}
    offered = [parse_selector(word + examples.get(word.rstrip("="), "")).goal for word in selectors()]
    assert offered == list(Goal)


def test_overrides_are_completed_by_the_configuration():
    assert list(overrides("g", CONFIG)) == ["gpu="]
    assert list(overrides("testbed=", CONFIG)) == ["testbed=cuda", "testbed=simulated"]
    assert "campaign=" not in list(overrides("", CONFIG))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_the_code_that_completes(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "kareus" in capsys.readouterr().out
