"""Choices of a configuration that exclude one another, each of which is possible by itself."""

from kareus.errors import RefusedWorkloadError, described_in
from kareus.gpu_model.gpu import Gpu
from kareus.graph.number_formats import FORMATS, Precision, TensorCores
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import EXCHANGES
from kareus.model.trainable import unmeasured
from kareus.pipeline.config import PipelineSchedule
from kareus.software.record import Dispatcher
from kareus.software.trainers import trainer_of
from kareus.workload.compose import ENGINE
from kareus.workload.config import Workload
from kareus.workload.training import check_training

MEGATRON = "megatron-lm"
"""Table of the settings of Megatron."""


def check_combinations(workload: Workload) -> None:
    """Check that the choices of a workload can be had together.

    Raises:
        RefusedWorkloadError: two of them cannot; with the reason, and what to change.
    """
    parallelism = workload.parallelism
    most = workload.model.max_positions
    if most is not None and workload.sequence_length > most:
        raise RefusedWorkloadError(
            f"sequence_length={workload.sequence_length}: must be at most model.max_positions ({most}), the positions "
            "that the model learns."
        )
    if workload.testbed.cuda is not None and (features := unmeasured(workload.model, workload.sequence_length)):
        raise RefusedWorkloadError(
            f"testbed: operators of {', '.join(features)} are not measured on GPUs, since the profiler has none of "
            "them; plan with testbed=simulated, or profile a job of another trainer in place "
            f"({described_in('howto/inplace.md')})."
        )
    if _spans_blocks(workload):
        raise RefusedWorkloadError(
            f"recomputation=full: with context parallelism alone (parallelism.cp={parallelism.cp}, tp=1) every segment "
            "between two collectives spans two blocks, so that Kareus' engine cannot recompute a block by itself; use "
            "recomputation=selective or stage, or predict another software (software=megatron-core)."
        )
    if parallelism.shards_gradients and parallelism.cp > 1 and not workload.software.shares_over_context:
        raise RefusedWorkloadError(
            f"parallelism.sharding={parallelism.sharding}: {workload.software.name} reduce-scatters gradients over "
            f"replicas alone, and context parallelism (parallelism.cp={parallelism.cp}) would have to sum them, too; "
            "use cp=1, or parallelism.sharding=optimizer."
        )
    _check_fsdp(workload)
    _check_experts(workload)
    _check_software(workload)
    check_training(workload)
    if parallelism.shards_gradients and workload.testbed.cuda is not None:
        raise RefusedWorkloadError(
            f"parallelism.sharding={parallelism.sharding}: a profiler has the GPUs of one replica, and cannot measure "
            "collectives of several; use parallelism.sharding=optimizer, or plan with testbed=simulated and train by "
            "that plan with --communicator nccl."
        )


def _check_fsdp(workload: Workload) -> None:
    """Check that settings of FSDP's exchanges are of exchanges that there are.

    Raises:
        RefusedWorkloadError: they are not.
    """
    layout, fsdp = workload.parallelism, workload.parallelism.fsdp
    if not fsdp.label:
        return
    said = f"parallelism.fsdp ({fsdp.label})"
    if not layout.shards_weights:
        raise RefusedWorkloadError(
            f"{said}: no weights are shared out; give parallelism.sharding=full, or leave it out."
        )
    if fsdp.copies_sms is not None and layout.copies == 1:
        raise RefusedWorkloadError(
            f"{said}: no replicas hold copies; give parallelism.shards, or leave copies_sms out."
        )
    linked = workload.gpu.linked_gpus(layout.gpus)
    if fsdp.nvls and not (workload.gpu.switches_reduce and layout.sharing * layout.cp * layout.tp <= linked):
        raise RefusedWorkloadError(
            f"{said}: NVLS is of switches that multicast (from H100 on), and of groups inside a node; {layout.sharing} "
            f"replicas share out weights here, on {workload.gpu.name}; leave nvls out, or give parallelism.shards."
        )
    if max(fsdp.sms(name) or 0 for name in EXCHANGES) >= workload.gpu.sm_count:
        raise RefusedWorkloadError(f"{said}: must be fewer SMs than the GPU has ({workload.gpu.sm_count}).")


def _spans_blocks(workload: Workload) -> bool:
    """Whether the engine would recompute segments that span two blocks; other trainers wrap a block as a module."""
    parallelism, is_full = workload.parallelism, workload.recomputation is Recomputation.FULL
    return is_full and parallelism.cp > 1 and parallelism.tp == 1 and workload.software.name == ENGINE


