"""Conditions of divisibility for cutting a workload into equal shards."""

from collections.abc import Iterator

from kareus.errors import RefusedWorkloadError
from kareus.model.config import Model
from kareus.workload.config import Workload

SHARDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
"""Keys of the model that a tensor-parallel group cuts; of a mixture of experts without dense blocks no MLP."""


def check_divisibility(workload: Workload) -> None:
    """Check that every GPU of a group gets an equal part.

    Raises:
        RefusedWorkloadError: the first key that does not divide, its value and what it may be.
    """
    for problem in _problems(workload):
        raise RefusedWorkloadError(problem)


def _problems(workload: Workload) -> Iterator[str]:
    """Tensor and context groups fill what NVLink connects evenly, or share it evenly, so that all of them lie alike."""
    yield from _of_experts(workload)
    yield from _of_sharing(workload)
    tp, cp, node = workload.parallelism.tp, workload.parallelism.cp, workload.linked_gpus
    linked = f"a node of {node} GPUs, or fill nodes"
    if workload.gpu.nvlink_domain is not None:
        linked = f"the {node} GPUs that it has of an NVLink domain, or fill domains"
    if node % tp and tp % node:
        yield (f"parallelism.tp={tp}: must fit {linked}, evenly; allowed: {_listed(_allowed_tp(workload))}.")
    if workload.model.head_dim % 2:
        yield f"model.head_dim={workload.model.head_dim}: must be even, for rotary position embeddings turn pairs."
    for key in _sharded(workload.model):
        value = getattr(workload.model, key)
        if key == "vocab_size":
            value = workload.software.padded(value, tp)
        if value % tp:
            yield f"parallelism.tp={tp}: must divide model.{key} ({value}); allowed: {_listed(_allowed_tp(workload))}."
    if node % (tp * cp) and (tp * cp) % node:
        yield (
            f"parallelism.cp={cp}: together with parallelism.tp={tp} it must fit {linked}, evenly; "
            f"allowed beside that tp: {_listed(_allowed_cp(workload))}."
        )
    if _unbalanced(workload, cp):
        yield (
            f"sequence_length={workload.sequence_length}: must be a multiple of {2 * cp} (2 x parallelism.cp={cp}), "
            "the chunks that balance causal attention."
        )
    if (shards := workload.parallelism.token_shards) > 1 and workload.sequence_length % (
        chunks := _chunks(cp) * shards
    ):
        factors = f"parallelism.tp={shards}" if cp == 1 else f"2 x parallelism.cp={cp} x parallelism.tp={shards}"
        yield (
            f"sequence_length={workload.sequence_length}: must be a multiple of {chunks} ({factors}) with "
            "parallelism.sequence_parallel=true, which cuts sequences in as many parts; or set it to false."
        )


def _of_sharing(workload: Workload) -> Iterator[str]:
    """Groups of replicas that share out model states are as large as one another."""
    dp, shards = workload.parallelism.dp, workload.parallelism.sharing
    if dp % shards:
        fitting = [n for n in divisors(dp) if n > 1]
        allowed = f"allowed: {_listed(fitting)}" if fitting else "give more replicas, or leave shards out"
        yield f"parallelism.shards={shards}: must divide parallelism.dp ({dp}); {allowed}."


def _sharded(model: Model) -> tuple[str, ...]:
    without_mlp = model.experts is not None and not model.dense_layers
    return tuple(key for key in SHARDED if key != "intermediate_size" or not without_mlp)


def _of_experts(workload: Workload) -> Iterator[str]:
    """Expert parallelism takes its GPUs from those of a stage, and shares out whole experts (Megatron Core)."""
    degrees, experts = workload.parallelism, workload.model.experts
    if experts is None:
        for key in ("ep", "etp"):
            if getattr(degrees, key) > 1:
                yield f"parallelism.{key}={getattr(degrees, key)}: {workload.model.name} has no experts; use 1."
        return
    if experts.count % degrees.ep:
        allowed = _listed([d for d in divisors(experts.count) if degrees.gpus_per_stage % d == 0])
        yield f"parallelism.ep={degrees.ep}: must divide model.experts.count ({experts.count}); allowed: {allowed}."
    if degrees.gpus_per_stage % (degrees.ep * degrees.etp):
        fitting = [
            d
            for d in divisors(degrees.gpus_per_stage)
            if experts.count % d == 0 and degrees.gpus_per_stage % (d * degrees.etp) == 0
        ]
        yield (
            f"parallelism.ep={degrees.ep}, etp={degrees.etp}: ep x etp must divide the {degrees.gpus_per_stage} GPUs "
            f"of a stage (dp x cp x tp); allowed with that etp: ep {_listed(fitting)}."
        )
    group = degrees.sharing * degrees.cp * degrees.tp
    if (
        degrees.copies > 1
        and group % (degrees.ep * degrees.etp)
        and not degrees.gpus_per_stage % (degrees.ep * degrees.etp)
    ):
        yield (
            f"parallelism.shards={degrees.shards}: GPUs of a group that shares out model states (shards x cp x tp = "
            f"{group}) must share out experts evenly, and parallelism.ep x etp is {degrees.ep * degrees.etp}; use a "
            "multiple, or less of ep."
        )
    if experts.width % degrees.etp:
        yield f"parallelism.etp={degrees.etp}: must divide model.experts.width ({experts.width})."
    if experts.shared_width % degrees.tp:
        yield f"parallelism.tp={degrees.tp}: must divide model.experts.shared_width ({experts.shared_width})."


def _chunks(cp: int) -> int:
    """Return the number of chunks that context parallelism cuts a sequence in."""
    return 2 * cp if cp > 1 else 1


def _unbalanced(workload: Workload, cp: int) -> bool:
    """Whether the sequence cannot be cut so that causal attention is the same work on all ranks.

    Each rank takes chunks r and 2 cp - 1 - r of the sequence (Llama 3 technical report, section 3.3.2).
    """
    return bool(workload.sequence_length % _chunks(cp))


def _allowed_tp(workload: Workload) -> list[int]:
    """Degrees that meet every condition; that on the node together with `cp` only where some meets it."""
    degrees, cp = workload.gpu.linked_degrees, workload.parallelism.cp
    alone = [d for d in degrees if not any(getattr(workload.model, key) % d for key in _sharded(workload.model))]
    return [d for d in alone if d * cp in degrees] or alone


def _allowed_cp(workload: Workload) -> list[int]:
    """Return the degrees that meet every condition with a `tp` that fits the node."""
    degrees, tp = workload.gpu.linked_degrees, workload.parallelism.tp
    return [d for d in degrees if d * tp in degrees and not _unbalanced(workload, d)]


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number, rising."""
    return [d for d in range(1, number + 1) if number % d == 0]


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(number) for number in numbers)
