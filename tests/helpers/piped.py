"""Two ranks of a pipeline of PyTorch on CPUs, each with a made-up GPU."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from helpers.fake_device import FakeDevice
from kareus.adapters import driver as driver_module
from kareus.adapters.recorder import table_path
from kareus.adapters.tables import MICROBATCHES
from kareus.artifacts.tables import read_table
from kareus.plans.document import Plan

WIDTH, STAGES, MICROBATCHES_EACH = 8, 2, 4


def own_gpu(folder: Path, rank: int) -> FakeDevice:
    """The GPU of a rank, which the driver of this process takes for that of its CPU; claims are below `folder`."""
    home = folder / f"gpu-{rank}"
    home.mkdir(parents=True)
    gpu = FakeDevice(home, uuid=f"GPU-{rank}")
    driver_module.gpu_of = lambda device: gpu  # type: ignore[assignment]
    return gpu


def chunk_of(index: int) -> nn.Module:
    """One stage in PyTorch's numbers, with weights of its own that are the same in every call."""
    torch.manual_seed(index)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def stages_of_rank(rank: int, chunks: int) -> list[PipelineStage]:
    """Stages of a rank, dealt out in turns."""
    numbers = [chunk * STAGES + rank for chunk in range(chunks)]
    return [PipelineStage(chunk_of(n), n, STAGES * chunks, torch.device("cpu")) for n in numbers]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def trained(schedule: Any, stages: list[PipelineStage], rank: int, iterations: int = 3) -> list[Tensor]:
    """Losses of each iteration on the last rank, then the weights of the stages."""
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.submod.parameters()], lr=0.1)
    found = []
    for iteration in range(iterations):
        torch.manual_seed(100 + iteration)
        batch, target = torch.randn(2, 2 * MICROBATCHES_EACH, WIDTH)
        losses: list[Tensor] = []
        optimizer.zero_grad()
        schedule.step(*((batch,) if rank == 0 else ()), target=target if rank == STAGES - 1 else None, losses=losses)
        optimizer.step()
        found += [value.detach().clone() for value in losses]
    return found + [p.detach().clone() for stage in stages for p in stage.submod.parameters()]


def check_followed(plan: Plan, rank: int, gpu: FakeDevice, output: Path, iterations: int = 3) -> None:
    """The tables have the plan's instructions in its order with its clocks, and the GPU has none left."""
    rows = read_table(table_path(output, MICROBATCHES, rank), MICROBATCHES)
    planned = [(k.chunk, k.microbatch, str(k.direction), i.frequency_mhz) for k, i in plan.stages[rank].keyed]
    assert rows.select("chunk", "microbatch", "direction", "frequency_mhz").rows() == planned * iterations
    asked = [f"lock {mhz}" for *_, mhz in planned * iterations]
    calls = gpu.calls()
    assert calls[-1] == "reset"
    assert is_subsequence(calls[:-1], asked)
    assert not gpu.locked.exists()


def is_subsequence(short: list[str], whole: list[str]) -> bool:
    """Requests that a later one overtook are not set; what is set is in order."""
    rest = iter(whole)
    return bool(short) and all(item in rest for item in short)
