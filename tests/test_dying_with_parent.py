"""A process ends with its parent, whenever that dies."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kareus.processes import PARENT_VARIABLE

PARENT = """
import os, subprocess, sys
known = {{"{variable}": str(os.getpid())}} if {says} else {{}}
subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=os.environ | known)
{then}
"""
DIES_BEFORE = """
import os, time
from kareus.processes import die_with_parent
while os.getppid() == int(os.environ["KAREUS_PARENT"]):
    time.sleep(0.01)
die_with_parent()
print("survived", flush=True)
"""
DIES_MEANWHILE = """
import ctypes, os, signal, time
from kareus import processes

class LateLibrary:
    def __init__(self, name):
        parent = os.getppid()
        os.kill(parent, signal.SIGKILL)
        while os.getppid() == parent:
            time.sleep(0.01)
        self.prctl = lambda *arguments: 0  # asked for too late, Linux sends nothing

processes.ctypes.CDLL = LateLibrary
processes.die_with_parent()
print("survived", flush=True)
"""
DIES_AFTER = """
import os, signal, time
from kareus.processes import die_with_parent
die_with_parent()
print("at work", flush=True)
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(60)
print("survived", flush=True)
"""
HANDS_ON = """
import os
from kareus.processes import die_with_parent
die_with_parent()
print(os.environ.get("KAREUS_PARENT"), flush=True)
os.kill(os.getppid(), 9)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux signals the death of a parent")


def said_by_child(child: str, *, says: bool, then: str = "import time; time.sleep(60)") -> str:
    """What the child of a parent says until it ends.

    Args:
        child: what it runs.
        says: whether its parent says its number.
        then: what its parent does next.
    """
    parent = PARENT.format(variable=PARENT_VARIABLE, says=says, then=then)
    environment = {name: value for name, value in os.environ.items() if name != PARENT_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", parent, child], env=environment, capture_output=True, text=True, timeout=50, check=False
    )  # which waits until nobody has the output open any more
    assert done.returncode in (0, -signal.SIGKILL)
    assert done.stderr == ""
    return done.stdout


def test_one_whose_parent_died_before_it_ran_ends_at_once() -> None:
    assert said_by_child(DIES_BEFORE, says=True, then="") == ""


def test_a_parent_that_dies_during_registration_ends_the_child() -> None:
    assert said_by_child(DIES_MEANWHILE, says=False) == ""


@pytest.mark.parametrize("says", [True, False])
def test_one_whose_parent_dies_later_ends_then(says: bool) -> None:
    assert said_by_child(DIES_AFTER, says=says) == "at work\n"


def test_the_number_of_the_parent_is_not_handed_on() -> None:
    assert said_by_child(HANDS_ON, says=True) == "None\n"


def test_jobs_of_the_workflow_know_their_parent() -> None:
    rules = (Path(__file__).parents[1] / "workflow/rules/common.smk").read_text()
    (prefix,) = re.findall(r'^shell\.prefix\(f"(.*)"\)$', rules, re.MULTILINE)
    said = f"{sys.executable} -c 'import os; print(os.environ[\"{PARENT_VARIABLE}\"])'"
    command = prefix.replace("{PARENT_VARIABLE}", PARENT_VARIABLE) + said
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.getpid()
