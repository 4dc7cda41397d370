"""SM counts for Megatron-LM: read by its own reader, the best of all constants, with losses that can be recomputed."""

import dataclasses
import importlib
import warnings
from types import SimpleNamespace

import pytest
import yaml
from helpers.default_workload import NAME
from helpers.planned import planned_folder

from kareus.artifacts.layout import WorkloadFolder
from kareus.cli import main
from kareus.errors import ConfigError
from kareus.export.constant_counts import constant_counts
from kareus.export.megatron import communicator_config, is_communicator_config, overlap_config
from kareus.gpu_model.thermal import sustained_j
from kareus.partition.read import read_graphs
from kareus.plans.check_stage import read_checked_plan
from kareus.plans.simulated_run import instruction_costs
from kareus.profile.programs import Execution
from kareus.schedule.config import sm_allocations


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return WorkloadFolder(planned_folder(tmp_path_factory.mktemp("results")))


@pytest.fixture(scope="module")
def planned(folder):
    return read_checked_plan(folder.plan("fastest", "kareus"), None)


@pytest.fixture(scope="module")
def counts(folder, planned):
    return constant_counts(*planned, read_graphs(folder.segments))


def test_the_counts_are_those_with_the_least_product(folder, planned, counts):
    plan, workload = planned
    graphs = read_graphs(folder.segments)
    (best,) = counts.beside.values()
    for sm_count in sm_allocations(workload.parallelism.tp, workload.space):
        stages = tuple(
            dataclasses.replace(s, instructions=tuple(_at(i, sm_count) for i in s.instructions)) for s in plan.stages
        )
        other = constant_counts(dataclasses.replace(plan, stages=stages), workload, graphs)
        assert other.beside == counts.beside
        assert other.planned.product >= counts.constant.product * (1 - 1e-12)
        if sm_count == best:
            assert other.planned == pytest.approx(counts.constant)


def _at(instruction, sm_count):
    partitions = tuple(dataclasses.replace(c, sm_count=sm_count) for c in instruction.partitions)
    return dataclasses.replace(instruction, partitions=partitions)


def test_the_plan_costs_about_what_it_predicts(planned, counts):
    plan, _ = planned
    assert counts.planned.time_s == pytest.approx(plan.prediction.time_s, rel=0.03)
    assert counts.planned.energy_j == pytest.approx(plan.prediction.energy_j, rel=0.01)


def test_whole_instructions_take_what_the_model_says(folder, planned, counts):
    """On each stage the whole instructions are a bound of the iteration time, and all of them its energy."""
    plan, workload = planned
    keyed = [(k, dataclasses.replace(i, execution=Execution.SEQUENTIAL, partitions=())) for k, i in plan.keyed]
    powers = instruction_costs(keyed, workload, read_graphs(folder.segments), {})
    costs = [(s, sustained_j(workload.gpu, s * power_w, s) / s) for s, power_w in powers]
    for stage in range(workload.parallelism.pp):
        busy_s = sum(time_s for (key, _), (time_s, _) in zip(keyed, costs, strict=True) if key.stage == stage)
        assert busy_s <= counts.whole.time_s
    busy_j = workload.parallelism.gpus_per_stage * sum(time_s * power_w for time_s, power_w in costs)
    assert busy_j <= counts.whole.energy_j


def saving(counts):
    """The counts, as if the best one for whole instructions saved a percent over NCCL's own."""
    whole = counts.whole
    return dataclasses.replace(counts, whole_set=whole._replace(time_s=0.99 * whole.time_s))


def test_a_count_that_changes_nothing_is_not_written(planned, counts):
    """The best count of this plan is NCCL's own: a header that says +0.00 % would be of no use."""
    plan, _ = planned
    assert counts.whole_set == counts.whole
    text = communicator_config(plan, counts)
    assert yaml.safe_load(text) == {}
    assert "+0.00 % time" not in text
    assert "kareus select fastest ... --method sequential+perseus" in text
    assert "+0.00 % time" not in communicator_config(plan, saving(counts))


