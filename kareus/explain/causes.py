"""Causes of a slow run: each thing that may have gone wrong alone, predicted as the run itself is.

A cause is a workload that differs in one thing: software that overlaps less, a slower host, kernels that are not fused,
a clock below the maximum. How much of the missing time it makes up says whether to look there.
"""

import functools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kareus.device.held_clock import CLOCK_STEP_MHZ
from kareus.errors import ConfigError
from kareus.gpu_model.coefficients import LaunchesAhead
from kareus.graph.number_formats import FORMATS, Precision
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Sharding
from kareus.pipeline.config import PipelineSchedule
from kareus.prediction.workload_prediction import Prediction, predict
from kareus.software.record import Reduction, TensorOverlap
from kareus.workload.config import Workload, run_by
from kareus.workload.resolve import checked_but_for_memory

FURTHER = 0.1
"""By what share of a logged number a cause must predict it worse than the run without it, to be doubted."""
LEAST_SHARE = 0.05
"""Share of the missing time below which a cause is not told."""
SLOWER = 2.0
"""Times that a host or a network is slower than it should be."""
POWER, ALLOCATED = "power_w_per_gpu", "allocated_gib"
SIGNS = {POWER: ("power of a GPU", "W"), ALLOCATED: ("allocated memory", "GiB")}
"""Numbers of logs that tell causes apart, with their words and units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that may have gone wrong."""

    what: str
    look_at: str
    """What tells whether it is so, and what to change."""
    time_s: float
    """Time of an iteration with it."""
    explained_percent: float
    """Share of the missing time that it makes up; more than 100 where it would cost more than is missing."""
    doubts: tuple[str, ...]
    """What the log says against it."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A cause, and the workload with it; None where the workload cannot have it."""

    what: str
    look_at: str
    changed: Callable[[Workload], Workload | None]


def causes_of(
    workload: Workload, expected: Prediction, achieved_s: float, logged: Mapping[str, float]
) -> tuple[Cause, ...]:
    """Return what would make an iteration slower than expected, what the log says nothing against first.

    Among these, what comes nearest to the time achieved is first.

    Args:
        workload: of the run.
        expected: its prediction.
        achieved_s: time of an iteration, more than expected.
        logged: other numbers of the log, as those of `LoggedRun`.
    """
    missing_s = achieved_s - expected.time_s
    usual = _signs(workload, expected)
    causes = [
        Cause(
            what=what,
            look_at=look_at,
            time_s=slow.time_s,
            explained_percent=100 * (slow.time_s - expected.time_s) / missing_s,
            doubts=tuple(_doubts(_signs(workload, slow), usual, logged)),
        )
        for what, look_at, slow in (*_suspected(workload, expected), *_slow_clock(workload, expected, achieved_s))
    ]
    considerable = [cause for cause in causes if cause.explained_percent >= 100 * LEAST_SHARE]
    return tuple(sorted(considerable, key=lambda cause: (bool(cause.doubts), abs(cause.time_s - achieved_s))))


SlowRun = tuple[str, str, Prediction]
"""What went wrong, what tells whether it did, and the prediction of the run with it."""


def _suspected(workload: Workload, expected: Prediction) -> Iterator[SlowRun]:
    for suspect in SUSPECTS:
        changed = suspect.changed(workload)
        if changed is None:
            continue
        try:
            slow = predict(checked_but_for_memory(changed), expected.method, expected.frequency_mhz)
        except ConfigError:  # the workload cannot run so
            continue
        yield suspect.what, suspect.look_at, slow


def _slow_clock(workload: Workload, expected: Prediction, achieved_s: float) -> Iterator[SlowRun]:
    """Yield the clock at which an iteration takes the time achieved, or the lowest that there is a prediction for."""
    least = workload.gpu.search_frequencies.minimum_mhz
    clocks = range(least, expected.frequency_mhz, CLOCK_STEP_MHZ)
    if not clocks:
        return
    at_clock = functools.cache(functools.partial(predict, workload, expected.method))
    slow_enough = bisect_right(clocks, -achieved_s, key=lambda mhz: -at_clock(mhz).time_s)  # times fall as clocks rise
    clock_mhz = clocks[max(slow_enough - 1, 0)]
    yield (
        f"GPUs run at {clock_mhz} MHz instead of {expected.frequency_mhz}",
        "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER during the run: locked clocks, a power limit, heat",
        at_clock(clock_mhz),
    )


def _signs(workload: Workload, predicted: Prediction) -> dict[str, float]:
    """Return what else logs tell of a run, by the words for it."""
    return {
        POWER: predicted.energy_j / predicted.time_s / workload.parallelism.gpus,
        ALLOCATED: predicted.memory.allocated_gib,
    }


def _doubts(signs: Mapping[str, float], usual: Mapping[str, float], logged: Mapping[str, float]) -> Iterator[str]:
    """Yield logged numbers that a cause predicts worse than the run without it."""
    for name, (words, unit) in SIGNS.items():
        if (value := logged.get(name)) is None:
            continue
        if abs(signs[name] - value) > abs(usual[name] - value) + FURTHER * value:
            yield f"{words} would be {signs[name]:.0f} {unit}, the log has {value:.0f}"


