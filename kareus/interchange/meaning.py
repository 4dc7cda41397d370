"""Meanings of trainers' keys in other products than Kareus, in both directions.

A table gives each key of a trainer a *term*: a dotted key of a workload, or one of the terms below, from which keys of
a workload follow. `keys_of` goes from terms to keys, `terms_of` from keys to terms, so that reading what was written
gives the same keys.

- `nodes`, `gpus_per_node`, `gpus`: of the job.
- `copies`: groups of replicas that each share out the optimizer (Megatron Core).
- `replicas`, `shards`, `reshards`: replicas that hold weights whole, GPUs that share them out (-1: all that are left),
  and when gathered weights are dropped (FSDP of PyTorch).
- `rank_batch`: sequences of a replica between two steps of gradient accumulation, cut in microbatches by a pipeline.
- `recipe`: of formats of 8 bits the one that is meant, where another setting says that there are any (Megatron Core).
- `recomputed`, `recomputed_by`, `recomputed_layers`, `recomputed_modules`: what is recomputed, in pieces of how many
  blocks, or of them how many, and which modules (likewise); `recomputed_every`: every so manieth block, where parts are
  recomputed (torchtitan).
- `sixteen_bit_states`: whether weights are trained in 16 bits, with moments in 16 bits and nothing beside them.
- Those of `model_terms.py` and `stage_layout.py`, which say a model and how its blocks lie on stages.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.interchange.model_terms import TrainerTerms, expert_degrees, expert_terms, model_of
from kareus.interchange.stage_layout import layout_terms, pipeline_keys
from kareus.model.parallelism import HYBRID, Sharding
from kareus.model.training_options import (
    LINEAR,
    TARGETS,
    MasterWeights,
    RecomputedModule,
    StateFormat,
    TrainingOptions,
)

SHARDINGS = (*map(str, Sharding), HYBRID)
"""From nothing shared out to everything; of two settings the one that shares out more counts."""
DEGREES = ("parallelism.tp", "parallelism.pp", "parallelism.cp")
OPTIONS = tuple(f"training.{each.name}" for each in fields(TrainingOptions))
TENSOR_OVERLAP = "software.tensor_overlap"
PLAIN = (
    *DEGREES,
    "parallelism.ep",
    "parallelism.etp",
    "parallelism.dp",
    "parallelism.shards",
    "parallelism.sequence_parallel",
    "precision",
    "recomputation",
    "microbatch_size",
    "num_microbatches",
    "global_batch_size",
    "sequence_length",
    "gpus",
    TENSOR_OVERLAP,
    "software.reduction",
    "software.gather_beside_forward",
    "software.stream_dropout",
    "software.loss_kernels",
    "software.dispatcher",
    "software.hidden_exchange",
    "software.delayed_weight_gradients",
    "software.dispatch_sms",
    *OPTIONS,
)
"""Terms that are keys of a workload, or words for them."""
OVERRIDES: Mapping[str, str] = {
    "nodes": "gpus",
    "gpus_per_node": "gpus",
    "replicas": "parallelism.dp",
    "shards": "parallelism.dp",
    "reshards": "parallelism.sharding",
    "rank_batch": "microbatch_size",
    "pipeline.schedule": "pipeline",
    "layers_per_chunk": "pipeline.chunks",
    "copies": "parallelism.shards",
    "embedding_counts": "parallelism.layers_per_stage",
    "head_counts": "parallelism.layers_per_stage",
    "first_layers": "parallelism.layers_per_stage",
    "last_layers": "parallelism.layers_per_stage",
    "stage_layout": "parallelism.layers_per_stage",
    "stage_modules": "parallelism.layers_per_stage",
    "recipe": "precision",
    "recomputed": "recomputation",
    "recomputed_by": "recomputation",
    "recomputed_layers": "recomputation",
    "recomputed_modules": "training.recompute_modules",
    "recomputed_every": "training.recompute_every",
    "sixteen_bit_states": "training.master_weights",
    "model.grouped": "model.num_key_value_heads",
    "model.expansion": "model.intermediate_size",
    "model.family": "model",
    "model.flavor": "model",
    "latent_head_dim": "model.head_dim",
    "expert_layers": "model.experts.dense_layers",
}
"""What people give in the place of terms that are no keys of a workload."""
CORE_ATTENTION = "core_attn"
"""Attention among the modules that Megatron Core recomputes."""
EVERY_LEFT = -1
"""GPUs that share weights: all that are not told otherwise."""
ALWAYS, NEVER, USUAL = "always", "never", "default"
HYBRID_OF = "weights are shared out over a part of the replicas (HSDP), how large is not said: taken as over all"


def keys_of(terms: TrainerTerms, lost: list[str]) -> dict[str, Any]:
    """Return the keys of a workload that terms give; what of them cannot be said is added to `lost`.

    The value of `model` is a mapping where the terms give the sizes of one.
    """
    keys = {name: terms[name] for name in PLAIN if terms.get(name) is not None}
    if (model := model_of(terms)) is not None:
        keys["model"] = model
    if keys.get("parallelism.tp", 1) == 1 or keys.get("parallelism.sequence_parallel") is False:  # nothing to overlap
        keys.pop(TENSOR_OVERLAP, None)
    keys |= expert_degrees(model, keys)
    if keys.get("software.dispatcher") != "flex":  # whose number a file may give with its default
        keys.pop("software.dispatch_sms", None)
    nodes, per_node = terms.get("nodes") or 1, terms.get("gpus_per_node")
    if "gpus" not in keys and isinstance(nodes, int) and isinstance(per_node, int):
        keys["gpus"] = nodes * per_node
    if keys.get("precision") == Precision.FP8 and terms.get("recipe") is not None:
        keys["precision"] = terms["recipe"]
    keys |= pipeline_keys(terms, lost)
    keys |= _recomputation(terms, keys, lost)
    keys |= _options(terms, keys, lost)
    if not keys.get("training.lora_rank"):  # what an adapter would be of, which a trainer has by itself
        keys.pop("training.lora_targets", None)
    keys |= _sharing(terms, keys, lost)
    keys |= _rank_batch(terms, keys)
    return keys


def terms_of(workload: Mapping[str, Any], gpus_per_node: int) -> dict[str, Any]:
    """Return every term that the keys of a workload give, the inverse of `keys_of`.

    Args:
        workload: plain values by dotted key, the number of blocks of each stage among them.
        gpus_per_node: GPUs of a node.
    """
    terms = {key: value for key, value in workload.items() if key in PLAIN or key.startswith("model.")}
    dp, pp = workload["parallelism.dp"], workload["parallelism.pp"]
    gpus = dp * math.prod(workload[key] for key in DEGREES)
    microbatch, batch = workload["microbatch_size"], workload["microbatch_size"] * workload["num_microbatches"]
    per_node = math.gcd(gpus, gpus_per_node)
    terms |= {
        "gpus": gpus,
        "nodes": gpus // per_node,
        "gpus_per_node": per_node,
        "global_batch_size": batch * dp,
        "rank_batch": batch if pp > 1 else microbatch,
        "pipeline.schedule": workload["pipeline.schedule"],
        "pipeline.chunks": workload["pipeline.chunks"],
        "parallelism.sharding": workload["parallelism.sharding"],
        "recomputation": workload["recomputation"],
        "recipe": workload["precision"],
        "software": workload.get("software.name"),
        "model.grouped": workload["model.num_key_value_heads"] != workload["model.num_attention_heads"],
        "model.expansion": workload["model.intermediate_size"] / workload["model.hidden_size"],
        # Megatron-LM asks for it whatever the positions are, and for as many as a sequence has.
        "model.max_positions": workload.get("model.max_positions") or workload["sequence_length"],
    }
    if workload["parallelism.tp"] == 1 or not workload["parallelism.sequence_parallel"]:
        terms[TENSOR_OVERLAP] = None  # Megatron-LM refuses it
    terms |= dict(expert_terms(workload))
    terms |= dict(layout_terms(workload)) | dict(_recomputation_terms(workload))
    return terms | _sharing_terms(workload) | dict(_option_terms(workload))


def _recomputation_terms(workload: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what says what is recomputed, a whole stage in pieces of a chunk's blocks where all have as many."""
    split, chunks = workload["parallelism.layers_per_stage"], workload["pipeline.chunks"]
    piece = split[0] // chunks if len(set(split)) == 1 else 1
    recomputation = workload["recomputation"]
    modules = workload.get("training.recompute_modules", [])
    first = workload.get("training.recompute_blocks")
    if recomputation == Recomputation.SELECTIVE or modules:
        yield "recomputed", "selective"
        if modules:
            yield "recomputed_modules", [*[CORE_ATTENTION] * (recomputation == Recomputation.SELECTIVE), *modules]
    elif recomputation == Recomputation.FULL and first is not None:
        yield "recomputed", "full"
        yield "recomputed_by", "block"
        yield "recomputed_layers", first
    elif recomputation != Recomputation.NONE:
        yield "recomputed", "full"
        yield "recomputed_by", "uniform"
        yield "recomputed_layers", piece if recomputation == Recomputation.STAGE else 1