def _check_experts(workload: Workload) -> None:
    """Check what mixtures of experts are not predicted with, and settings of exchanges that only these have.

    Raises:
        RefusedWorkloadError: the workload has it.
    """
    parallelism = workload.parallelism
    if workload.model.experts is not None and parallelism.tp > 1 and not parallelism.sequence_parallel:
        raise RefusedWorkloadError(
            f"parallelism.sequence_parallel=false: with experts, GPUs of a tensor-parallel group (parallelism.tp="
            f"{parallelism.tp}) route their own tokens each; set it to true."
        )
    if workload.software.experts_within_shards and parallelism.ep > 1:
        _check_shards(workload)
    _check_exchanges(workload)


def _check_shards(workload: Workload) -> None:
    """Check that experts are shared out over GPUs that share out weights, as torchtitan's `ParallelDims` does.

    Raises:
        RefusedWorkloadError: they are not.
    """
    layout = workload.parallelism
    replicas = layout.sharing if layout.shards_weights else 1
    borrowed = layout.cp if layout.etp == layout.tp else layout.cp * layout.tp
    if layout.etp not in (1, layout.tp):
        raise RefusedWorkloadError(f"parallelism.etp={layout.etp}: {workload.software.name} has 1 or tp ({layout.tp}).")
    if layout.ep % borrowed or replicas * borrowed % layout.ep:
        raise RefusedWorkloadError(
            f"parallelism.ep={layout.ep}: {workload.software.name} shares out experts over the GPUs that share out "
            f"weights: ep must be a multiple of {borrowed} and divide {replicas * borrowed}; use "
            "parallelism.sharding=full, or another ep."
        )


def _check_exchanges(workload: Workload) -> None:
    """Check that exchanges of tokens leave SMs to what runs beside them, and that something does.

    Raises:
        RefusedWorkloadError: they do not, or gradients wait for an exchange beside which nothing else runs.
    """
    software, gpu = workload.software, workload.gpu
    if software.dispatch_sms is not None and software.dispatch_sms >= gpu.sm_count:
        raise RefusedWorkloadError(
            f"software.dispatch_sms={software.dispatch_sms}: must be less than the {gpu.sm_count} SMs of {gpu.name}, "
            "which compute beside an exchange."
        )
    if software.dispatch_sms is not None and software.dispatcher is not Dispatcher.FLEX:
        raise RefusedWorkloadError(
            f"software.dispatch_sms={software.dispatch_sms}: only exchanges of software.dispatcher=flex (DeepEP, "
            "HybridEP) have SMs of their own; add that, or leave it out."
        )
    if software.delayed_weight_gradients and not software.hidden_exchange:
        raise RefusedWorkloadError(
            "software.delayed_weight_gradients=true: Megatron delays them only beside exchanges that it hides "
            "(overlap_moe_expert_parallel_comm); add software.hidden_exchange=1."
        )
    if software.hidden_exchange:
        _check_hidden_exchange(workload)


def _check_hidden_exchange(workload: Workload) -> None:
    """Check what Megatron does not hide exchanges of tokens with (`megatron/core/transformer/transformer_config.py`).

    Raises:
        RefusedWorkloadError: the workload has it.
    """
    parallelism, mtp = workload.parallelism, workload.model.mtp_layers
    shown = f"software.hidden_exchange={workload.software.hidden_exchange:g}: Megatron hides exchanges of tokens"
    if workload.recomputation.repeats_blocks:
        raise RefusedWorkloadError(
            f"{shown} only where blocks are not recomputed whole (recomputation={workload.recomputation}); use none or "
            "selective, or software.hidden_exchange=0."
        )
    if parallelism.ep == 1:
        raise RefusedWorkloadError(
            f"{shown} only where there are some (parallelism.ep=1); give ep to a model with experts, or use "
            "software.hidden_exchange=0."
        )
    if parallelism.pp > 1 and workload.chunks == 1:
        raise RefusedWorkloadError(
            f"{shown} of a pipeline (parallelism.pp={parallelism.pp}) only with virtual stages; add "
            "pipeline=interleaved, or use software.hidden_exchange=0."
        )
    schedule = workload.pipeline.schedule
    hiding = [PipelineSchedule.INTERLEAVED]
    if trainer_of(workload.software.name).settings != MEGATRON:  # PyTorch and DeepSeek run a forward beside a backward
        hiding.append(PipelineSchedule.DUALPIPE_V)
    if parallelism.pp > 1 and schedule not in hiding:
        raise RefusedWorkloadError(
            f"{shown} of a pipeline only in the order of pipeline={' or '.join(hiding)} (pipeline={schedule}); use "
            "that, or software.hidden_exchange=0."
        )
    if mtp > 1:
        raise RefusedWorkloadError(
            f"{shown} with one block that predicts further tokens at most (model.mtp_layers={mtp}); use 1 or 0 of "
            "them, or software.hidden_exchange=0."
        )


