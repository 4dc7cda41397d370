"""All planning stages in one process: from a workload to its frontiers, without files.

Each stage is the function that its command calls, so that the data are those which the workflow writes.
"""

from threadpoolctl import threadpool_limits

from kareus.errors import ConfigError
from kareus.frontier.frontiers import compose_frontiers
from kareus.graph.records import Batch, BlockGraph
from kareus.partition.extract import extract, partitions_of
from kareus.pipeline.frontiers import solve_iteration
from kareus.plans.frontiers import Frontiers
from kareus.profile.instructions import profile_instructions
from kareus.profile.measure import memory_profiler
from kareus.schedule.space import search_space
from kareus.search.partition_search import SearchTables, search_partition
from kareus.testbed.config import TestbedKind
from kareus.testbed.factory import open_testbed
from kareus.testbed.protocol import Testbed
from kareus.workload.config import Workload
from kareus.workload.slices import cut


def plan_frontiers(workload: Workload) -> Frontiers:
    """Return the frontiers of a workload, measured on the simulated testbed and kept nowhere.

    Libraries of linear algebra get one thread, as in jobs of the workflow: the matrices are small, and several threads
    wait for each other longer than they compute, many times as long where other processes are busy.

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
        return _frontiers(workload)


def _frontiers(workload: Workload) -> Frontiers:
    """Run the stages one after the other."""
    graphs = extract(workload.model, workload.parallelism, workload.microbatch_size, workload.sequence_length)
    testbed = open_testbed(workload.testbed, workload.gpu, workload.protocol.predecessor_power_w, workload.seed)
    profiled = profile_instructions(cut(workload, "profile"), graphs, memory_profiler(testbed, workload.protocol))
    searches = _searches(workload, graphs, testbed)
    microbatch = compose_frontiers(
        cut(workload, "frontier"),
        graphs,
        profiled.components,
        profiled.instructions,
        {name: tables.candidates for name, tables in searches.items()},
    )
    iteration, _ = solve_iteration(cut(workload, "pipeline"), microbatch)
    return Frontiers(iteration=iteration, microbatch=microbatch, testbed=testbed.identity)


def _searches(workload: Workload, graphs: dict[Batch, BlockGraph], testbed: Testbed) -> dict[str, SearchTables]:
    """Search every partition; each has measurements of its own, as each of its jobs in the workflow has."""
    config = cut(workload, "search")
    return {
        partition.name: search_partition(
            config,
            partition,
            search_space(partition, workload.gpu, workload.space),
            memory_profiler(testbed, workload.protocol),
        )
        for partition in partitions_of(graphs, cut(workload, "partition"))
    }
