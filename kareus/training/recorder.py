"""One rank's measurements of every iteration, as the table that reports read."""

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.tables import read_provenance, read_table, write_table
from kareus.device.controller import ClockChange
from kareus.device.protocol import Device
from kareus.training.tables import ITERATIONS


@dataclass(frozen=True, slots=True)
class IterationRecorder:
    """Rows of one rank's iterations; they are on disk whenever a checkpoint is."""

    path: Path
    provenance: Provenance
    rows: list[dict[str, Any]] = field(default_factory=list)

    def resume(self, iteration: int) -> None:
        """Read the rows before `iteration` of an earlier start."""
        if self.path.exists():
            self.rows[:] = [r for r in read_table(self.path, ITERATIONS).to_dicts() if r["iteration"] < iteration]

    def write(self) -> None:
        """Write all rows."""
        if self.rows:
            write_table(self.path, ITERATIONS.frame(self.rows), ITERATIONS, self.provenance)


def recorded_in(output: Path, rank: int) -> Path:
    """Return the path of a rank's table in the output folder of a training."""
    return output / f"rank-{rank:05d}.parquet"


def forget_iterations(output: Path, ranks: Iterable[int], iteration: int) -> None:
    """Remove the rows from `iteration` on of ranks that no longer take part: others run these iterations again."""
    for path in (recorded_in(output, rank) for rank in ranks):
        if path.exists():
            former = IterationRecorder(path, read_provenance(path, ITERATIONS))
            former.resume(iteration)
            former.write()


def identity(device: Device | None) -> TestbedIdentity:
    """Return the identity of the GPU, or of this machine's CPU."""
    if device is None:
        return TestbedIdentity(kind="cpu", gpu="CPU", detail=f"{platform.machine()}, no clocks, energy not measured")
    return TestbedIdentity(kind="cuda", gpu=device.name, detail=f"{device.uuid}, driver {device.driver}")


def clock_rows(changes: Sequence[ClockChange], started_s: float) -> list[dict[str, Any]]:
    """Return entries of the column `clocks`, without requests that a later one overtook.

    Args:
        changes: as the controller logged them.
        started_s: start of the iteration, seconds since the epoch.
    """
    return [
        {
            "frequency_mhz": change.frequency_mhz,
            "start_s": change.locked_s - started_s,
            "observed_mhz": change.observed_mhz,
        }
        for change in changes
        if change.locked_s is not None
    ]
