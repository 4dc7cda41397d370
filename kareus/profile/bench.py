"""The bench of one job: its testbed, its shelf of the durable store, and the provenance of what it measures."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kareus.artifacts.names import below
from kareus.artifacts.outputs import OutputKind
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import content_hash, to_plain
from kareus.artifacts.store import Shelf
from kareus.artifacts.tables import TableSchema
from kareus.gpu_model.gpu import Gpu
from kareus.profile.config import MeasurementProtocol
from kareus.profile.measure import Profiler
from kareus.profile.tables import LOOKS, MEASUREMENTS
from kareus.progress.journal import SUFFIX
from kareus.testbed.config import TestbedConfig, TestbedKind
from kareus.testbed.protocol import Testbed, open_testbed


class MeasuringConfig(Protocol):
    """Configuration that decides a measurement, apart from program and clock; slices of stages that measure have it."""

    @property
    def gpu(self) -> Gpu:
        """The GPU."""

    @property
    def testbed(self) -> TestbedConfig:
        """The testbed that runs programs."""

    @property
    def protocol(self) -> MeasurementProtocol:
        """The protocol of a measurement."""

    @property
    def seed(self) -> int:
        """Seed of a simulated testbed's noise."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A testbed, and the configuration that it was opened with."""

    config: MeasuringConfig
    testbed: Testbed

    def provenance(self, subject: str) -> Provenance:
        """Return the provenance of tables made from this bench's measurements, about `subject`."""
        return Provenance(
            config_hash=content_hash(self.config),
            testbed=self.testbed.identity,
            seed=self.config.seed,
            subject=subject,
        )

    @contextlib.contextmanager
    def profiler(self, store: Path, subject: str, content: Any) -> Iterator[Profiler]:
        """Open the shelves of `subject`, of measurements and of time-only measurements, and measure over them.

        Args:
            store: folder of the measurement store.
            subject: readable name, such as the partition's.
            content: record that identifies what is measured, such as the partition itself.
        """
        measurements, times = (self.shelf(store, subject, content, schema) for schema in (MEASUREMENTS, LOOKS))
        with measurements, times:
            yield Profiler(self.testbed, self.config.protocol, measurements, times)

    def shelf(self, store: Path, subject: str, content: Any, schema: TableSchema = MEASUREMENTS) -> Shelf:
        """Return the shelf of `subject`; that of another table than `MEASUREMENTS` is a folder within it."""
        place = self._place(store, subject, content)
        return Shelf(place if schema is MEASUREMENTS else place / schema.name, schema, self._shelf_provenance)

    def _place(self, store: Path, subject: str, content: Any) -> Path:
        """Folder of the measurements of `subject`; its name has a hash of all that decides them."""
        group = f"{self.config.gpu.name}_{self.testbed.identity.kind}"
        return below(store, group, f"{subject}_{content_hash((content, self._decisive))}")

    @property
    def _shelf_provenance(self) -> Provenance:
        return Provenance(
            config_hash=content_hash(self._decisive), testbed=self.testbed.identity, seed=self.config.seed
        )

    @property
    def _decisive(self) -> dict[str, Any]:
        """All but the range of clocks to search, and what changes between them cost.

        A wider search reuses what a narrower one measured.

        For which numbers the errors of predictions were estimated decides nothing either; that they are known is part
        of the testbed's identity. The air around real GPUs is not set by the configuration, which only says how warm
        it is.
        """
        gpu = to_plain(self.config.gpu)
        del gpu["search_frequencies"], gpu["clock_change"], gpu["kernel_uncertainty"]
        for of_host in ("host_gb_per_s", "host_memory_gb_per_s"):  # no measured program copies to the host
            gpu.pop(of_host, None)
        if gpu["uncertainty"] is not None:
            del gpu["uncertainty"]["estimated_for"]
        if self.config.testbed.kind is TestbedKind.CUDA:  # whose air is what it is, whatever is said of it
            gpu.pop("ambient_c", None)
        return {
            "gpu": gpu,
            "testbed": to_plain(self.config.testbed),
            "protocol": to_plain(self.config.protocol),
            "seed": self.config.seed,
            "identity": to_plain(self.testbed.identity),
        }


def progress_file(path: Path | None) -> list[tuple[Path, OutputKind]]:
    """Return the journal of progress among the outputs of a stage that measures, if it was asked for one.

    It is known by its name: one that a power cut left empty keeps no stage from starting.
    """
    kind = OutputKind("a journal of progress", lambda place: place.name.endswith(SUFFIX))
    return [] if path is None else [(path, kind)]


def open_bench(config: MeasuringConfig) -> Bench:
    """Open the testbed that `config` names."""
    power_w = config.protocol.predecessor_power_w
    return Bench(config, open_testbed(config.testbed, config.gpu, power_w, config.seed))
