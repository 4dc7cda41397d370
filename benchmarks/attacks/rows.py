"""Tries of an attack, made side by side, and the row of the table that they give."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

SHOWN = 4
"""Failures that a row shows; standard error has them all."""
WIDTH = 120
"""Characters of a failure that a row shows."""


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    attack: str
    tries: int
    failures: tuple[str, ...]
    """What failed, one text for each failed try."""

    def __str__(self) -> str:
        """Return the row in Markdown."""
        counts = Counter(text.partition("\n")[0][:WIDTH] for text in self.failures)
        shown = [f"{text} ({count})" if count > 1 else text for text, count in counts.most_common(SHOWN)]
        more = [f"{len(counts) - SHOWN} more"] if len(counts) > SHOWN else []
        what = "; ".join([*shown, *more]).replace("|", "\\|")
        return f"| {self.attack} | {self.tries} | {len(self.failures)} | {what} |"


@dataclass(frozen=True)
class Try:
    """One try of an attack."""

    name: str
    check: Callable[[], str]
    """Returns what failed, in a line; an empty text if nothing did."""


def row(attack: str, tries: Sequence[Try], jobs: int = 1) -> Row:
    """Make all tries, `jobs` at a time; what keeps a try from its end counts as a failure of it."""
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(_made, tries))
    return counted(attack, [(one.name, failure) for one, failure in zip(tries, found, strict=True)])


def counted(attack: str, outcomes: Iterable[tuple[str, str]]) -> Row:
    """Return the row of tries that were made already, by name and failure; failures go to standard error, too."""
    outcomes = list(outcomes)
    failed = [(name, failure) for name, failure in outcomes if failure]
    for name, failure in failed:
        print(f"{attack}: {name}: {failure}", file=sys.stderr, flush=True)
    numbered = all(name[-4:].isdecimal() for name, _ in failed)  # neither number nor input belong into a table
    texts = (failure.partition(" <- ")[0] if numbered else f"{name}: {failure}" for name, failure in failed)
    return Row(attack, len(outcomes), tuple(texts))


def _made(one: Try) -> str:
    try:
        return one.check()
    except Exception as error:  # noqa: BLE001 - whatever keeps a try from its end is told, and the others go on
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