def _recomputation(terms: TrainerTerms, keys: Mapping[str, Any], lost: list[str]) -> dict[str, Any]:
    """What a backward recomputes, where the terms are Megatron Core's."""
    said, modules = terms.get("recomputed"), terms.get("recomputed_modules") or [CORE_ATTENTION]
    if said == "selective":
        return _recomputed_modules(modules if isinstance(modules, list) else [modules], lost)
    if said != "full":
        return {"recomputation": said} if said else {}
    pp, layers, piece = terms.get("parallelism.pp") or 1, terms.get("model.num_layers"), terms.get("recomputed_layers")
    of_chunk = layers // (pp * keys.get("pipeline.chunks", 1)) if isinstance(layers, int) else None
    if not isinstance(piece, int) or piece == 1 or of_chunk is None:
        return {"recomputation": str(Recomputation.FULL)}
    if terms.get("recomputed_by") == "block":
        first = {"training.recompute_blocks": piece} if piece < of_chunk else {}
        return {"recomputation": str(Recomputation.FULL), **first}
    if piece >= of_chunk:
        return {"recomputation": str(Recomputation.STAGE)}
    lost.append(f"recomputation in pieces of {piece} blocks: taken as of one block at a time")
    return {"recomputation": str(Recomputation.FULL)}


