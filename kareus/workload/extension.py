"""Extensions of a workload by one more Hydra group, such as an emulated fleet, with names of their own."""

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

from kareus.workload.combinations import check_combinations
from kareus.workload.compose import ComposedWorkload
from kareus.workload.config import Workload
from kareus.workload.divisibility import check_divisibility
from kareus.workload.memory import check_memory, estimate_memory
from kareus.workload.naming import changed, joined, workload_name
from kareus.workload.resolve import with_settable_clocks, with_split


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A composed workload and the record that extends it, each with its own name."""

    workload_name: str
    name: str
    overrides: tuple[str, ...]
    """Overrides that resolve to this workload and extension alone."""
    workload: Workload
    """Workload without the extension, as it was composed."""
    changes: dict[str, Any]
    """Values of the workload, by dotted key, that differ from those of its chosen options."""
    record: Any
    """The extension."""


def part(composition: ComposedWorkload, group: str) -> Extension:
    """Take the field `group` off a composed workload."""
    values = {f.name: getattr(composition.workload, f.name) for f in dataclasses.fields(composition.workload)}
    record, prefix = values.pop(group), f"{group}."
    changes_here = {
        key.removeprefix(prefix): value for key, value in composition.changes.items() if key.startswith(prefix)
    }
    changes = {key: value for key, value in composition.changes.items() if not key.startswith(prefix)}
    return Extension(
        workload_name=workload_name(replace(composition, changes=changes)),
        name=joined([composition.options[group], *changed(changes_here)]),
        overrides=composition.overrides,
        workload=Workload(**values),
        changes=changes,
        record=record,
    )


def feasible(workload: Workload) -> Workload:
    """Return the workload as it is planned: its layers split over the stages, and only clocks that its testbed can set.

    Raises:
        RefusedWorkloadError: it cannot run.
    """
    check_divisibility(workload)
    check_combinations(workload)
    workload = with_settable_clocks(with_split(workload))
    check_memory(workload, estimate_memory(workload))
    return workload
