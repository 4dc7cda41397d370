"""The record of one GPU, rehearsed: the same code with a CPU in the GPU's place, and a device that is made up."""

import dataclasses
import os
import sys
from pathlib import Path

import pytest
import torch
from helpers import cuda_worker
from helpers.builders import a100, all_reduce, gemm, memory, protocol, small_model
from helpers.fake_device import FakeDevice

import gpu_record
from kareus.device.claims import FOLDER_VARIABLE
from kareus.gpu_model.gpu import FrequencyRange
from kareus.graph.records import Direction, Partition
from kareus.testbed.config import ClockPolicy, CudaCollectives, CudaConfig, GpuPool
from kareus.testbed.cuda.testbed import CudaTestbed
from onegpu import numerics
from onegpu.costs import QUEUES, Costs, by_sm_count
from onegpu.instruments import instruments, machine
from onegpu.optimizer import optimizer_step
from onegpu.table import Table

CPU = torch.device("cpu")
PARTITION = Partition(
    name="forward-mlp-allreduce",
    direction=Direction.FORWARD,
    operators=(dataclasses.replace(memory("activation", 64), bytes_written=128), gemm("linear", 16, 8, 32)),
    collective=all_reduce(64, 2),
)


@pytest.fixture
def device(tmp_path: Path) -> FakeDevice:
    (tmp_path / "0").mkdir()
    return FakeDevice(tmp_path / "0", uuid="GPU-0")


@pytest.fixture
def costs(device: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Costs:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    cuda_worker.fork_them(monkeypatch)
    config = CudaConfig(collectives=CudaCollectives.LOOPBACK, clocks=ClockPolicy.DEFAULT, pool=GpuPool.SAME)
    gpu = a100(search_frequencies=FrequencyRange(minimum_mhz=1410, maximum_mhz=1410, stride_mhz=1))
    command = (sys.executable, cuda_worker.__file__, str(tmp_path))
    quick = protocol(window_s=0.05, cooldown_s=0.01, warmup_s=0.01, settle_s=0.0)
    return Costs(lambda: CudaTestbed(config, gpu, [device], command), 1410, quick)


def test_a_record_has_all_sections_and_fails_with_exit_code_1(tmp_path: Path) -> None:
    good = Table("Good", "Says.", ("case", "departure", "holds"), [("a", 0.012345, "yes")])
    bad = good._replace(title="Bad", rows=[("b", float("nan"), "NO")])
    path = tmp_path / "record.md"
    assert gpu_record.write(path, iter([good])) == 0
    assert gpu_record.write(path, iter([good, bad])) == 1
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# One GPU, 20")
    assert lines[lines.index("## Good") : lines.index("## Bad")] == [
        *("## Good", "", "Says.", ""),
        *("| case | departure | holds |", "| --- | --- | --- |", "| a | 0.01235 | yes |", ""),
    ]


def test_a_departure_that_is_large_or_no_number_does_not_hold() -> None:
    assert [numerics._judged(("case", d, 0.03))[-1] for d in (0.01, 0.05, float("nan"))] == ["yes", "NO", "NO"]


def test_a_tensor_that_is_no_number_is_seen_wherever_it_stands() -> None:
    right, broken = torch.ones(2), torch.tensor([1.0, float("nan")])
    (found,) = numerics._departures([[right, broken, right]], [[right, right, right]])
    assert numerics._judged(("case", found, 0.03))[-1] == "NO"


def test_a_partition_is_measured_for_all_sm_counts_and_queues(costs: Costs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(QUEUES, "4")
    table = by_sm_count(costs, PARTITION, (3, 6), (8,))
    assert [row[:2] for row in table.rows] == [(8, 3), (8, 6)]
    for row in table.rows:
        named = dict(zip(table.columns, row, strict=True))
        assert named["one after the other ms"] == pytest.approx(named["computation ms"] + named["collective ms"])
        assert named["together ms"] > 0
        assert named["mean clock MHz"] == 1410
    assert os.environ[QUEUES] == "4"


def test_the_machine_and_its_instruments_are_named(device: FakeDevice) -> None:
    named = dict(machine(device, CPU).rows) | dict(instruments(device, 0.05).rows)
    assert named["UUID by the driver"] == "GPU-0"
    assert named["power of the idle GPU, W"] == pytest.approx(100, rel=0.5)  # the fake draws 100 W
    assert named["one call of energy_j, ms"] < 100


def test_numbers_hold_on_a_cpu_and_a_wrong_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = (numerics.Attending("chunk, GQA", 16, 32, 4, 2, 16),)
    model = small_model(name="tiny", vocab_size=40, num_key_value_heads=4)
    found = [numerics.attention(CPU, cases), numerics.execution(model, gpu_record.SMALL, 16, CPU)]
    assert [row[-1] for table in found for row in table.rows] == ["yes"] * 4
    right = numerics._attend
    monkeypatch.setattr(
        numerics,
        "_attend",
        lambda q, *other: right(q, *other)._replace(
            output=right(q, *other).output * (1.2 if q.dtype.itemsize == 2 else 1)
        ),
    )
    assert numerics.attention(CPU, cases).rows[0][-1] == "NO"


def test_real_partitions_can_be_named_without_a_gpu() -> None:
    workloads = [
        gpu_record.compose(["model=llama3.2-3b", f"parallelism={d}"], gpu_record.CONFIG)[0].workload
        for d in gpu_record.DEGREES
    ]
    names = [{p.name for p in gpu_record.partitions_of(w)} for w in workloads]
    assert "forward-mlp-allreduce" in names[0]
    assert any("allgather" in name for name in names[1])
    assert gpu_record.costs_on([FakeDevice(Path())], workloads[0], 1.0).clock_mhz == 1410


def test_partitions_of_two_gpus_can_be_named_without_them() -> None:
    workload = gpu_record.compose(["model=llama3.2-3b", *gpu_record.OF_PAIR], gpu_record.CONFIG)[0].workload
    groups = {p.collective.group_size for p in gpu_record.partitions_of(workload)}
    assert groups == {gpu_record.PAIR}
    assert list(gpu_record.tables_of_two(1.0)) == [] or gpu_record.torch.cuda.device_count() >= gpu_record.PAIR


def test_every_part_of_the_optimizer_step_is_timed() -> None:
    table = optimizer_step(small_model(name="tiny", vocab_size=40), CPU)
    assert [row[0] for row in table.rows] == ["norm", "clip", "adamw", "publish", "zero"]
    bytes_of = {row[0]: row[1] for row in table.rows}
    assert bytes_of["adamw"] == pytest.approx(7 * bytes_of["norm"])  # reads four numbers and writes three
    assert all(row[2] > 0 and row[3] > 0 for row in table.rows)
