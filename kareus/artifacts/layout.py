"""Paths in a results folder, for commands that take the folder.

The rules of the workflow name the same paths; a test holds both together.
"""

from dataclasses import dataclass
from pathlib import Path

from kareus.artifacts.names import below
from kareus.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class WorkloadFolder:
    """`results/<workload>`."""

    path: Path

    @property
    def name(self) -> str:
        """The workload's readable name."""
        return self.path.resolve().name

    def has(self, place: str) -> bool:
        """Return whether there is a file at `place`, relative to the folder."""
        return (self.path / place).is_file()

    def config(self, stage: str) -> Path:
        """Slice of the configuration that a stage sees."""
        return self._existing("config", f"{stage}.yaml")

    @property
    def segments(self) -> Path:
        """Operator graphs of a block."""
        return self._existing("partition", "segments.parquet")

    @property
    def space(self) -> Path:
        """Search spaces."""
        return self._existing("schedule", "space.parquet")

    @property
    def microbatch(self) -> Path:
        """Microbatch frontiers."""
        return self._existing("frontier", "microbatch.parquet")

    @property
    def iteration(self) -> Path:
        """Iteration frontiers."""
        return self._existing("pipeline", "iteration.parquet")

    @property
    def plans(self) -> Path:
        """Folder of the plan files."""
        return self.path / "plan"

    def plan(self, selector: str, method: str) -> Path:
        """Plan file of a selector: of `kareus`, or marked with the method whose frontier it is from."""
        suffix = "" if method == "kareus" else f"_{method}"
        return below(self.path, "plan", f"{selector}{suffix}.json")

    @property
    def full_power(self) -> Path:
        """Plan file of the trainer's own execution at the GPU's own power limit, where the folder is of another one."""
        return self.path / "full-power.json"

    def fleet(self, name: str) -> Path:
        """Folder of an emulated fleet."""
        return below(self.path, "emulate", name)

    def _existing(self, *parts: str) -> Path:
        path = self.path.joinpath(*parts)
        if not path.is_file():
            raise ArtifactError(
                f"{path}: no such file; is {self.path} the folder of a planned workload? Plan it with "
                "snakemake, or give another folder."
            )
        return path


def campaign_table(results: Path, folder: str) -> Path:
    """Table of what belongs to a campaign, by the name of the campaign's folder."""
    return below(results, "campaigns", folder, "campaign.parquet")
