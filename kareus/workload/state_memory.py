"""Memory of model states on one GPU: weights, gradients and states of the optimizer.

Mixed precision as in Megatron-LM: bf16 weights, gradients of as many bytes as the software sums them in, fp32 master
weights and Adam moments; options of a training say otherwise (`kareus.model.training_options`). Frozen weights have
neither gradients nor states; adapters beside them have both.
"""

from collections.abc import Mapping

from kareus.graph.number_formats import BF16_BYTES, FORMATS, FP32_BYTES
from kareus.graph.records import Scope
from kareus.model.config import Model
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.parameters import gathered_bytes, scope_parameters, trained_expert_parameters, trained_parameters
from kareus.model.training_options import MasterWeights
from kareus.profile.programs import laid_out_shapes
from kareus.workload.config import Workload


def state_bytes(workload: Workload, stage: int, layers: int) -> tuple[float, float, float]:
    """Bytes of weights, gradients and states of the optimizer on one GPU of a stage.

    Weights of blocks that products take in fewer bits are kept cast and transposed beside those in 16 bits.
    What is sharded is divided by the replicas that share it out, of experts by the GPUs that share out the same. Where
    gradients are, the fp32 shards of the weights are the master weights, which count among the states; weights and
    gradients that are whole for a while: see `_whole_bytes`.
    """
    model, parallelism, software = workload.model, workload.parallelism, workload.software
    options, dense = workload.training, stage_dense_blocks(workload, stage)
    parts = scope_parameters(model, parallelism)
    outer = _outer_parameters(parts, parallelism, stage)
    parameters = trained = outer + _block_parameters(parts, layers, dense)
    if options.trains_adapters:
        trained = layers * trained_parameters(model, parallelism, options)[Scope.BLOCK]
        parameters += trained
    routed = trained_expert_parameters(model, parallelism, options)
    experts = (layers - dense) * routed.get(Scope.BLOCK, 0)
    experts += routed.get(Scope.HEAD, 0) if stage == parallelism.head_stage else 0
    of_blocks = parameters - trained * options.trains_adapters
    of_blocks -= outer
    kept_bytes = 0 if options.cast_weights else options.frozen_weights.value_bytes
    quantised = (BF16_BYTES - kept_bytes) * of_blocks
    gradient_bytes = options.gradient_bytes(software.gradient_bytes)
    weights, gradients = BF16_BYTES * parameters - quantised, float(gradient_bytes * trained)
    number_format = FORMATS[workload.precision]
    cast = 2 * number_format.value_bytes * of_blocks
    sharing = parallelism.sharing * (parallelism.cp if software.shares_over_context else 1)
    whole = parallelism.sharding is Sharding.NONE
    states = options.state_bytes * (trained - experts) / (1 if whole else sharing)
    states += options.state_bytes * experts / (1 if whole else parallelism.expert_sharing)
    if parallelism.shards_gradients:
        of_experts = experts / parallelism.expert_sharing
        kept = weights - BF16_BYTES * trained  # frozen ones
        weights, unreduced = _whole_bytes(workload, stage, layers, dense)
        gradients = gradient_bytes * ((trained - experts) / sharing + of_experts) + unreduced
        if parallelism.shards_weights:
            weights += kept / sharing
        if parallelism.shards_weights and options.master_weights is not MasterWeights.FP32:
            weights += BF16_BYTES * ((trained - experts) / sharing + of_experts)
    kept_states = (1 - options.offload_optimizer) * states
    return weights + (cast if number_format.is_cast else 0), gradients, kept_states


def _whole_bytes(workload: Workload, stage: int, layers: int, dense: int) -> tuple[float, float]:
    """Bytes of gathered weights, and the most of gradients beside them that are not reduced yet.

    Gathered are, with sharded weights, the block that runs and those ahead of it, and embedding and head; with sharded
    gradients alone all; of a block's experts, those that the GPU computes with. In the backward of a block, that of the
    block before is being reduced (fp32 buffers of both), and the head's gradient waits in bf16 for that of the
    embedding, with which it is reduced. Then embedding and head have their turn: their bf16 gradients, and the same in
    fp32 as they are computed, one after the other, and reduced, when what was gathered of sharded weights is given
    back.
    """
    model, parallelism = workload.model, workload.parallelism
    parts, trained = scope_parameters(model, parallelism), trained_parameters(model, parallelism, workload.training)
    is_first, is_last = stage == 0, stage == parallelism.head_stage
    whole_outer = is_first * parts[Scope.EMBEDDING] + is_last * parts[Scope.HEAD]
    block_bytes = gathered_bytes(model, parallelism, workload.training)[Scope.BLOCK]
    gathered = min(layers, 1 + parallelism.fsdp.prefetch) * block_bytes + BF16_BYTES * whole_outer
    given_back = gathered if parallelism.shards_weights else 0
    blocks_given_back = given_back - BF16_BYTES * whole_outer if given_back else 0
    block, embedding = trained[Scope.BLOCK], is_first * trained[Scope.EMBEDDING]
    outer = embedding + is_last * trained[Scope.HEAD]
    head = outer if is_first and is_last and model.tie_embeddings else outer - embedding
    both = BF16_BYTES + FP32_BYTES
    gradients = max(
        2 * FP32_BYTES * block + BF16_BYTES * head,
        both * head - blocks_given_back,
        both * embedding + BF16_BYTES * head + FP32_BYTES * block - blocks_given_back,
        both * outer - given_back,
    )
    dense_bytes = BF16_BYTES * parts.get(Scope.DENSE_BLOCK, 0)
    everything = (layers - dense) * block_bytes + dense * dense_bytes + BF16_BYTES * whole_outer
    return gathered if parallelism.shards_weights else everything, gradients


def stage_dense_blocks(workload: Workload, stage: int) -> int:
    """Blocks of a stage that have no experts where others of the model do."""
    if not workload.model.dense_layers:
        return 0
    shapes = laid_out_shapes(workload)
    return sum(shapes[stage, chunk].dense for chunk in range(workload.chunks))


def stage_parameters(model: Model, parallelism: Parallelism, stage: int, layers: int, dense: int = 0) -> int:
    """Parameters on one GPU of a stage. A tied embedding is on the first stage and, as the LM head, on the head's.

    `dense` of the blocks have no experts where others of the model do.
    """
    parts = scope_parameters(model, parallelism)
    return _block_parameters(parts, layers, dense) + _outer_parameters(parts, parallelism, stage)


def _block_parameters(parts: Mapping[Scope, int], layers: int, dense: int) -> int:
    """Parameters of so many blocks, of which `dense` have no experts where others have them."""
    return (layers - dense) * parts[Scope.BLOCK] + dense * parts.get(Scope.DENSE_BLOCK, 0)


def _outer_parameters(parts: Mapping[Scope, int], parallelism: Parallelism, stage: int) -> int:
    """Parameters of a stage that belong to no block."""
    embedding = parts[Scope.EMBEDDING] if stage == 0 else 0
    return embedding + (parts[Scope.HEAD] if stage == parallelism.head_stage else 0)
