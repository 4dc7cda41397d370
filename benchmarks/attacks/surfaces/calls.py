"""Commands of the attacked checkout, called in this process, and judged."""

import contextlib
import io
import logging
import traceback
from dataclasses import dataclass
from pathlib import Path

from attacks.commands import CONTROL, REFUSED


@dataclass(frozen=True)
class Called:
    """How a call ended."""

    code: int
    output: str
    failure: str
    """What no command may do: raise, or print control characters; empty if it did not."""


def call(*arguments: object) -> Called:
    """Call `kareus` with `arguments`."""
    from kareus.cli import main  # noqa: PLC0415 - of the checkout, which not all users of this module have

    said, failure = io.StringIO(), ""
    logging.getLogger().handlers.clear()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException as error:  # noqa: BLE001 - whatever comes is what we look for
            code, failure = 1, _raised(error)
    text = said.getvalue()
    found = CONTROL.search(text)
    if not failure and "Traceback (most recent call last)" in text:
        failure = f"traceback: {text.strip().splitlines()[-1][:100]}"
    if not failure and found:
        failure = f"control character {found[0]!r} in the output"
    if not failure and code not in (0, REFUSED):
        failure = f"exit code {code}"
    return Called(code, text, failure)


def _raised(error: BaseException) -> str:
    """Return type, place and text of an exception."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if "/kareus/" in frame.filename]
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "outside"
    return f"{type(error).__name__} from {place}: {' '.join(str(error).split())[:80]!a}"
