"""Writing resolved workloads: their configurations, and the table `WORKLOADS` of all combinations."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kareus.artifacts.configuration import to_yaml
from kareus.artifacts.files import write_text
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import content_hash
from kareus.artifacts.seals import sealed_text
from kareus.artifacts.tables import write_table
from kareus.workload.resolve import Resolved
from kareus.workload.tables import MEMORY_PARTS, WORKLOADS

logger = logging.getLogger(__name__)


def write_resolved(resolved: Sequence[Resolved], results: Path) -> None:
    """Write the table of all combinations, and the configuration of each that can run."""
    for combination in resolved:
        if combination.workload is not None:
            _write(results / combination.name / "config" / "workload.yaml", sealed_text(to_yaml(combination.workload)))
    provenance = Provenance(config_hash=content_hash([combination.workload for combination in resolved]))
    table = WORKLOADS.frame([_row(combination) for combination in resolved])
    write_table(results / "workloads.parquet", table, WORKLOADS, provenance)


def _write(path: Path, text: str) -> None:
    """Write a configuration. Where it was another one before, the files of its folder were edited: names tell apart."""
    if path.is_file() and path.read_bytes() != text.encode():  # as bytes: a damaged file need not be text
        logger.info("%s: the configuration was edited since it was written; written anew.", path)
    write_text(path, text)


def _row(combination: Resolved) -> dict[str, Any]:
    workload, memory = combination.workload, combination.memory
    return {
        "workload": combination.name,
        "accepted": workload is not None,
        "refusal": combination.refusal,
        "overrides": list(combination.overrides),
        "gpus": combination.gpus,
        "layers_per_stage": list(workload.parallelism.split) if workload else None,
        "memory_stage": memory.stage if memory else None,
        **{column.name: getattr(memory, column.name) if memory else None for column in MEMORY_PARTS},
        "memory_gib": workload.gpu.memory_gib if workload else None,
    }
