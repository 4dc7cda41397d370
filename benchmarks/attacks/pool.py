"""Worker processes that make many tries of a surface, each within a limit of processor time."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from attacks.rows import Row, counted
from attacks.target import Target

LIMIT_S = 10.0
"""Processor time that one input may take."""
PATIENCE_S = 300.0
"""Wall time that it may take on a busy machine."""
_POLL_S = 0.5


def fuzzed(target: Target, attack: str, surface: str, tries: int) -> Row:
    """Make `tries` numbered tries of a module of `attacks.surfaces`."""
    tries = tries // 10 if target.quick else tries
    numbers = [range(worker, tries, target.jobs) for worker in range(target.jobs)]
    with ThreadPoolExecutor(target.jobs) as pool:
        found = list(pool.map(lambda own: list(_answers(target, surface, own)), numbers))
    return counted(attack, sorted(answer for answers in found for answer in answers))


class _Worker:
    """One process, and what it answers."""

    def __init__(self, target: Target, surface: str) -> None:
        folder = target.planned()
        benchmarks = str(Path(__file__).parents[1])
        environment = target.environment(folder)
        environment["PYTHONPATH"] += os.pathsep + benchmarks
        line = [sys.executable, "-m", "attacks.worker", surface, str(folder), str(target.seed)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(line, cwd=folder, env=environment, start_new_session=True, **pipes)
        self.ready = self.answer(PATIENCE_S) == "ready"

    def ask(self, number: int) -> str:
        """Have a try made; returns what failed."""
        assert self.process.stdin
        try:
            self.process.stdin.write(f"{number}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return "crash: the process had ended"
        return self.answer(LIMIT_S)

    def answer(self, limit_s: float) -> str:
        """Wait for the next line; what takes longer is killed."""
        assert self.process.stdout
        start_s, before_s = time.monotonic(), self._cpu_s()
        while not select.select([self.process.stdout], [], [], _POLL_S)[0]:
            if self._cpu_s() - before_s > limit_s or time.monotonic() - start_s > PATIENCE_S:
                self.end()
                return f"hang: over {limit_s:.0f} s"
        line = self.process.stdout.readline()
        if not line:
            return f"crash: the process ended with code {self.process.wait()}"
        answer: str = json.loads(line)
        return answer

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    def _cpu_s(self) -> float:
        try:
            times = psutil.Process(self.process.pid).cpu_times()
        except psutil.NoSuchProcess:
            return 0.0
        return float(times.user + times.system)


def _answers(target: Target, surface: str, numbers: Iterable[int]) -> Iterator[tuple[str, str]]:
    worker = _Worker(target, surface)
    for number in numbers:
        failure = worker.ask(number) if worker.ready else f"{surface}: cannot be prepared in this checkout"
        yield f"{surface} {number:04d}", failure
        if worker.process.poll() is not None and worker.ready:
            worker = _Worker(target, surface)
    worker.end()
