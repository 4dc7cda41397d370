"""Searching a partition by one call, over measurements in memory."""

from helpers.builders import a100, graphs, protocol, search, simulated, space

from kareus.graph.interleave import partition_of
from kareus.graph.records import Batch
from kareus.profile.measure import memory_profiler
from kareus.schedule.space import search_space
from kareus.search.config import SearchSlice
from kareus.search.partition_search import search_partition
from kareus.testbed.protocol import open_testbed

MLP = graphs()[Batch.NANOBATCH].forward[1]
PARTITION = partition_of(MLP, MLP.collective)
SPACE = search_space(PARTITION, a100(), space())


def test_candidates_are_schedules_of_the_search_space():
    config = SearchSlice(gpu=a100(), testbed=simulated(), protocol=protocol(), search=search("random"), seed=0)
    profiler = memory_profiler(open_testbed(simulated(), a100(), protocol().predecessor_power_w, 0), protocol())
    tables = search_partition(config, PARTITION, SPACE, profiler)
    for row in tables.candidates.iter_rows(named=True):
        schedule = SPACE[row["candidate"]]
        assert (row["frequency_mhz"], row["sm_count"], row["launch"]) == (
            schedule.frequency_mhz,
            schedule.sm_count,
            schedule.launch,
        )
    assert tables.rounds["measured"].max() == len(tables.candidates)
    assert len(tables.proposals) >= len(tables.rounds)
