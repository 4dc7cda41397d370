"""Profiling by one call: over memory as over the durable store, with a budget that is kept to."""

import dataclasses

import polars as pl
import pytest
from helpers.builders import CONFIG, a100, graphs

from kareus.gpu_model.gpu import FrequencyRange
from kareus.graph.records import TRACED
from kareus.partition.extract import operator_graphs
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


def test_an_embedding_alone_bends_no_curve_of_blocks():
    """Clocks that the power limit keeps a GPU from cost alike, whatever a chunk without blocks does at them."""
    layout = ["parallelism.tp=8", "parallelism.cp=2", "parallelism.dp=1", "parallelism.pp=4"]
    chunks = ["pipeline=interleaved", "pipeline.chunks=8", "parallelism.layers_per_stage=[7,8,8,7]"]
    model = ["model=llama3.1-405b", "model.num_layers=30", "sequence_length=8192", "microbatch_size=1"]
    job = [*model, "gpu=h100-sxm5-80gb", "software=megatron-core", *layout, *chunks, "num_microbatches=8"]
    (workload,) = resolve_accepted(job, CONFIG).values()
    config = cut(workload, "profile")
    exact = dataclasses.replace(config.testbed, time_noise=0.0, power_noise=0.0)
    limited = FrequencyRange(minimum_mhz=900, maximum_mhz=1980, stride_mhz=60)
    gpu = dataclasses.replace(config.gpu, search_frequencies=limited)
    config = dataclasses.replace(config, testbed=exact, gpu=gpu)
    profiler = memory_profiler(open_bench(config).testbed, config.protocol)
    forwards = profile_instructions(config, operator_graphs(workload), profiler).instructions.filter(
        pl.col("is_power_limited"), direction="forward", execution="sequential", stage=1, chunk=1
    )
    assert len(forwards) > 4
    assert forwards["energy_j"].to_list() == pytest.approx([forwards["energy_j"].mean()] * len(forwards), rel=5e-3)
