"""Provenance: where an artifact comes from, carried in its metadata and handed on to all that derives from it."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace

import kareus
from kareus.errors import ArtifactError

TESTBED_KINDS = ("simulated", "cuda")
"""Kinds of testbeds: a GPU model, or a real GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedIdentity:
    """The testbed on which something was measured."""

    kind: str
    """One of `TESTBED_KINDS`."""
    gpu: str
    """Name of the GPU, such as `A100-SXM4-40GB`."""
    detail: str
    """Further identification: version of the GPU model; UUIDs, driver and clocks of real GPUs."""

    @property
    def label(self) -> str:
        """Label in figures and headers, such as `simulated testbed, A100-SXM4-40GB`."""
        return f"simulated testbed, {self.gpu}" if self.kind == "simulated" else f"measured on {self.gpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Origin of one artifact."""

    config_hash: str
    """Hash of the resolved configuration slice of the stage that made it."""
    testbed: TestbedIdentity | None = None
    """Testbed behind its numbers; None where nothing was measured."""
    seed: int | None = None
    subject: str = ""
    """Hash of what extraction saw, handed on to all that follows; empty where that is of no one workload."""
    kareus_version: str = kareus.__version__
    created_at: str = ""
    """Coordinated universal time, ISO 8601; set when the file is written."""

    def stamped(self) -> "Provenance":
        """Return a copy with the present time as that of its creation."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return replace(self, created_at=now)


def derived(config_hash: str, parents: Mapping[str, Provenance]) -> Provenance:
    """Return the provenance of what is computed from `parents`: one subject, one testbed, one seed, or an error.

    Args:
        config_hash: hash of the configuration slice of the stage that computes it.
        parents: by name or path, for messages.

    Raises:
        ArtifactError: the parents have different subjects, or were measured on different testbeds or with different
            seeds.
    """
    subject = common_subject(parents)
    measured = [p for p in parents.values() if p.testbed is not None]
    if len({(p.testbed, p.seed) for p in measured}) > 1:
        labels = sorted({f"{p.testbed.label} (seed {p.seed})" for p in measured if p.testbed})
        raise ArtifactError(f"inputs of one stage come from different testbeds: {'; '.join(labels)}. Rerun all on one.")
    first = measured[0] if measured else Provenance(config_hash=config_hash)
    return Provenance(config_hash=config_hash, testbed=first.testbed, seed=first.seed, subject=subject)


def common_subject(parents: Mapping[str, Provenance]) -> str:
    """Return the one subject of `parents`, by name or path.

    Raises:
        ArtifactError: they have different ones.
    """
    (first, provenance), *others = parents.items()
    for name, other in others:
        if other.subject != provenance.subject:
            raise ArtifactError(
                f"{name}: made for another workload than {first} (subject {other.subject or 'none'}, expected "
                f"{provenance.subject or 'none'}); give tables of one workload, or rerun the stages that make them."
            )
    return provenance.subject


def check_subject(subject: str, parents: Mapping[str, Provenance]) -> None:
    """Check that all `parents`, by name or path, are about what the configuration is about.

    Raises:
        ArtifactError: one of them is not.
    """
    for name, parent in parents.items():
        if parent.subject != subject:
            raise ArtifactError(
                f"{name}: made for another workload (subject {parent.subject or 'none'}, the configuration has "
                f"{subject}); give the table of this one, or rerun the stage that makes it."
            )


def check_config(config_hash: str, name: str, parent: Provenance) -> None:
    """Check that the stage that made `parent`, a table called `name`, saw the configuration of this hash.

    Raises:
        ArtifactError: it saw another one.
    """
    if parent.config_hash != config_hash:
        raise ArtifactError(
            f"{name}: made with another configuration (hash {parent.config_hash}, expected {config_hash}); "
            f"give the table of this one, or rerun the stage that makes it."
        )
