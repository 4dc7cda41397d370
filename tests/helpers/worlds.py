"""Several ranks on this machine over gloo, and the tiny models that they run."""

import contextlib
import datetime
import gc
import importlib
import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st

from helpers.builders import small_model
from kareus.cli.fork_server import other_threads
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch, BlockGraph
from kareus.launch.mesh import coordinate_of
from kareus.launch.process_groups import ProcessGroups, make_process_groups
from kareus.model.communicators.choice import Library
from kareus.model.config import ActivationKind, Model, NormKind, PositionKind
from kareus.model.parallelism import Parallelism, Sharding
from kareus.partition.detect import detect_partitions
from kareus.partition.extract import extract
from kareus.processes import die_with_parent
from kareus.profile.programs import Execution
from kareus.runtime.schedules import MicrobatchSchedule, Schedule
from kareus.schedule.records import Choice

LLAMA = small_model(name="tiny-llama", vocab_size=40)
QWEN = small_model(name="tiny-qwen", qk_norm=True, qkv_bias=True, num_key_value_heads=4)
GPT = small_model(
    name="tiny-gpt",
    intermediate_size=128,
    num_key_value_heads=4,
    head_dim=8,
    norm=NormKind.LAYERNORM,
    activation=ActivationKind.GELU_TANH,
    positions=PositionKind.LEARNED,
    max_positions=64,
    biases=True,
)
MPT = replace(
    GPT, name="tiny-mpt", activation=ActivationKind.GELU, positions=PositionKind.ALIBI, max_positions=None, biases=False
)
NEMOTRON = replace(
    MPT,
    name="tiny-nemotron",
    activation=ActivationKind.SQUARED_RELU,
    positions=PositionKind.ROPE,
    num_key_value_heads=2,
)
LAYERS, TOKENS = 2, 16
PRELOADED = [
    "torch.distributed.pipelining.schedules",
    "hypothesis",
    "kareus.runtime.actions",
    "kareus.training.trainer",
]
"""What ranks of nearly all tests import."""


def degrees(tp: int = 1, cp: int = 1, dp: int = 1, *, sequence_parallel: bool = False) -> Parallelism:
    return Parallelism(
        dp=dp,
        pp=1,
        tp=tp,
        cp=cp,
        layers_per_stage=(LAYERS,),
        sharding=Sharding.NONE,
        sequence_parallel=sequence_parallel,
    )


def graph_of(model: Model, parallelism: Parallelism) -> BlockGraph:
    return extract(model, parallelism, 2, TOKENS)[Batch.NANOBATCH]


def schedules(
    graph: BlockGraph, *, recomputation: Recomputation, split_backward: bool = False
) -> st.SearchStrategy[MicrobatchSchedule]:
    """Any legal plan of one microbatch: any execution, any launch operator and SM count for every partition."""
    partitions = detect_partitions(graph, recomputation=recomputation, split_backward=split_backward)
    choices = st.tuples(
        *(
            st.builds(
                Choice,
                partition=st.just(partition.name),
                sm_count=st.integers(1, 30),
                launch=st.sampled_from([operator.name for operator in partition.operators]),
            )
            for partition in partitions
        )
    )
    one = st.just(Schedule()) | st.just(Schedule(Execution.NANOBATCHING))
    if partitions:
        one |= st.builds(Schedule, st.just(Execution.OVERLAP), choices)
    return st.builds(MicrobatchSchedule, one, one)


def spawn(
    world_size: int, check: Callable[..., None], folder: Path, *arguments: Any, importer: Executor | None = None
) -> None:
    """Run `check(rank, *arguments)` on every rank of a world of gloo."""
    store = folder / "store"
    start_ranks(_run, (check, world_size, str(store), arguments), world_size, importer)


def start_ranks(
    run: Callable[..., None], arguments: tuple[Any, ...], ranks: int, importer: Executor | None = None
) -> None:
    """Run `run(rank, *arguments)` in as many processes, which are forked from one that has imported PyTorch.

    Importing it takes a process seconds. That one has no threads and nothing of a test; it may be an `importing` one.
    """
    if importer is not None:
        importer.submit(_start_forked, run, arguments, ranks, "fork").result()
        return
    multiprocessing.set_forkserver_preload(PRELOADED)
    _start_forked(run, arguments, ranks, "forkserver")


@contextlib.contextmanager
def importing(*modules: str) -> Iterator[Executor]:
    """A process that has imported `modules` as well, each of which takes seconds, and that forks others."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, context, initializer=_import, initargs=modules) as importer:
        yield importer


def exit_code(importer: Executor, run: Callable[..., None], *arguments: Any) -> int | None:
    """Exit code of a process that runs `run(*arguments)`, or its signal, negative; None if it does not end."""
    code: int | None = importer.submit(_exit_code, run, arguments).result()
    return code


def fork(run: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process that runs `run(*arguments)`, forked from the same one."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    process = multiprocessing.get_context("forkserver").Process(target=run, args=arguments)
    process.start()
    return process


def gloo_groups(rank: int, parallelism: Parallelism) -> ProcessGroups:
    """The process groups of `rank`; every rank calls this."""
    coordinate = coordinate_of(rank, parallelism, dist.get_world_size())
    return make_process_groups(coordinate, parallelism, Library.GLOO, scratch_bytes=0, tie_embeddings=False)


def randomise(module: torch.nn.Module, seed: int = 0) -> None:
    """Give every weight, norms and biases too, values that show a mistake; the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        spread = 0.3 if parameter.dim() > 1 else 1.0
        parameter.data = torch.randn(parameter.shape, generator=generator) * spread


def gradients_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Gradients of all weights, taken out: the buffers are zero afterwards."""
    taken = {name: b.clone() for name, b in module.named_buffers() if name.endswith("_gradient")}
    for name in taken:
        module.get_buffer(name).zero_()
    return taken


def departure(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest max|difference| / max|expected| over the tensors, on any rank, so that all ranks fail together.

    Zero where both are nothing but zeros, as gradients of positions beyond the sequence. Infinite where one of them is
    not a number, which comparisons would pass over.
    """
    assert found.keys() == expected.keys()
    differences = {n: (found[n] - e).abs().max() for n, e in expected.items()}
    departures = [float(d / expected[n].abs().max()) if d != 0 else 0.0 for n, d in differences.items()]
    over_ranks = torch.tensor(departures, dtype=torch.float64).nan_to_num(nan=torch.inf).max()
    if dist.is_initialized():
        dist.all_reduce(over_ranks, op=dist.ReduceOp.MAX)
    return float(over_ranks)


def _import(*modules: str) -> None:
    die_with_parent()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of trainers, about themselves
        for module in modules:
            importlib.import_module(module)
    assert not other_threads(), "a fork would lack them"


def _start_forked(run: Callable[..., None], arguments: tuple[Any, ...], ranks: int, method: str) -> None:
    torch.multiprocessing.start_processes(run, arguments, nprocs=ranks, start_method=method)


def _exit_code(run: Callable[..., None], arguments: tuple[Any, ...]) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=run, args=arguments)
    process.start()
    process.join(timeout=200)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None
    return process.exitcode


def _run(rank: int, check: Callable[..., None], world_size: int, store: str, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # what is imported: who looks for tensors (`activations`) need not look among a million objects
    timeout = datetime.timedelta(seconds=100)  # ranks that disagree end before the test is stopped
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timeout)
    try:
        check(rank, *arguments)
    finally:
        dist.destroy_process_group()
