"""Checks that the engine trains what is planned, before ranks are started and without importing torch.

Others predict and plan more than it trains; each refusal says what to change, or who trains it.
"""

from kareus.errors import EngineError, described_in
from kareus.graph.recomputation import Recomputation
from kareus.model.config import Model, PositionKind
from kareus.model.features import QkNormScope
from kareus.model.trainable import untrained
from kareus.software.record import Dispatcher
from kareus.workload.config import Workload
from kareus.workload.memory import check_captured_memory


def check_trains(model: Model, sequence_length: int, device_type: str) -> None:
    """Check that the engine trains `model` on such sequences, on devices of this type, `cpu` or `cuda`.

    Raises:
        EngineError: it does not; with what it would need.
    """
    if features := untrained(model, sequence_length):
        raise EngineError(
            f"model {model.name}: the engine does not train {', '.join(features)}; it is planned and predicted, and a "
            f"plan is followed by a trainer that has it ({described_in('howto/inplace.md')})."
        )
    shares = model.num_key_value_heads < model.num_attention_heads
    if model.positions is PositionKind.ALIBI and shares and device_type != "cpu":
        raise EngineError(
            f"model.positions=alibi: PyTorch's attention with a bias needs a head of keys and values for each of "
            f"{model.num_attention_heads} heads of queries, and model.num_key_value_heads is "
            f"{model.num_key_value_heads}; it is planned, and trained on CPUs alone (--communicator gloo)."
        )


def engine_refusal(workload: Workload) -> str:
    """Return why Kareus' engine does not train a workload on GPUs and what to do, or nothing where it does."""
    try:
        check_trains(workload.model, workload.sequence_length, "cuda")
        check_runs(workload)
    except EngineError as error:
        return str(error)
    return ""


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
    if workload.model.experts is not None:
        raise EngineError(
            f"--cuda-graphs: experts get other numbers of tokens each time, which a graph cannot have; {instead}."
        )
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
    """Check that the engine runs a workload's options of training, its pipeline, and its layout of weights and experts.

    Raises:
        EngineError: it does not; with the key that it would need otherwise.
    """
    parallelism, model = workload.parallelism, workload.model
    if changed := workload.training.changed:
        raise EngineError(
            f"training.{changed[0]}: is planned and predicted, but the engine trains all weights in fp32 states on "
            "sequences of one document; leave it out, or train with the trainer that has it (kareus export)."
        )
    if parallelism.tp > 1 and model.qk_norm and model.qk_norm_scope is QkNormScope.TOKEN:
        raise EngineError(
            f"parallelism.tp={parallelism.tp}: is planned, but norms over all heads of a token "
            f"(model.qk_norm_scope={model.qk_norm_scope}) would have to be summed over the GPUs that share the heads; "
            "train with tp=1, and more of dp or pp."
        )
    if workload.pipeline.schedule.folds and model.tie_embeddings:
        raise EngineError(
            f"pipeline.schedule={workload.pipeline.schedule}: is planned and predicted, but the engine does not tie "
            "embeddings of two chunks on one GPU (model.tie_embeddings=true); plan pipeline=zb-h1, or train with "
            "torchtitan (kareus export --format torchtitan)."
        )
    if (latent := model.latent_attention) is not None and latent.query_rank is None and parallelism.tp > 1:
        raise EngineError(
            f"model.latent_attention: is planned with parallelism.tp={parallelism.tp}, but the engine divides no "
            "queries that are projected beside latent vectors (query_rank=null); train with tp=1, and more of dp or pp."
        )
    if parallelism.copies > 1 and parallelism.shards_states:
        raise EngineError(
            f"parallelism.shards={parallelism.shards}: is planned, but the engine shares out model states over all "
            "replicas; leave parallelism.shards out."
        )
    if model.experts is not None:
        _check_expert_parallelism(workload)
    if not parallelism.shards_gradients:
        return
    degrees = [f"parallelism.{axis}={n}" for axis in ("pp", "tp") if (n := getattr(parallelism, axis)) > 1]
    others = [*degrees, *(["recomputation=stage"] if workload.recomputation is Recomputation.STAGE else [])]
    if others:
        raise EngineError(
            f"parallelism.sharding={parallelism.sharding}: is planned with {', '.join(others)}, but the engine runs it "
            "with data parallelism alone (pp=1, tp=1, cp=1) and recomputation none, selective or full."
        )


def _check_expert_parallelism(workload: Workload) -> None:
    """Check that the engine runs experts as they are divided.

    Raises:
        EngineError: it does not.
    """
    parallelism, planned = workload.parallelism, "is planned and predicted, but the engine"
    if parallelism.etp > 1:
        raise EngineError(
            f"parallelism.etp={parallelism.etp}: {planned} has whole experts on a GPU; train with etp=1 and more of ep."
        )
    if parallelism.shards_gradients:
        raise EngineError(
            f"parallelism.sharding={parallelism.sharding}: {planned} does not share out experts in every microbatch; "
            "train with parallelism.sharding=optimizer."
        )
    if parallelism.tp > 1 and not parallelism.sequence_parallel:
        raise EngineError(
            "parallelism.sequence_parallel=false: with experts, GPUs of a tensor-parallel group route their own "
            "tokens each; set it to true."
        )
    if workload.software.dispatcher is not Dispatcher.ALL_TO_ALL:
        raise EngineError(
            f"software.dispatcher={workload.software.dispatcher}: {planned} exchanges tokens by an all-to-all of its "
            "communicator; train with software.dispatcher=alltoall."
        )
