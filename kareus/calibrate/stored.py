"""Observations in the store of measurements: those of calibrations, and of partitions that searches have measured.

The store names programs by a hash. Those of a calibration are known, and those of partitions are made anew from the
tables of the workloads whose results are beside the store. Other programs are counted and left out.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kareus.artifacts.provenance import TestbedIdentity
from kareus.artifacts.store import JOURNAL
from kareus.artifacts.tables import Row, TableSchema, read_provenance, read_table
from kareus.calibrate.heat import HEAT_READINGS
from kareus.calibrate.observations import ObservedProbe, observed
from kareus.calibrate.probes import Probe, ProbeKind, probes
from kareus.errors import ArtifactError
from kareus.gpu_model.gpu import Gpu
from kareus.partition.read import read_partitions
from kareus.profile.measure import identity_of
from kareus.profile.programs import partition_program
from kareus.profile.tables import LOOKS, MEASUREMENTS

logger = logging.getLogger(__name__)

STORE_NAME = "measurements"
PARTITIONS_FILE = "partition/partitions.parquet"
MOST_SM_COUNT = 64
"""Largest number of SMs of a collective for which programs are made anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What folders of a store have of one testbed."""

    testbed: TestbedIdentity
    observations: list[ObservedProbe]
    heat: list[Row] | None
    """Readings of idle and sustained power; None without a calibration."""
    unknown: int
    """Measurements of programs that cannot be made anew."""


def read_stored(folders: Sequence[Path], gpu: Gpu) -> Stored:
    """Return the observations of all shelves in and below `folders`.

    Raises:
        ArtifactError: a folder has no measurements, they are of several testbeds or of clocks that `gpu` lacks, or all
            are of unknown programs.
    """
    paths = {folder: _tables(folder, (MEASUREMENTS, LOOKS, HEAT_READINGS)) for folder in folders}
    for folder, tables in paths.items():
        if not tables:
            raise ArtifactError(f"{folder}: there are no measurements; give a folder of results/measurements.")
    every = {path: schema for tables in paths.values() for path, schema in tables.items()}
    testbed = _one_testbed(every)
    probes = {identity_of(probe.program): probe for probe in _known(folders, gpu)}
    rows = [
        row
        for path, schema_of in every.items()
        if schema_of is not HEAT_READINGS
        for row in read_table(path, schema_of).to_dicts()
    ]
    observations = [observed(probes[row["program"]], row) for row in rows if row["program"] in probes]
    if not observations:
        raise ArtifactError(
            f"{folders[0]}: none of the {len(rows)} measurements is of a known program; `kareus calibrate` measures "
            "some, and programs of searches are known where results of their workloads are beside the store."
        )
    highest_mhz = max(schema_of.frequency_mhz for schema_of in observations)
    if highest_mhz > gpu.maximum_clock_mhz:
        raise ArtifactError(
            f"{folders[0]}: measured at {highest_mhz} MHz, and {gpu.name} has at most {gpu.maximum_clock_mhz}; give "
            "--gpu the option that was measured."
        )
    heat = [path for path, schema_of in every.items() if schema_of is HEAT_READINGS]
    return Stored(
        testbed=testbed,
        observations=observations,
        heat=read_table(heat[0], HEAT_READINGS).sort("reading").to_dicts() if heat else None,
        unknown=len(rows) - len(observations),
    )


def _tables(folder: Path, schemas: Sequence[TableSchema]) -> dict[Path, TableSchema]:
    for journal in folder.rglob(JOURNAL):
        logger.warning("%s: of a run that is at work or was killed, left out; rerun it to fold it in.", journal)
    return {path: schema for schema in schemas for path in sorted(folder.rglob(f"{schema.name}.parquet"))}


def _one_testbed(tables: Mapping[Path, TableSchema]) -> TestbedIdentity:
    by_path = {path: read_provenance(path, schema).testbed for path, schema in tables.items()}
    testbeds = {testbed for testbed in by_path.values() if testbed is not None}
    if len(testbeds) != 1:
        listed = "; ".join(sorted(f"{testbed.gpu}, {testbed.detail}" for testbed in testbeds)) or "none"
        raise ArtifactError(f"{next(iter(by_path))}: measurements of one testbed are needed; there are: {listed}.")
    return testbeds.pop()


def _known(folders: Sequence[Path], gpu: Gpu) -> Iterator[Probe]:
    """Probes of calibrations, and the partitions of workloads beside the store under every schedule."""
    yield from probes(gpu.gpus_per_node)
    stores = {place for folder in folders for place in (folder, *folder.absolute().parents) if place.name == STORE_NAME}
    for path in sorted({path for store in stores for path in store.absolute().parent.glob(f"*/{PARTITIONS_FILE}")}):
        for partition in read_partitions(path):
            for sm_count in range(1, MOST_SM_COUNT + 1):
                for operator in partition.operators:
                    program = partition_program(partition, sm_count, operator.name)
                    yield Probe(kind=ProbeKind.PARTITION, program=program)
