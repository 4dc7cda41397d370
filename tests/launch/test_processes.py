"""The ranks of a machine, which one process starts and waits for."""

import sys
from pathlib import Path

import pytest

from kareus.launch import processes as launch

FIRST_RANK_HANGS = """#!/bin/sh
[ "$RANK" = 0 ] && exec sleep 600
exit 2
"""


def test_a_rank_that_never_ends_hides_no_failure_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(FIRST_RANK_HANGS)
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(launch, "_PATIENCE_S", 0.2)
    with pytest.raises(SystemExit) as ended:
        launch.launch([], 2)
    assert ended.value.code == 2
