"""Profiling by one call: over memory as over the durable store, with a budget that is kept to."""

import dataclasses

import pytest
from helpers.builders import CONFIG, a100, graphs

from kareus.gpu_model.gpu import FrequencyRange
from kareus.graph.records import TRACED
from kareus.profile.bench import open_bench
from kareus.profile.instructions import profile_instructions
from kareus.profile.measure import memory_profiler
from kareus.profile.programs import Execution
from kareus.progress.journal import Journal
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import cut

FEW_CLOCKS = FrequencyRange(minimum_mhz=1350, maximum_mhz=1410, stride_mhz=30)


@pytest.fixture(scope="module")
def config():
    (workload,) = resolve_accepted([], CONFIG).values()
    return dataclasses.replace(cut(workload, "profile"), gpu=a100(search_frequencies=FEW_CLOCKS))


def test_memory_and_store_give_the_same_tables(config, tmp_path):
    bench = open_bench(config)
    in_memory = profile_instructions(config, graphs(), memory_profiler(bench.testbed, config.protocol))
    with bench.profiler(tmp_path, "instructions", graphs()) as profiler:
        durable = profile_instructions(config, graphs(), profiler)
    assert in_memory.components.equals(durable.components)
    assert in_memory.instructions.equals(durable.instructions)


def test_every_instruction_is_profiled_at_every_clock(config):
    testbed = open_bench(config).testbed
    found = profile_instructions(config, graphs(), memory_profiler(testbed, config.protocol)).instructions
    executions = (Execution.SEQUENTIAL, Execution.NANOBATCHING)
    stages = len(config.parallelism.split)
    assert set(found["frequency_mhz"]) == set(FEW_CLOCKS.clocks_mhz)
    assert len(found) == stages * len(TRACED) * len(executions) * len(FEW_CLOCKS.clocks_mhz)


def test_the_budget_of_the_journal_is_what_is_measured(config):
    journals = []

    def open_journal(standing):
        journals.append(Journal(None, standing))
        return journals[0]

    profiler = memory_profiler(open_bench(config).testbed, config.protocol)
    profile_instructions(config, graphs(), profiler, open_journal)
    (journal,) = journals
    assert profiler.tally.startswith(f"{journal.standing.budget} measured, ")
    assert journal.standing.measured >= journal.standing.budget > journal.standing.space