def _with_software(workload: Workload, **values: Any) -> Workload | None:
    """Return the workload with other values of its software; None where it has them already."""
    software = replace(workload.software, **values)
    if software == workload.software:
        return None
    return run_by(workload, software)


def _tensor_alone(workload: Workload) -> Workload | None:
    return _with_software(workload, tensor_overlap=TensorOverlap.NOTHING) if workload.parallelism.tp > 1 else None


def _context_alone(workload: Workload) -> Workload | None:
    return _with_software(workload, context_overlap=False) if workload.parallelism.cp > 1 else None


def _replicas_alone(workload: Workload) -> Workload | None:
    layout = workload.parallelism
    if layout.dp * layout.cp == 1 or layout.sharding is Sharding.FULL:
        return None
    return _with_software(workload, reduction=Reduction.WHOLE, gather_beside_forward=False)


def _slow_network(workload: Workload) -> Workload | None:
    if workload.parallelism.gpus <= workload.linked_gpus:
        return None
    return replace(workload, gpu=replace(workload.gpu, node_gb_per_s=workload.gpu.node_gb_per_s / SLOWER))


def _slow_host(workload: Workload) -> Workload | None:
    software = workload.software
    return _with_software(
        workload,
        host_launch_s=min(SLOWER * software.host_launch_s, 1e-3),
        host_collective_s=min(SLOWER * software.host_collective_s, 1e-2),
    )


def _waiting_host(workload: Workload) -> Workload | None:
    if workload.software.host_rank_s:
        return None
    return _with_software(workload, launches_ahead=LaunchesAhead.PART)


def _attention_in_parts(workload: Workload) -> Workload | None:
    return _with_software(workload, fused_attention=False)


def _old_attention(workload: Workload) -> Workload | None:
    return _with_software(workload, hopper_attention=False) if workload.gpu.fp8_speedup > 1 else None


def _operators_in_parts(workload: Workload) -> Workload | None:
    return _with_software(workload, traffic=min(SLOWER * workload.software.traffic, 10.0))


def _recomputed(workload: Workload) -> Workload | None:
    if workload.recomputation in (Recomputation.FULL, Recomputation.STAGE):
        return None
    return replace(workload, recomputation=Recomputation.FULL)


def _one_chunk(workload: Workload) -> Workload | None:
    if workload.chunks == 1:
        return None
    plain = replace(workload.pipeline, schedule=PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, chunks=1)
    return replace(workload, pipeline=plain, parallelism=replace(workload.parallelism, layers_per_stage=None))


def _sixteen_bits(workload: Workload) -> Workload | None:
    return replace(workload, precision=Precision.BF16) if FORMATS[workload.precision].is_cast else None


SUSPECTS = (
    _Suspect(
        "collectives of tensor parallelism wait for all kernels before them",
        "CUDA_DEVICE_MAX_CONNECTIONS, tp_comm_overlap (userbuffers), async tensor parallelism",
        _tensor_alone,
    ),
    _Suspect(
        "context parallelism sends keys and values before attention instead of beside it",
        "cp_comm_type; NCCL_P2P settings; kernels of NCCL beside those of attention in a trace",
        _context_alone,
    ),
    _Suspect(
        "gradients are reduced after the backward, and weights gathered before the forward",
        "overlap_grad_reduce, overlap_param_gather, sizes of buckets; find_unused_parameters of DDP",
        _replicas_alone,
    ),
    _Suspect(
        f"the network between nodes reaches 1/{SLOWER:g} of its bandwidth",
        "nccl-tests between the nodes; NCCL_IB_HCA, GPUDirect RDMA, NICs that are down, rails",
        _slow_network,
    ),
    _Suspect(
        f"the host takes {SLOWER:g} times as long for each launch",
        "gaps between kernels in a trace; binding of processes to cores, other processes, debug settings, CUDA graphs",
        _slow_host,
    ),
    _Suspect(
        "the host waits for the GPU in every block",
        "cudaStreamSynchronize, .item(), print of tensors, checks for NaN, CUDA_LAUNCH_BLOCKING in a trace",
        _waiting_host,
    ),
    _Suspect(
        "attention is not fused",
        "which kernels a trace has: flash, cudnn or fmha; masks and head sizes that a fused kernel does not take",
        _attention_in_parts,
    ),
    _Suspect(
        "attention is FlashAttention 2, which does not use Hopper's instructions",
        "which kernels a trace has; FlashAttention 3 or cuDNN",
        _old_attention,
    ),
    _Suspect(
        f"norms, activations and additions move {SLOWER:g} times the bytes",
        "torch.compile, fused kernels of norms and SwiGLU, graph breaks",
        _operators_in_parts,
    ),
    _Suspect(
        "all blocks are computed again in the backward", "activation checkpointing, recompute_granularity", _recomputed
    ),
    _Suspect("stages are not interleaved", "the number of chunks or virtual stages", _one_chunk),
    _Suspect(
        "products run in bf16, not in fewer bits", "the recipe of fp8; kernels of GEMMs in a trace", _sixteen_bits
    ),
)
"""What is tried."""
