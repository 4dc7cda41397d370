"""Examples of docstrings, run as the docstring prints them."""

import doctest
from collections.abc import Mapping
from typing import Any

FLAGS = doctest.ELLIPSIS | doctest.REPORT_ONLY_FIRST_FAILURE


def run_examples(documented: Any, names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Run the examples of one docstring, which find `names` defined; return all names that they leave."""
    found: dict[str, Any] = dict(names or {})
    title = f"{documented.__module__}.{documented.__qualname__}"
    test = doctest.DocTestParser().get_doctest(documented.__doc__ or "", found, title, None, None)
    assert test.examples, f"{title}: has no example"
    said: list[str] = []
    results = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append, clear_globs=False)
    assert not results.failed, "".join(said)
    return test.globs
