"""A command in this process, judged by what every command promises, whatever its input."""

import contextlib
import io
import re
import time
from typing import NamedTuple

from kareus.cli import main

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters but tab, line feed and carriage return."""
LONGEST_S = 60.0
"""Processor time that no small input may take; what hangs takes more than a test may."""


class Judged(NamedTuple):
    """How a command ended that kept all promises."""

    is_done: bool
    """Whether it did what it was asked for; else it refused."""
    said: str


def judged(*words: object) -> Judged:
    """Call `kareus`: it must succeed, or refuse in its last line; without traceback and control characters."""
    out, errors = io.StringIO(), io.StringIO()
    began_s = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = ended.code
    said = out.getvalue() + errors.getvalue()
    assert code in (0, 2), said
    assert "Traceback" not in said
    assert not CONTROL.search(said), ascii(said)
    assert code == 0 or errors.getvalue().splitlines()[-1].startswith("kareus"), said
    assert time.process_time() - began_s < LONGEST_S
    return Judged(code == 0, said)
