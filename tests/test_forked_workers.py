"""Workers that run tests are forked from one process, which has imported what the tests need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.worlds import start_ranks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")

TESTS = Path(__file__).parent
IMPORTED_IN = os.getpid()
CONFTEST = """
from helpers.forked_workers import fork_workers

def pytest_xdist_setupnodes(config, specs):
    fork_workers(config, specs)
"""
FORKED = """
import os
IMPORTED_IN = os.getpid()
def test_is_forked():
    assert os.getppid() == IMPORTED_IN
    assert os.read(0, 1) == b""
"""
KILLED = """
import os, signal
def test_kills_its_worker():
    os.kill(os.getpid(), signal.SIGKILL)
"""
THREADS = """
import os, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
IMPORTED_IN = os.getpid()
def test_is_not_forked():
    assert os.getpid() == IMPORTED_IN
"""


def run(folder: Path, *files: str) -> tuple[int, str]:
    """Run files of tests in a worker; returns the exit code and what pytest says."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    for number, file in enumerate(files):
        (folder / f"test_file_{number}.py").write_text(file)
    command = [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-n", "1", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS.parent}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    return ran.returncode, ran.stdout + ran.stderr


def test_workers_of_this_run_are_forked():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("nothing is forked without workers")
    assert os.getpid() != IMPORTED_IN, "importing tests leaves threads: compute nothing with Polars outside of tests"


def rank_imports_nothing(rank: int, imported_in: int) -> None:
    assert imported_in == IMPORTED_IN, "a rank imports anew what its worker has imported"


def test_ranks_are_forked_from_what_has_imported_the_tests():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("nothing is forked without workers")
    start_ranks(rank_imports_nothing, (IMPORTED_IN,), 1)


def test_a_forked_worker_that_is_killed_is_replaced(tmp_path):
    code, said = run(tmp_path, KILLED, FORKED, FORKED)
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "1 failed, 2 passed" in said
    assert "crashed while running 'test_file_0.py::test_kills_its_worker'" in said


def test_workers_start_alone_where_tests_leave_threads(tmp_path):
    code, said = run(tmp_path, THREADS)
    assert code == pytest.ExitCode.OK, said
