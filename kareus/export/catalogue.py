"""Every table of a results folder: its schema and its path.

The one list behind `kareus.open_results` and the reference page of the schemas.
"""

from dataclasses import dataclass

from kareus.adapters.tables import MICROBATCHES, STEPS, SWEPT
from kareus.adviser.tables import ADVISED_LAYOUTS, ADVISED_PLANS
from kareus.artifacts.tables import TableSchema
from kareus.campaign.config import CAMPAIGN
from kareus.emulate.tables import FLEET, HOURS, POWER_CAPS, STRAGGLERS
from kareus.frontiers.tables import MICROBATCH
from kareus.partition.tables import PARTITIONS, SEGMENTS
from kareus.pipeline.tables import INSTRUCTIONS, ITERATION
from kareus.profile.tables import COMPONENTS, PROFILED_INSTRUCTIONS, TRIALS
from kareus.report.workload.tables import (
    COMPARISON,
    FLEET_COMPARISON,
    PASSES,
    POWER,
    PROFILER,
    SAVINGS,
    SEARCH_TIME,
    TIMELINE,
)
from kareus.schedule.tables import SPACE
from kareus.search.tables import CANDIDATES, PROPOSALS, ROUNDS
from kareus.training.tables import ITERATIONS


@dataclass(frozen=True, slots=True)
class Entry:
    """One kind of table."""

    schema: TableSchema
    pattern: str
    """Path below the folder of a workload or a campaign; a part in braces is a column that only the path holds."""

    @property
    def glob(self) -> str:
        """The pattern for `Path.glob`."""
        return "/".join("*" if part.startswith("{") else part for part in self.pattern.split("/"))

    def columns_of(self, path: str) -> dict[str, str]:
        """Columns that the path below that folder holds, such as `partition`."""
        parts = zip(self.pattern.split("/"), path.split("/"), strict=True)
        return {name.strip("{}"): value for name, value in parts if name.startswith("{")}


CATALOGUE = (
    Entry(PARTITIONS, "partition/partitions.parquet"),
    Entry(SEGMENTS, "partition/segments.parquet"),
    Entry(SPACE, "schedule/space.parquet"),
    Entry(COMPONENTS, "profile/components.parquet"),
    Entry(PROFILED_INSTRUCTIONS, "profile/instructions.parquet"),
    Entry(TRIALS, "profile/{sweep}/trials.parquet"),
    Entry(CANDIDATES, "search/{partition}/candidates.parquet"),
    Entry(PROPOSALS, "search/{partition}/proposals.parquet"),
    Entry(ROUNDS, "search/{partition}/rounds.parquet"),
    Entry(MICROBATCH, "frontier/microbatch.parquet"),
    Entry(INSTRUCTIONS, "pipeline/instructions.parquet"),
    Entry(ITERATION, "pipeline/iteration.parquet"),
    Entry(ITERATIONS, "engine/*/*.parquet"),
    Entry(MICROBATCHES, "adapters/{run}/microbatches/*.parquet"),
    Entry(STEPS, "adapters/{run}/steps/*.parquet"),
    Entry(SWEPT, "swept/*/swept.parquet"),
    Entry(FLEET, "emulate/*/fleet.parquet"),
    Entry(STRAGGLERS, "emulate/*/stragglers.parquet"),
    Entry(POWER_CAPS, "emulate/*/power_caps.parquet"),
    Entry(HOURS, "emulate/*/hours.parquet"),
    Entry(SAVINGS, "report/data/savings.parquet"),
    Entry(TIMELINE, "report/data/timeline.parquet"),
    Entry(POWER, "report/data/power.parquet"),
)
"""Tables of a workload."""

CAMPAIGN_CATALOGUE = (
    Entry(CAMPAIGN, "campaign.parquet"),
    Entry(COMPARISON, "report/data/comparison.parquet"),
    Entry(FLEET_COMPARISON, "report/data/fleet_comparison.parquet"),
    Entry(PASSES, "report/data/passes.parquet"),
    Entry(SEARCH_TIME, "report/data/search_time.parquet"),
    Entry(PROFILER, "report/data/profiler.parquet"),
    Entry(ADVISED_LAYOUTS, "advise/advised_layouts.parquet"),
    Entry(ADVISED_PLANS, "advise/advised_plans.parquet"),
)
"""Tables of a campaign, below `campaigns/<campaign>/`."""
