"""The live view of a terminal: running jobs at the bottom, finished ones scroll away above them."""

import time
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from kareus.progress import wording
from kareus.progress.events import RunEvent
from kareus.progress.run_state import RunState
from kareus.progress.shows import Lines, running

_MOST_JOBS = 8
"""Running jobs that are shown; a cluster may have hundreds."""


class LiveView(Lines):
    """Lines of what happened above the last ones of a terminal, which are redrawn."""

    every_s = 0.5

    def __init__(self, stream: TextIO, *, colour: bool) -> None:
        """Draw on `stream`, which is a terminal."""
        super().__init__(stream)
        self._console = Console(file=stream, no_color=not colour, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def tell(self, event: RunEvent, state: RunState) -> None:
        """Print what happened above the running jobs."""
        super().tell(event, state)
        self.tick(state, time.time())

    def tick(self, state: RunState, now_s: float) -> None:
        """Draw what is running."""
        if not state.running:
            return
        if not self._live.is_started:
            self._live.start()
            self._console.show_cursor(show=True)  # or a kill would leave the terminal without
        jobs = running(state, now_s)
        lines = [line for job in jobs[:_MOST_JOBS] for line in job]
        if len(jobs) > _MOST_JOBS:
            lines.append(f"         and {len(jobs) - _MOST_JOBS} more")
        shown = [Text(line, style="cyan", no_wrap=True, overflow="ellipsis") for line in lines]
        last = Text(wording.tally(state, now_s), style="bold", no_wrap=True, overflow="ellipsis")
        self._live.update(Group(*shown, last), refresh=True)

    def end(self, state: RunState, now_s: float) -> None:
        """Leave the terminal with one line on how it ended."""
        self._live.stop()
        super().end(state, now_s)

    def _write(self, *lines: str, style: str = "") -> None:
        for line in lines:
            self._console.print(Text(line, style=style), soft_wrap=True)
