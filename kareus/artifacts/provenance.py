"""Provenance: where an artifact comes from, carried in its metadata and handed on to all that derives from it."""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace

import kareus
from kareus.errors import ArtifactError

TESTBED_KINDS = ("simulated", "cuda")
"""What a testbed may be: a GPU model, or a real GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedIdentity:
    """The testbed on which something was measured."""

    kind: str
    """One of `TESTBED_KINDS`."""
    gpu: str
    """Name of the GPU, such as `A100-SXM4-40GB`."""
    detail: str
    """What else identifies it: version of the GPU model; UUIDs, driver and clocks of real GPUs."""

    @property
    def label(self) -> str:
        """What figures and headers print, such as `simulated testbed, A100-SXM4-40GB`."""
        return f"simulated testbed, {self.gpu}" if self.kind == "simulated" else f"measured on {self.gpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Origin of one artifact."""

    config_hash: str
    """Hash of the resolved configuration slice of the stage that made it."""
    testbed: TestbedIdentity | None = None
    """Testbed behind its numbers; None where nothing was measured."""
    seed: int | None = None
    kareus_version: str = kareus.__version__
    created_at: str = ""
    """Coordinated universal time, ISO 8601; set when the file is written."""

    def stamped(self) -> "Provenance":
        """Return a copy that says it was created now."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return replace(self, created_at=now)


def derived(config_hash: str, parents: Iterable[Provenance]) -> Provenance:
    """Return the provenance of what is computed from `parents`: one testbed, one seed, or an error.

    Raises:
        ArtifactError: the parents were measured on different testbeds or with different seeds.
    """
    measured = [p for p in parents if p.testbed is not None]
    if len({(p.testbed, p.seed) for p in measured}) > 1:
        labels = sorted({f"{p.testbed.label} (seed {p.seed})" for p in measured if p.testbed})
        raise ArtifactError(f"inputs of one stage come from different testbeds: {'; '.join(labels)}. Rerun all on one.")
    first = measured[0] if measured else Provenance(config_hash=config_hash)
    return Provenance(config_hash=config_hash, testbed=first.testbed, seed=first.seed)
