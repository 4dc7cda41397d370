"""Checks of what is planned and cannot be trained, before ranks are started and without importing torch."""

from kareus.errors import EngineError
from kareus.graph.recomputation import Recomputation
from kareus.model.config import Model, PositionKind
from kareus.model.features import QkNormScope
from kareus.model.trainable import untrained
from kareus.workload.config import Workload
from kareus.workload.graph_memory import check_captured_memory


def check_trains(model: Model, sequence_length: int, device_type: str) -> None:
    """Check that the engine trains `model` on such sequences, on devices of this type, `cpu` or `cuda`.

    Raises:
        EngineError: it does not; with what it would need.
    """
    if features := untrained(model, sequence_length):
        raise EngineError(
            f"model {model.name}: the engine does not train {', '.join(features)}; it is planned and predicted, and a "
            "plan is followed by a trainer that has it (docs/howto/inplace.md)."
        )
    shares = model.num_key_value_heads < model.num_attention_heads
    if model.positions is PositionKind.ALIBI and shares and device_type != "cpu":
        raise EngineError(
            f"model.positions=alibi: PyTorch's attention with a bias needs a head of keys and values for each of "
            f"{model.num_attention_heads} heads of queries, and model.num_key_value_heads is "
            f"{model.num_key_value_heads}; it is planned, and trained on CPUs alone (--communicator gloo)."
        )


def check_captures(workload: Workload, communicator: str) -> None:
    """Check that the engine captures what a training runs as CUDA graphs, and that it then fits; CPUs have none.

    Raises:
        EngineError: something of it cannot be captured.
        RefusedWorkloadError: it does not fit.
    """
    instead = "train without --cuda-graphs"
    if communicator == "gloo":
        return
    if communicator != "nccl":
        raise EngineError(f"--cuda-graphs: collectives of {communicator} are not captured; {instead}, or take nccl.")
    if workload.split_backward:
        raise EngineError(
            f"--cuda-graphs: weight gradients of their own (pipeline.schedule={workload.pipeline.schedule}) are not "
            f"captured; {instead}, or plan another pipeline schedule."
        )
    if workload.parallelism.shards_gradients:
        raise EngineError(
            f"--cuda-graphs: blocks are not captured with parallelism.sharding={workload.parallelism.sharding}, which "
            f"shares them out; {instead}, or shard the optimizer alone."
        )
    check_captured_memory(workload)


def check_runs(workload: Workload) -> None:
    """Check that the engine runs the sharding of a workload.

    Raises:
        EngineError: gradients or weights are sharded, and with them something else that the engine does not run so; or
            heads are, where a norm sees all of them.
    """
    parallelism, model = workload.parallelism, workload.model
    if parallelism.tp > 1 and model.qk_norm and model.qk_norm_scope is QkNormScope.TOKEN:
        raise EngineError(
            f"parallelism.tp={parallelism.tp}: is planned, but norms over all heads of a token "
            f"(model.qk_norm_scope={model.qk_norm_scope}) would have to be summed over the GPUs that share the heads; "
            "train with tp=1, and more of dp or pp."
        )
    if parallelism.copies > 1 and parallelism.shards_states:
        raise EngineError(
            f"parallelism.shards={parallelism.shards}: is planned, but the engine shares out model states over all "
            "replicas; leave parallelism.shards out."
        )
    if not parallelism.shards_gradients:
        return
    degrees = [f"parallelism.{axis}={n}" for axis in ("pp", "tp") if (n := getattr(parallelism, axis)) > 1]
    others = [*degrees, *(["recomputation=stage"] if workload.recomputation is Recomputation.STAGE else [])]
    if others:
        raise EngineError(
            f"parallelism.sharding={parallelism.sharding}: is planned with {', '.join(others)}, but the engine runs it "
            "with data parallelism alone (pp=1, tp=1, cp=1) and recomputation none, selective or full."
        )