def _recomputed_modules(modules: list[Any], lost: list[str]) -> dict[str, Any]:
    """What a backward recomputes of blocks by module."""
    parts = [str(module) for module in RecomputedModule]
    named = [module for module in modules if module in parts]
    if unknown := [str(module) for module in modules if module not in (*parts, CORE_ATTENTION)]:
        lost.append(
            f"recomputation of {', '.join(unknown)}: left out, so that memory is more and time less; modules that are "
            f"predicted are {', '.join((CORE_ATTENTION, *parts))}"
        )
    kind = Recomputation.SELECTIVE if CORE_ATTENTION in modules else Recomputation.NONE
    return {"recomputation": str(kind), **({"training.recompute_modules": named} if named else {})}


def _options(terms: TrainerTerms, keys: Mapping[str, Any], lost: list[str]) -> dict[str, Any]:
    """Options of a training that follow from several terms, or of which the trainer knows more than Kareus."""
    options: dict[str, Any] = {}
    every = terms.get("recomputed_every")
    if isinstance(every, int) and keys.get("recomputation") == Recomputation.SELECTIVE:
        options["recomputation"] = str(Recomputation.FULL)
        options |= {"training.recompute_every": every} if every > 1 else {}
    if terms.get("sixteen_bit_states"):
        options |= {"training.master_weights": str(MasterWeights.NONE), "training.moments": str(StateFormat.BF16)}
    targets = terms.get("training.lora_targets")
    targets = re.split(r"[\s,]+", targets.strip(" ,")) if isinstance(targets, str) else targets
    if isinstance(targets, list) and terms.get("training.lora_rank"):
        options["training.lora_targets"] = [target for target in targets if target in TARGETS] or list(LINEAR)
        if unknown := [str(target) for target in targets if target not in TARGETS]:
            lost.append(f"adapters of {', '.join(unknown)}: left out; those of {', '.join(LINEAR)} are predicted")
    return options


