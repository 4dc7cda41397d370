"""The checkout that is attacked: copies of it, a small campaign planned in one of them, and its commands."""

import json
import os
import random
import shutil
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from attacks.commands import HANG_S, Done, run
from runs.checkout import checkout, command

SMALL = (
    "model=qwen3-1.7b parallelism=tp8 model.num_layers=4 model.vocab_size=8192 search=mine "
    "gpu.search_frequencies.stride_mhz=510 pipeline.deadlines=2 parallelism.layers_per_stage=[2,2] microbatch_size=2"
)
"""A workload that is planned in seconds: two clocks, few candidates."""
CAMPAIGN = f"""
workloads: ["{SMALL},4096"]
fleets: ["{SMALL} emulation.pipelines=2 emulation.num_microbatches=2 emulation.deadlines=2 emulation.stragglers=[1.1] emulation.power_caps=[240W]"]
sweeps: ["{SMALL} sweep.windows_s=[1] sweep.trials=2"]
"""  # noqa: E501 - a line for each member
STRATEGY = """
defaults: [random, _self_]
medium: {initial: 6, max_rounds: 0, batch: 2}
large: {initial: 6, max_rounds: 0, batch: 2}
"""
CONFIG = "campaign=reduced"

Item = TypeVar("Item")


@dataclass(frozen=True)
class Target:
    """A checkout under attack."""

    source: Path
    """Folder with Snakefile, workflow, configuration and package."""
    scratch: Path
    """Folder for everything that the attacks write."""
    seed: int = 0
    quick: bool = False
    """Whether to make a fraction of the tries."""
    jobs: int = 2
    """Tries that are made at a time."""
    _building: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def random(self, *names: object) -> random.Random:
        """Return a generator for what is named so, the same for the same seed."""
        return random.Random(repr((self.seed, *names)))

    def some(self, tries: list[Item]) -> list[Item]:
        """Return all of `tries`, or a sixth of them if there is little time."""
        return tries[::6] if self.quick else tries

    def folder(self, name: str = "try") -> Path:
        """Return a new empty folder."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.scratch))

    def bare(self, name: str = "clone") -> Path:
        """Return a new copy of the checkout, with the small campaign and the package but without results."""
        folder = checkout(self.folder() / name, self.source)
        for package in ("kareus", "snakemake_logger_plugin_kareus"):
            shutil.copytree(self.source / package, folder / package)
        (folder / "config/campaign/reduced.yaml").write_text(CAMPAIGN)
        (folder / "config/search/mine.yaml").write_text(STRATEGY)
        return folder

    @cached_property
    def _undisturbed(self) -> Path:
        folder = self.bare("undisturbed")
        done = self.snakemake(folder)
        if done.code:
            raise SystemExit(f"{self.source}: the small campaign fails undisturbed:\n{done.output}")
        return folder

    @property
    def undisturbed(self) -> Path:
        """A copy in which the small campaign was planned and nothing else was done. Nobody may write to it."""
        with self._building:
            return self._undisturbed

    def planned(self) -> Path:
        """Return a new copy of the undisturbed folder, to be attacked."""
        return Path(shutil.copytree(self.undisturbed, self.folder() / "planned", symlinks=True))

    @property
    def workload(self) -> Path:
        """Path of the workload's results, below a copy."""
        (page,) = self.undisturbed.glob("results/*/report/page.html")
        return page.parents[1].relative_to(self.undisturbed)

    def snakemake(self, folder: Path, *arguments: str, **variables: str) -> Done:
        """Plan the small campaign in a copy; `select=edp` and the like are added to its `--config`."""
        config = [CONFIG, *(a for a in arguments if not a.startswith("-") and "=" in a)]
        others = [a for a in arguments if a.startswith("-") or "=" not in a]
        line = command("--cores", "2", *others, "--config", *config)
        return run(line, folder, self.environment(folder) | variables, HANG_S)

    def kareus(self, folder: Path, *arguments: object, limit_s: float = HANG_S, **variables: str) -> Done:
        """Run a `kareus` command in a copy."""
        line = [sys.executable, "-m", "kareus", *map(str, arguments)]
        return run(line, folder, self.environment(folder) | variables, limit_s)

    def python(self, folder: Path, *arguments: object, limit_s: float = HANG_S, **variables: str) -> Done:
        """Run Python with the package of a copy."""
        return run([sys.executable, *map(str, arguments)], folder, self.environment(folder) | variables, limit_s)

    def environment(self, folder: Path) -> dict[str, str]:
        """Variables with which a copy's own package is imported, and compiled once."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        home = folder if (folder / "kareus").is_dir() else self.source
        return kept | {"PYTHONPATH": str(home), "OMP_NUM_THREADS": "1", "KAREUS_CLAIMS": str(self.scratch / "claims")}

    @cached_property
    def modules(self) -> dict[str, str]:
        """Module of every command."""
        code = "import json; from kareus.cli import COMMANDS, STAGES as S; "
        code += "print(json.dumps({name: command.module for name, command in (COMMANDS | S).items()}))"
        found: dict[str, str] = json.loads(self.python(self.source, "-c", code).output)
        return found


def workload_in(folder: Path) -> Path:
    """Return the results of the workload that a copy has planned."""
    (page,) = folder.glob("results/*/report/page.html")
    return page.parents[1]


def variables_of_worker() -> dict[str, str]:
    """Variables for a process that a worker starts."""
    return dict(os.environ)


KILLED_BEFORE_CLOSING = [
    sys.executable,
    "-c",
    "import os, sys; from kareus.artifacts.store import Shelf; Shelf.__exit__ = lambda *_: os._exit(137); "
    "from kareus.cli import main; sys.exit(main(sys.argv[1:]))",
]
"""Start of a command that dies once it has measured, before its journal is folded into a table."""
