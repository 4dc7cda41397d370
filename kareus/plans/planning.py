"""All planning stages in one process: from a workload to its frontiers, without files.

Each stage is the function that its command calls, so that the data are those which the workflow writes.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl
from threadpoolctl import threadpool_limits

from kareus.artifacts.provenance import TestbedIdentity
from kareus.errors import ConfigError
from kareus.frontiers.frontiers import compose_frontiers
from kareus.graph.records import Batch, BlockGraph
from kareus.model.training_options import check_options
from kareus.partition.extract import operator_graphs, partitions_of
from kareus.pipeline.frontiers import solve_iteration
from kareus.pipeline.methods import METHODS, Method, most_needed
from kareus.plans.frontiers import Frontiers
from kareus.profile.instructions import profile_instructions
from kareus.profile.measure import memory_profiler
from kareus.profile.programs import Execution
from kareus.schedule.records import SearchSpace
from kareus.schedule.space import search_space
from kareus.search.partition_search import SearchTables, search_partition
from kareus.testbed.config import TestbedKind
from kareus.testbed.protocol import open_testbed
from kareus.workload.config import Workload
from kareus.workload.slices import cut

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTables:
    """Data of all planning stages of one workload."""

    graphs: dict[Batch, BlockGraph]
    spaces: dict[str, SearchSpace]
    """Search spaces by partition."""
    searches: dict[str, SearchTables]
    """Tables of searches by partition."""
    microbatch: pl.DataFrame
    iteration: pl.DataFrame
    testbed: TestbedIdentity

    @property
    def frontiers(self) -> Frontiers:
        """What plans are selected from."""
        return Frontiers(iteration=self.iteration, microbatch=self.microbatch, testbed=self.testbed)


def plan_tables(workload: Workload, methods: Sequence[Method] = METHODS) -> PlannedTables:
    """Return the data of all planning stages of a workload, measured on the simulated testbed and kept nowhere.

    Libraries of linear algebra get one thread, as in jobs of the workflow: the matrices are small, and several threads
    wait for each other longer than they compute, many times as long where other processes are busy.

    Args:
        workload: what is planned.
        methods: those whose iteration frontiers are solved; what none of them needs is not measured.

    Raises:
        ConfigError: the workload's testbed is not simulated.
        RefusedWorkloadError: the model or the sequence does not divide over the parallelism.
    """
    if workload.testbed.kind is not TestbedKind.SIMULATED:
        raise ConfigError(
            f"testbed.kind={workload.testbed.kind}: must be simulated to plan without files; run `snakemake`, which "
            "keeps measurements of real GPUs."
        )
    with threadpool_limits(limits=1):
        return _tables(workload, methods)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep back what stages log meanwhile, such as a line for each round of a search."""
    stages = logging.getLogger("kareus")
    before = stages.level
    stages.setLevel(logging.WARNING)
    try:
        yield
    finally:
        stages.setLevel(before)


def _tables(workload: Workload, methods: Sequence[Method]) -> PlannedTables:
    """Run the stages one after the other."""
    check_options(workload.training)
    logger.info("1 of 4: measuring instructions")
    graphs, needed = operator_graphs(workload), most_needed(methods)
    run = {Batch.MICROBATCH: graphs[Batch.MICROBATCH]} if needed is Execution.SEQUENTIAL else graphs
    testbed = open_testbed(workload.testbed, workload.gpu, workload.protocol.predecessor_power_w, workload.seed)
    profiled = profile_instructions(cut(workload, "profile"), run, memory_profiler(testbed, workload.protocol))
    searched = partitions_of(graphs, cut(workload, "partition")) if needed is Execution.OVERLAP else ()
    partitions = {partition.name: partition for partition in searched}
    logger.info("2 of 4: searching %d partitions", len(partitions))
    spaces = {name: search_space(piece, workload.gpu, workload.space) for name, piece in partitions.items()}
    searches = {  # each has measurements of its own, as each of its jobs in the workflow has
        name: search_partition(
            cut(workload, "search"), piece, spaces[name], memory_profiler(testbed, workload.protocol)
        )
        for name, piece in partitions.items()
    }
    logger.info("3 of 4: composing microbatches")
    microbatch = compose_frontiers(
        cut(workload, "frontier"),
        run,
        profiled.components,
        profiled.instructions,
        {name: tables.candidates for name, tables in searches.items()} if needed is Execution.OVERLAP else None,
    )
    logger.info("4 of 4: solving the pipeline by %d methods", len(methods))
    iteration, _ = solve_iteration(cut(workload, "pipeline"), microbatch, methods)
    return PlannedTables(
        graphs=graphs,
        spaces=spaces,
        searches=searches,
        microbatch=microbatch,
        iteration=iteration,
        testbed=testbed.identity,
    )