def _option_terms(workload: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what says options of a training in other words."""
    every = workload.get("training.recompute_every", 1)
    if every > 1 and workload["recomputation"] == Recomputation.FULL:
        yield "recomputation", str(Recomputation.SELECTIVE)
        yield "recomputed_every", every
    states = workload.get("training.master_weights"), workload.get("training.moments")
    if states == (MasterWeights.NONE, StateFormat.BF16):
        yield "sixteen_bit_states", True


def _sharing(terms: TrainerTerms, keys: Mapping[str, Any], lost: list[str]) -> dict[str, Any]:
    """What replicas share out, and how many there are."""
    shards, replicas = terms.get("shards"), terms.get("replicas") or 1
    if shards is None and terms.get("parallelism.sharding") == Sharding.FULL and terms.get("reshards") == NEVER:
        return {"parallelism.sharding": str(Sharding.GRADIENTS)}
    if HYBRID in (terms.get("reshards"), terms.get("parallelism.sharding")):
        return {"parallelism.sharding": HYBRID}
    if shards is None:
        kept = {name: terms[name] for name in ("parallelism.sharding",) if name in terms}
        return kept | _shards_of_copies(terms, keys, lost)
    pp, shared = keys.get("parallelism.pp", 1), dict[str, Any]()
    if shards == EVERY_LEFT and "gpus" in keys:
        rest = keys["gpus"] // (replicas * math.prod(keys.get(key, 1) for key in DEGREES))
        shards = rest if rest else shards
    if shards != EVERY_LEFT:
        shared["parallelism.dp"] = replicas * shards
    if replicas > 1 and shards == EVERY_LEFT:
        lost.append(HYBRID_OF)
    elif replicas > 1 and shards > 1:
        shared["parallelism.shards"] = shards
    if shards == 1:
        sharding = Sharding.NONE
    elif terms.get("reshards") == ALWAYS or (pp == 1 and terms.get("reshards") != NEVER):
        sharding = Sharding.FULL
    else:  # gathered weights stay from the first microbatch to the last, whose backward reduces the gradients
        sharding = Sharding.OPTIMIZER if pp > 1 else Sharding.GRADIENTS
    return shared | {"parallelism.sharding": str(sharding)}


def _shards_of_copies(terms: TrainerTerms, keys: Mapping[str, Any], lost: list[str]) -> dict[str, Any]:
    """Replicas that share out the optimizer where several groups of them do."""
    copies, gpus = terms.get("copies") or 1, keys.get("gpus")
    if copies == 1 or terms.get("parallelism.sharding", Sharding.NONE) == Sharding.NONE:
        return {}
    replicas = gpus // math.prod(keys.get(key, 1) for key in DEGREES) if isinstance(gpus, int) else 0
    if replicas <= copies or replicas % copies:
        lost.append(f"optimizers of {copies} groups of replicas, how many replicas there are is not said: taken as one")
        return {}
    return {"parallelism.shards": replicas // copies}


def _sharing_terms(workload: Mapping[str, Any]) -> dict[str, Any]:
    dp, pp, sharding = (workload[f"parallelism.{name}"] for name in ("dp", "pp", "sharding"))
    if sharding == Sharding.NONE:
        return {"replicas": dp, "shards": 1, "reshards": USUAL}
    reshards = {Sharding.FULL: ALWAYS if pp > 1 else USUAL, Sharding.GRADIENTS: NEVER, Sharding.OPTIMIZER: USUAL}
    shards = workload.get("parallelism.shards") or dp
    copies = dp // shards
    return {"replicas": copies, "shards": shards, "reshards": reshards[Sharding(sharding)], "copies": copies}


def _rank_batch(terms: TrainerTerms, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Microbatches of a trainer that gives the batch of a replica; without a pipeline it is one microbatch."""
    batch = terms.get("rank_batch")
    if not isinstance(batch, int):
        return {}
    microbatch = batch if keys.get("parallelism.pp", 1) == 1 else keys.get("microbatch_size", 1)
    batches = {"microbatch_size": microbatch}
    if "global_batch_size" not in keys and microbatch > 0 and batch % microbatch == 0:
        batches["num_microbatches"] = batch // microbatch
    return batches
