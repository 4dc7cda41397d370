"""Commands of a checkout: run to their end or to a limit, and judged by what every command promises."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HANG_S = 300
"""Wall time after which a command counts as hung. Machines are busy: what takes seconds may take minutes."""
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters but tab, line feed and carriage return."""
REFUSED = 2
"""Exit code of a command that refuses its input."""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    output: str
    """Standard output and standard error."""
    errors: str
    """Standard error alone."""
    wall_s: float
    hung: bool

    @property
    def idle(self) -> bool:
        """Whether Snakemake says that all is up to date."""
        return "Nothing to be done" in self.output

    @property
    def last_line(self) -> str:
        """The last line of standard error."""
        return (self.errors.strip().splitlines() or [""])[-1]


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str], limit_s: float = HANG_S) -> Done:
    """Run a command; at its limit, kill it and all that it has started."""
    start_s = time.perf_counter()
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env={**environment}, start_new_session=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
            hung = False
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            hung = True
    errors = err.decode(errors="replace")
    output = out.decode(errors="replace") + errors
    return Done(process.returncode, output, errors, time.perf_counter() - start_s, hung)


def broken_promise(done: Done) -> str:
    """What a command did that none may do, whatever its input; empty if nothing."""
    if done.hung:
        return f"hung ({done.wall_s:.0f} s)"
    if "Traceback (most recent call last)" in done.output:
        return f"traceback: {done.last_line}"
    if done.code < 0:
        return f"died of signal {-done.code}"
    found = CONTROL.search(done.output)
    if found:
        return f"control character {found[0]!r} in the output"
    return ""


def refusal_missing(done: Done) -> str:
    """What keeps the end of a `kareus` command from being a refusal in a line with exit code 2; empty if it is one."""
    broken = broken_promise(done)
    if broken:
        return broken
    if done.code != REFUSED:
        said = " ".join(done.output.split()) or "nothing"
        return f"exit code {done.code} instead of a refusal: {said[-200:]}"
    if not done.last_line.startswith("kareus"):
        return f"no line that says why: {done.last_line!r}"
    return ""


def neither_done_nor_refused(done: Done) -> str:
    """What keeps the end of a `kareus` command from being success or a refusal; empty if it is one of them."""
    return broken_promise(done) if done.code == 0 and not done.hung else refusal_missing(done)