def _check_software(workload: Workload) -> None:
    """Check that software and precision can be had on the GPU and on the testbed.

    Raises:
        RefusedWorkloadError: they cannot.
    """
    parallelism, software, gpu = workload.parallelism, workload.software, workload.gpu
    check_format(workload.precision, gpu)
    _check_power_limit(gpu)
    if not software.fused_attention and parallelism.cp > 1:
        raise RefusedWorkloadError(
            f"parallelism.cp={parallelism.cp}: attention of {software.name} is not fused and needs whole sequences; "
            "use parallelism.cp=1, or software with fused attention."
        )
    if workload.testbed.cuda is None:
        return
    if software.name != ENGINE or workload.precision is not Precision.BF16:
        raise RefusedWorkloadError(
            f"software={software.name}, precision={workload.precision}: real GPUs run programs of Kareus' engine; use "
            "software=kareus and precision=bf16, profile a job of the other trainer in place, or plan with "
            "testbed=simulated."
        )
    if parallelism.tp * parallelism.cp > gpu.gpus_per_node:
        raise RefusedWorkloadError(
            f"parallelism.tp={parallelism.tp}, cp={parallelism.cp}: a profiler has the {gpu.gpus_per_node} GPUs of one "
            "node; use fewer, or plan with testbed=simulated."
        )


def check_format(precision: Precision, gpu: Gpu) -> None:
    """Check that a GPU has tensor cores for a number format.

    Raises:
        RefusedWorkloadError: it has not; with the formats that it has.
    """
    if _has(gpu, precision):
        return
    units = FORMATS[precision].units
    has = " or ".join(formats_of(gpu))
    raise RefusedWorkloadError(
        f"precision={precision}: {gpu.name} has no {units} tensor cores ({_TOLD_BY[units]}); use precision={has}."
    )


_TOLD_BY = {
    TensorCores.FP8: "gpu.fp8_speedup is 1",
    TensorCores.MXFP8: "they came with Blackwell's",
    TensorCores.FP4: "gpu.fp4_speedup is 1",
}
"""What tells that a GPU has none of these units."""


def formats_of(gpu: Gpu) -> tuple[Precision, ...]:
    """Return the number formats that a GPU has tensor cores for."""
    return tuple(number_format for number_format in FORMATS if _has(gpu, number_format))


def _has(gpu: Gpu, precision: Precision) -> bool:
    """Whether a GPU has tensor cores for a number format."""
    units = FORMATS[precision].units
    return units is TensorCores.BF16 or gpu.speedup(units) > 1


def _check_power_limit(gpu: Gpu) -> None:
    """Check that a GPU draws less than its power limit while it waits: at its lowest clock, and for other GPUs.

    Raises:
        RefusedWorkloadError: it does not.
    """
    c = gpu.coefficients
    most_w = gpu.static_power_w + c.warm_leakage_w + c.core_leakage_w + c.clock_power_w  # of waiting
    if gpu.throttling_power_w <= most_w:
        _check_lowest_clock(gpu)
    if gpu.blocking_power_w >= gpu.power_limit_w:
        raise RefusedWorkloadError(
            f"gpu.blocking_power_w={gpu.blocking_power_w:g}: must be less than gpu.power_limit_w "
            f"({gpu.power_limit_w:g}), which no GPU exceeds while it waits for others; give less, or a higher limit."
        )


def _check_lowest_clock(gpu: Gpu) -> None:
    import numpy as np  # noqa: PLC0415 - workloads are resolved without it

    from kareus.gpu_model.energy import idle_power_w  # noqa: PLC0415
    from kareus.gpu_model.power_limit import LEAST_CLOCK_MHZ  # noqa: PLC0415

    waiting_w = float(idle_power_w(gpu, np.array(min(LEAST_CLOCK_MHZ, float(gpu.maximum_clock_mhz)))))
    if gpu.throttling_power_w <= waiting_w:
        raise RefusedWorkloadError(
            f"gpu.power_limit_w={gpu.power_limit_w:g}: {gpu.name} draws {waiting_w:.0f} W waiting at its lowest clock, "
            "before it computes; give more."
        )
