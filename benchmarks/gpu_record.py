"""A record of what Kareus' code for GPUs does on the GPU of this machine, as Markdown.

    python benchmarks/gpu_record.py --output record.md     # a quarter of an hour; sets no clock and no power limit

Names the machine, reads its instruments, compares what its kernels compute with fp32 on the CPU, and fused operators
with eager ones, times the optimizer step, and measures partitions of Llama 3.2 3B (TP8, and CP2 TP4), as the engine
runs their operators, beside loopback collectives at the driver's own clock; where there are two GPUs, partitions of TP2
beside NCCL's, too. Ends with 1 if numbers depart.
"""

import argparse
import dataclasses
import datetime
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from kareus import __version__
from kareus.device.cuda import device_of_cuda, prepare_cuda
from kareus.device.protocol import Device
from kareus.gpu_model.gpu import FrequencyRange
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch, Operator, Partition
from kareus.model.parallelism import Parallelism, Sharding
from kareus.partition.detect import detect_partitions
from kareus.partition.extract import extract
from kareus.testbed.config import ClockPolicy, CudaCollectives, CudaConfig, GpuPool
from kareus.testbed.cuda.testbed import CudaTestbed
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from onegpu.costs import Costs, by_sm_count
from onegpu.fusion import fusion
from onegpu.instruments import instruments, machine
from onegpu.numerics import attention, execution
from onegpu.optimizer import optimizer_step
from onegpu.table import Table

CONFIG = Path(__file__).parent.parent / "config"
DEGREES = ("tp8", "cp2tp4")
SM_COUNTS = (3, 6, 12, 20, 30)
QUEUES = (1, 8)
"""Of CUDA: what Kareus asks for, and CUDA's default."""
WATCHED_S = 3.0
PAIR = 2
OF_PAIR = ("parallelism.pp=1", "parallelism.cp=1", "parallelism.tp=2")
SMALL = Parallelism(dp=1, pp=1, tp=2, cp=2, layers_per_stage=(2,), sharding=Sharding.NONE, sequence_parallel=False)


def main() -> int:
    """Measure and write; 1 if numbers depart."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    parser.add_argument("--window", type=float, default=1.0, help="seconds of each measurement (default: 1)")
    arguments = parser.parse_args()
    prepare_cuda()
    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} sees no GPU; install torch for the CUDA of this machine's driver.")
    place = torch.device("cuda", 0)
    torch.cuda.set_device(place)
    device = device_of_cuda(str(torch.cuda.get_device_properties(place).uuid))
    workloads = [compose(["model=llama3.2-3b", f"parallelism={d}"], CONFIG)[0].workload for d in DEGREES]
    costs = costs_on([device], workloads[0], arguments.window)
    sections = itertools.chain(tables(device, place, workloads, costs), tables_of_two(arguments.window))
    return write(arguments.output, sections)


def tables(device: Device, place: torch.device, workloads: list[Workload], costs: Costs) -> Iterator[Table]:
    """All sections of one GPU, one after the other."""
    yield machine(device, place)
    yield instruments(device, WATCHED_S)
    yield attention(place)
    yield fusion(place, [operator for workload in workloads for operator in operators_of(workload)])
    shrunk = dataclasses.replace(workloads[0].model, vocab_size=4096)
    yield execution(shrunk, SMALL, 512, place)
    yield optimizer_step(shrunk, place)
    for workload in workloads:
        for partition in partitions_of(workload):
            yield by_sm_count(costs, partition, SM_COUNTS, QUEUES)


def tables_of_two(window_s: float) -> Iterator[Table]:
    """Partitions of TP2 beside collectives of NCCL, where this machine shows two GPUs."""
    if torch.cuda.device_count() < PAIR:
        return
    devices = [device_of_cuda(str(torch.cuda.get_device_properties(n).uuid)) for n in range(PAIR)]
    workload = compose(["model=llama3.2-3b", *OF_PAIR], CONFIG)[0].workload
    costs = costs_on(devices, workload, window_s, CudaCollectives.NCCL)
    for partition in partitions_of(workload):
        table = by_sm_count(costs, partition, SM_COUNTS, QUEUES[:1])
        yield table._replace(title=f"{table.title}, {PAIR} GPUs over NCCL")


def operators_of(workload: Workload) -> list[Operator]:
    """All operators of a nanobatch's graph."""
    size, length = workload.microbatch_size, workload.sequence_length
    graph = extract(workload.model, workload.parallelism, size, length)[Batch.NANOBATCH]
    segments = [s for field in dataclasses.fields(graph) for s in getattr(graph, field.name)]
    return [operator for segment in segments for operator in segment.operators]


def partitions_of(workload: Workload) -> list[Partition]:
    """The partitions of a block's forward and backward."""
    size, length = workload.microbatch_size, workload.sequence_length
    graph = extract(workload.model, workload.parallelism, size, length)[Batch.NANOBATCH]
    return list(detect_partitions(graph, recomputation=Recomputation.NONE))


def costs_on(
    devices: Sequence[Device],
    workload: Workload,
    window_s: float,
    collectives: CudaCollectives = CudaCollectives.LOOPBACK,
) -> Costs:
    """Costs on these GPUs, whatever GPU the workload is for."""
    maximum_mhz = devices[0].supported_clocks_mhz()[-1]
    clocks = FrequencyRange(minimum_mhz=maximum_mhz, maximum_mhz=maximum_mhz, stride_mhz=1)
    gpu = dataclasses.replace(workload.gpu, maximum_clock_mhz=maximum_mhz, search_frequencies=clocks)
    config = CudaConfig(collectives=collectives, clocks=ClockPolicy.DEFAULT, pool=GpuPool.SAME)
    protocol = dataclasses.replace(workload.protocol, window_s=window_s, cooldown_s=0.5, warmup_s=0.5)
    return Costs(lambda: CudaTestbed(config, gpu, devices), maximum_mhz, protocol)


def write(path: Path, sections: Iterator[Table]) -> int:
    """Write sections as they come, so that a failure leaves those before it; 1 if something does not hold."""
    holds = True
    with path.open("w") as record:
        now = datetime.datetime.now(datetime.UTC).date()
        record.write(f"# One GPU, {now}\n\nBy Kareus {__version__}, `python benchmarks/gpu_record.py`.\n")
        for section in sections:
            record.write(f"\n{section}")
            record.flush()
            print(section)
            holds = holds and all(row[-1] != "NO" for row in section.rows)
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
