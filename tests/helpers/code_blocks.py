"""Code that the docs show, so that tests run it."""

import re

from helpers.builders import CONFIG

DOCS = CONFIG.parent / "docs"


def python_blocks(page: str) -> list[str]:
    """The blocks of Python on a page of the docs, in order."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
