"""What has to divide for a workload to be cut into equal shards."""

from collections.abc import Iterator

from kareus.errors import RefusedWorkloadError
from kareus.workload.config import Workload


def check_divisibility(workload: Workload) -> None:
    """Check that every GPU of a group gets an equal part.

    Raises:
        RefusedWorkloadError: the first key that does not divide, its value and what it may be.
    """
    for problem in _problems(workload):
        raise RefusedWorkloadError(problem)


def _problems(workload: Workload) -> Iterator[str]:
    model, tp, cp = workload.model, workload.parallelism.tp, workload.parallelism.cp
    yield from _node_problems(workload)
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"):
        value = getattr(model, key)
        if value % tp:
            fitting = [d for d in range(1, workload.gpu.gpus_per_node + 1) if value % d == 0]
            yield f"parallelism.tp={tp}: must divide model.{key} ({value}); of a node's GPUs, {_listed(fitting)} do."
    if cp > 1 and workload.sequence_length % (2 * cp):
        # Each rank takes chunks r and 2 cp - 1 - r of the sequence, so that causal attention is the same work on all
        # (Llama 3 technical report, section 3.3.2).
        yield (
            f"sequence_length={workload.sequence_length}: must be a multiple of {2 * cp} (2 x parallelism.cp={cp}), "
            "the chunks that balance causal attention."
        )


def _node_problems(workload: Workload) -> Iterator[str]:
    """Tensor and context groups stay inside a node: their collectives are priced on the links of one."""
    tp, cp, node = workload.parallelism.tp, workload.parallelism.cp, workload.gpu.gpus_per_node
    if node % tp:
        yield f"parallelism.tp={tp}: must fit a node of {node} GPUs evenly; allowed: {_listed(_divisors(node))}."
    elif node % (tp * cp):
        yield (
            f"parallelism.cp={cp}: together with parallelism.tp={tp} it must fit a node of {node} GPUs evenly; allowed "
            f"beside that tp: {_listed(_divisors(node // tp))}."
        )


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(number) for number in numbers)
