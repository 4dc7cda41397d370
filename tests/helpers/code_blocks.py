"""Code that the docs show, so that tests run it."""

import re
import runpy
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.builders import CONFIG

DOCS = CONFIG.parent / "docs"


def python_blocks(page: str) -> list[str]:
    """The blocks of Python on a page of the docs, in order."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def run_block(block: str, names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Run a block as a script that finds `names` defined; return all names that it leaves."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "block.py"
        script.write_text(block)
        return runpy.run_path(str(script), dict(names or {}))