def test_megatron_reads_the_limits_of_its_groups(planned, counts, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that Transformer Engine and Apex are missing
        parallel_state = importlib.import_module("megatron.core.parallel_state")

    class Options(SimpleNamespace):  # as `ProcessGroupNCCL.Options`, which PyTorch for CPUs lacks
        def __init__(self, **options):
            super().__init__(config=SimpleNamespace(), **options)

    nccl = SimpleNamespace(Options=Options)
    monkeypatch.setattr("torch.distributed.ProcessGroupNCCL", nccl, raising=False)
    config = yaml.safe_load(communicator_config(planned[0], saving(counts)))
    count = counts.alone
    options = parallel_state.get_nccl_options("tp", config).config
    assert (options.min_ctas, options.max_ctas) == (count, count)
    assert count % options.cga_cluster_size == 0
    assert parallel_state.get_nccl_options("dp", config) is None


def test_every_product_that_overlaps_has_its_settings(planned, counts):
    plan, workload = planned
    shared = dataclasses.replace(workload.parallelism, sequence_parallel=True)
    products = yaml.safe_load(overlap_config(plan, dataclasses.replace(workload, parallelism=shared), counts))
    (count,) = counts.beside.values()
    assert len(products) == 10  # fprop and dgrad of four, wgrad of the two after a gather
    assert {p["num_sm"] for p in products.values() if p["method"] != "ring_exchange"} == {count}
    assert {p["num_splits"] for p in products.values() if p["method"] == "ring_exchange"} == {workload.parallelism.tp}
    assert overlap_config(plan, workload, counts) is None  # Transformer Engine needs sequence parallelism


def test_no_file_is_worse_for_whole_instructions_than_none(folder, planned, counts):
    """The count beside computation would be: alone, a collective takes longer on few SMs."""
    plan, workload = planned
    whole = {}
    for sm_count in (counts.alone, *counts.beside.values()):
        testbed = dataclasses.replace(workload.testbed, default_collective_sm_count=sm_count)
        changed = dataclasses.replace(workload, testbed=testbed)
        whole[sm_count] = constant_counts(plan, changed, read_graphs(folder.segments)).whole
    assert whole[counts.alone] == counts.whole_set
    assert counts.whole_set.time_s <= counts.whole.time_s
    assert counts.whole_set.energy_j <= counts.whole.energy_j
    assert whole[next(iter(counts.beside.values()))].time_s > counts.whole.time_s


def test_a_file_sets_nothing_where_each_count_would_lose(planned, counts):
    without = dataclasses.replace(counts, alone=None, whole_set=counts.whole)
    text = communicator_config(planned[0], without)
    assert yaml.safe_load(text) == {}
    assert "# Carries: nothing, since each SM count takes more time or energy than NCCL's own" in text


def test_the_header_says_what_is_lost(planned, counts):
    text = communicator_config(planned[0], counts)
    percent = 100 * (counts.constant.time_s / counts.planned.time_s - 1)
    (count,) = counts.beside.values()
    lost = f"{counts.constant.time_s:.4f} s ({percent:+.2f} %)"
    assert f"with constant counts (tp {count} SMs), the rest as planned: {lost}" in text
    assert "Carries:" in text
    assert "Leaves out: clocks" in text
    assert "simulated testbed" in text


def test_no_label_of_a_testbed_gets_out_of_the_header(planned, counts):
    plan, _ = planned
    testbed = dataclasses.replace(plan.testbed, gpu="x\ndp: {max_ctas: 1}\u2028cp: 1")
    hostile = dataclasses.replace(plan, testbed=testbed)
    assert set(yaml.safe_load(communicator_config(hostile, saving(counts)))) == {"tp"}


def test_the_page_says_what_the_default_workload_loses(default_workload):
    """docs/howto/points.md: 9 SMs lose less than 1 %, whole instructions over 15 %; NCCL's 24 SMs are best."""
    folder = WorkloadFolder(default_workload / "results" / NAME)
    found = constant_counts(*read_checked_plan(folder.plan("fastest", "kareus"), None), read_graphs(folder.segments))
    for lost in zip(found.constant, found.planned, strict=True):
        assert lost[0] < 1.01 * lost[1]
    assert found.whole.time_s > 1.15 * found.planned.time_s
    assert (found.beside, found.alone) == ({"tp": 6}, 24)
    assert found.whole_set == found.whole


def test_a_plan_without_overlap_is_refused(folder, planned):
    plan, workload = planned
    stages = tuple(
        dataclasses.replace(s, instructions=tuple(dataclasses.replace(i, partitions=()) for i in s.instructions))
        for s in plan.stages
    )
    with pytest.raises(ConfigError, match="no instruction overlaps"):
        constant_counts(dataclasses.replace(plan, stages=stages), workload, read_graphs(folder.segments))


def test_export_writes_both_files_and_only_over_its_own(folder, tmp_path, capsys):
    plan, output = folder.plan("fastest", "kareus"), tmp_path / "mine.yaml"
    assert main(["export", str(plan), "--format", "megatron", "--output", str(output)]) == 0
    assert is_communicator_config(output)
    second = tmp_path / "mine.tp-overlap.yaml"
    second.write_text("my own")
    assert main(["export", str(plan), "--format", "megatron", "--output", str(output)]) == 2
    assert "mine.tp-overlap.yaml: there is a file" in capsys.readouterr().err
