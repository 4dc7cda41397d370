"""Results and cost of searches: the pass that found each frontier point, and the time spent (paper, "MBO Analysis")."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from kareus.report.workload.inputs import PartitionSearch

ALL = "all partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPass:
    """Candidates that one pass of a strategy chose."""

    name: str
    measured: int
    on_frontier: int
    """Number of those on the measured frontier of their partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEffort:
    """One partition's search, or all of them together."""

    partition: str
    passes: tuple[SearchPass, ...]
    """Passes in the order in which they first chose."""
    profiling_s: float
    """Testbed's clock spent on measuring, virtual if simulated; the same if measurements came from the store."""
    looking_s: float
    """Part of `profiling_s` spent on time-only measurements."""
    optimisation_s: float
    """Wall clock that the planning machine spent on surrogates and acquisition."""
    strategy: str
    gpu_s: float
    """Testbed's clock times the GPUs that were busy meanwhile."""

    measured: int
    """Candidates measured. Several passes may have chosen one."""
    on_frontier: int
    """Candidates on the frontier."""

    def share_percent(self, choice: SearchPass) -> float:
        """Return the share of a pass in all choices of candidates that are on the frontier."""
        return 100 * choice.on_frontier / sum(p.on_frontier for p in self.passes)

    @property
    def profiling_share(self) -> float:
        """Share of profiling in the time of the search."""
        return self.profiling_s / (self.profiling_s + self.optimisation_s)


def search_efforts(searches: Sequence[PartitionSearch]) -> list[SearchEffort]:
    """One for each partition, and the first for all of them; none if nothing was searched."""
    if not searches:
        return []
    each = [_effort(search.partition, search.candidates, search.rounds, search.proposals) for search in searches]
    together = (
        pl.concat([getattr(search, name) for search in searches]) for name in ("candidates", "rounds", "proposals")
    )
    return [_effort(ALL, *together), *each]


def _effort(name: str, candidates: pl.DataFrame, rounds: pl.DataFrame, proposals: pl.DataFrame) -> SearchEffort:
    passes = (
        candidates.explode("chosen_by")
        .group_by("chosen_by", maintain_order=True)
        .agg(pl.len().alias("measured"), pl.col("on_frontier").sum())
    )
    return SearchEffort(
        partition=name,
        passes=tuple(
            SearchPass(name=chosen_by, measured=measured, on_frontier=on_frontier)
            for chosen_by, measured, on_frontier in passes.rows()
        ),
        measured=len(candidates),
        on_frontier=int(candidates["on_frontier"].sum()),
        profiling_s=float(rounds["measuring_s"].sum()),
        looking_s=float(rounds["looking_s"].sum()),
        optimisation_s=float(proposals["proposing_s"].sum()),
        strategy=", ".join(rounds["strategy"].unique().sort()),
        gpu_s=float((rounds["measuring_s"] * rounds["gpus"]).sum()),
    )
