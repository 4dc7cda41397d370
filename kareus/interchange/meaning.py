"""Meanings of trainers' keys in other products than Kareus, in both directions.

A table gives each key of a trainer a *term*: a dotted key of a workload, or one of the terms below, from which keys of
a workload follow. `keys_of` goes from terms to keys, `terms_of` from keys to terms, so that reading what was written
gives the same keys.

- `nodes`, `gpus_per_node`, `gpus`: of the job.
- `copies`: groups of replicas that each share out the optimizer (Megatron Core).
- `replicas`, `shards`, `reshards`: replicas that hold weights whole, GPUs that share them out (-1: all that are left),
  and when gathered weights are dropped (FSDP of PyTorch).
- `rank_batch`: sequences of a replica between two steps of gradient accumulation, cut in microbatches by a pipeline.
- `layers_per_chunk`, `first_layers`, `last_layers`, `even_layers`, `embedding_counts`, `head_counts`: blocks of chunks
  and stages, which are even but for the ends, and whether embedding and head count as one (Megatron Core).
- `stage_layout`, `stage_modules`: blocks of every chunk by a text (likewise), and by names of modules (torchtitan).
- `recipe`: of formats of 8 bits the one that is meant, where another setting says that there are any (Megatron Core).
- `recomputed`, `recomputed_by`, `recomputed_layers`, `recomputed_modules`: what is recomputed, in pieces of how many
  blocks, or of them how many, and which modules (likewise); `recomputed_every`: every so manieth block, where parts are
  recomputed (torchtitan).
- `expert_layers`: which blocks have experts, by a list or as every so manieth; `model.latent_attention.used` and
  `latent_head_dim`: whether attention is latent, and the values of a head that do not rotate (Megatron Core).
- `sixteen_bit_states`: whether weights are trained in 16 bits, with moments in 16 bits and nothing beside them.
- `model`: an option of the group `model`, or a file; `model.*`: fields of its record, and `model.expansion`, the width
  of the MLP over the hidden size, `model.grouped`, whether `model.num_key_value_heads` counts, and `model.family` and
  `model.flavor`, by which torchtitan names models.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.interchange.stage_layout import chunk_modules, layout_split, layout_text, modules_split
from kareus.model.config import HYBRID, MOST_BLOCKS, ActivationKind, Sharding
from kareus.model.training_options import (
    FUSED,
    LINEAR,
    SAME,
    MasterWeights,
    RecomputedModule,
    StateFormat,
    TrainingOptions,
)
from kareus.pipeline.config import CHUNKS_OF_V, PipelineSchedule
from kareus.software.record import Dispatcher

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
    "layers_per_chunk": "pipeline.chunks",
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
}
"""What people give in the place of terms that are no keys of a workload."""
CORE_ATTENTION = "core_attn"
"""Attention among the modules that Megatron Core recomputes."""
TARGETS = (*LINEAR, *FUSED, *SAME)
"""Names of products that may have adapters."""
EVERY_LEFT = -1
"""GPUs that share weights: all that are not told otherwise."""
ALWAYS, NEVER, USUAL = "always", "never", "default"
HYBRID_OF = "weights are shared out over a part of the replicas (HSDP), how large is not said: taken as over all"
LLAMA: Mapping[str, Any] = {
    "tie_embeddings": False,
    "qk_norm": False,
    "qkv_bias": False,
    "norm_epsilon": 1e-5,
    "rotary_base": 10_000.0,
    "rotary_scaling": None,
    "layers_per_stage": {},
}
"""Fields of a model that a file need not have."""
SIZES = ("hidden_size", "num_layers", "num_attention_heads", "vocab_size")
"""Fields without which there is no model."""
OF_EXPERTS = "experts."
LATENT = "latent_attention."
"""Begin the fields of a model that are its experts' and its latent attention's."""
LATENT_USUAL: Mapping[str, Any] = {"query_rank": None, "key_value_rank": 32, "rotary_dim": 64, "value_dim": 128}
LATENT_HEAD_DIM = 128
"""Sizes of latent attention that no key gives (Megatron-LM, `megatron/training/arguments.py`)."""
RUN = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?")
"""Part of a text on which blocks have experts."""
TrainerTerms = Mapping[str, Any]


def keys_of(terms: TrainerTerms, lost: list[str]) -> dict[str, Any]:
    """Return the keys of a workload that terms give; what of them cannot be said is added to `lost`.

    The value of `model` is a mapping where the terms give the sizes of one.
    """
    keys = {name: terms[name] for name in PLAIN if terms.get(name) is not None}
    if (model := _model(terms)) is not None:
        keys["model"] = model
    if keys.get("parallelism.tp", 1) == 1 or keys.get("parallelism.sequence_parallel") is False:  # nothing to overlap
        keys.pop(TENSOR_OVERLAP, None)
    keys |= _expert_degrees(model, keys)
    if keys.get("software.dispatcher") != "flex":  # whose number a file may give with its default
        keys.pop("software.dispatch_sms", None)
    nodes, per_node = terms.get("nodes") or 1, terms.get("gpus_per_node")
    if "gpus" not in keys and isinstance(nodes, int) and isinstance(per_node, int):
        keys["gpus"] = nodes * per_node
    if keys.get("precision") == Precision.FP8 and terms.get("recipe") is not None:
        keys["precision"] = terms["recipe"]
    keys |= _pipeline(terms, lost)
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
    terms |= dict(_expert_terms(workload))
    return terms | dict(_layer_terms(workload)) | _sharing_terms(workload) | dict(_option_terms(workload))


def _expert_degrees(model: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensor parallelism of experts where nothing says it: that of the rest of a model (Megatron Core)."""
    is_given = "parallelism.etp" in keys or not isinstance(model, Mapping) or "experts" not in model
    return {} if is_given else {"parallelism.etp": keys.get("parallelism.tp", 1)}


def _pipeline(terms: TrainerTerms, lost: list[str]) -> dict[str, Any]:
    """Schedule, chunks and blocks of the stages."""
    pp, layers = terms.get("parallelism.pp") or 1, terms.get("model.num_layers")
    schedule = terms.get("pipeline.schedule") or str(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD)
    chunks, piece = terms.get("pipeline.chunks"), terms.get("layers_per_chunk")
    interleaves = schedule == PipelineSchedule.INTERLEAVED
    if piece and chunks is None and isinstance(layers, int):
        chunks = max(layers // (pp * piece), 1)
    elif piece and chunks is None:
        taken = "two chunks" if interleaves else "one chunk"
        lost.append(f"blocks of a virtual stage, where the number of blocks is not given: taken as {taken} a stage")
    if chunks is None and interleaves:
        chunks = 2
    folds = any(schedule == kind for kind in PipelineSchedule if kind.folds)
    if pp > 1 and terms.get("stage_layout") is not None:
        return _laid_out(str(terms["stage_layout"]), pp, lost)
    if pp == 1:
        return {"pipeline": str(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD)}
    keys: dict[str, Any] = {"pipeline": schedule}
    if (named := _by_modules(terms, pp, lost)) is not None:
        return keys | named
    if folds:
        return keys | {"pipeline.chunks": CHUNKS_OF_V}
    if chunks is not None and chunks > 1:
        keys = {"pipeline": str(PipelineSchedule.INTERLEAVED), "pipeline.chunks": chunks}
    elif interleaves:
        keys = {"pipeline": str(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD)}
    split = _split(terms, pp, layers)
    return keys | ({"parallelism.layers_per_stage": split} if split else {})


def _by_modules(terms: TrainerTerms, stages: int, lost: list[str]) -> dict[str, Any] | None:
    """Return what names of modules say of the blocks of each chunk; None if nothing that fits the schedule."""
    if terms.get("stage_modules") is None:
        return None
    schedule = PipelineSchedule(terms.get("pipeline.schedule") or PipelineSchedule.ONE_FORWARD_ONE_BACKWARD)
    most = CHUNKS_OF_V if schedule.folds else MOST_BLOCKS if schedule is PipelineSchedule.INTERLEAVED else 1
    split, chunks = modules_split(terms["stage_modules"], stages, folded=schedule.folds) or ([], 0)
    if not min(most, CHUNKS_OF_V) <= chunks <= most:
        lost.append("modules of each stage by name, which are no whole blocks in their order: taken as balanced")
        return None
    return ({"pipeline.chunks": chunks} if chunks > 1 else {}) | {"parallelism.layers_per_stage": split}


def _laid_out(text: str, stages: int, lost: list[str]) -> dict[str, Any]:
    """Return what a text says of the blocks of each chunk."""
    placed = layout_split(text, stages)
    if placed is None:
        lost.append(f"blocks of each stage by a text ({text}): taken as even")
        return {"pipeline": str(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD)}
    split, chunks = placed
    schedule = PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
    several = {"pipeline.chunks": chunks} if chunks > 1 else {}
    return {"pipeline": str(schedule), **several, "parallelism.layers_per_stage": split}


def _split(terms: TrainerTerms, pp: int, layers: Any) -> list[Any] | None:
    """Blocks of the stages of software that gives all stages the same, but for what the first and the last are told."""
    first, last = terms.get("first_layers"), terms.get("last_layers")
    if not terms.get("even_layers") or not isinstance(layers, int):
        return None
    ends = [bool(terms.get("embedding_counts")), bool(terms.get("head_counts"))]
    middle, places = layers + sum(ends), pp
    for end in (first, last):
        if isinstance(end, int):
            middle, places = middle - end, places - 1
    if places == 0 and middle == sum(ends):
        return [first, last]
    if places < 1 or middle % places:
        return None
    whole = middle // places
    split = [whole] * pp
    split[0] = first if isinstance(first, int) else whole - ends[0]
    split[-1] = last if isinstance(last, int) else split[-1] - ends[1]
    return split if sum(split) == layers and min(split) > 0 else None


def _layer_terms(workload: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what says how blocks lie on stages and chunks, and what of them is recomputed."""
    split, chunks = list(workload["parallelism.layers_per_stage"]), workload["pipeline.chunks"]
    pp, schedule = workload["parallelism.pp"], PipelineSchedule(workload["pipeline.schedule"])
    if pp > 1:
        yield "stage_modules", chunk_modules(split, chunks, pp, folded=schedule.folds)
    with_ends = {split[0] + 1, *split[1:-1], split[-1] + 1}
    if len(split) > pp and not schedule.folds:
        yield "stage_layout", layout_text(split, chunks, pp, workload.get("model.mtp_layers", 0))
        yield "pipeline.chunks", 1  # the text says how many there are
    elif chunks > 1 and len(with_ends) == 1 and split[0] % chunks:
        yield "layers_per_chunk", max(with_ends) // chunks
        yield "embedding_counts", True
        yield "head_counts", True
    elif chunks > 1 and len(set(split)) == 1:
        yield "layers_per_chunk", split[0] // chunks
    elif len(split) > 1 and len(set(split)) > 1 and len(set(split[1:-1])) <= 1:
        yield "first_layers", split[0]
        yield "last_layers", split[-1]
    elif len(set(split)) > 1:
        yield "stage_layout", layout_text(split, chunks, pp, workload.get("model.mtp_layers", 0))
        yield "pipeline.chunks", 1  # the text says how many there are
    yield from _recomputation_terms(workload, split[0] // chunks if len(set(split)) == 1 else 1)


def _recomputation_terms(workload: Mapping[str, Any], piece: int) -> Iterator[tuple[str, Any]]:
    """Yield what says what is recomputed, a whole stage in pieces of so many blocks."""
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


def _model(terms: TrainerTerms) -> Any:
    """Return the record of a model as plain values, the option that is named, or nothing."""
    fields = {key.removeprefix("model."): value for key, value in terms.items() if key.startswith("model.")}
    expansion, grouped = fields.pop("expansion", None), fields.pop("grouped", True)
    family, flavor = fields.pop("family", None), fields.pop("flavor", None)
    if flavor is not None:
        return f"{family or ''} {flavor}".strip()
    if not all(isinstance(fields.get(size), int) for size in SIZES):
        return terms.get("model")
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    if not grouped or fields.get("num_key_value_heads") is None:
        fields["num_key_value_heads"] = heads
    if fields.get("head_dim") is None:
        fields["head_dim"] = hidden // heads if heads else 0
    if fields.get("intermediate_size") is None:
        fields["intermediate_size"] = _width(hidden, expansion, fields.get("activation"))
    if fields.get("positions", "rope") != "learned":
        fields.pop("max_positions", None)
    fields = _with_experts(_with_latent_attention(fields, terms), terms)
    return {**LLAMA} | {name: value for name, value in fields.items() if value is not None or name in LLAMA}


def _part(fields: Mapping[str, Any], beginning: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields that do not begin so, and those that do, without the beginning, where they have a value."""
    part = {name.removeprefix(beginning): value for name, value in fields.items() if name.startswith(beginning)}
    others = {name: value for name, value in fields.items() if not name.startswith(beginning)}
    return others, {name: value for name, value in part.items() if value is not None}


def _with_latent_attention(fields: Mapping[str, Any], terms: TrainerTerms) -> dict[str, Any]:
    """Return the fields with those of latent attention as one, where it is used."""
    others, latent = _part(fields, LATENT)
    if not latent.pop("used", False):
        return others
    latent = {**LATENT_USUAL, **latent}
    others["head_dim"] = (terms.get("latent_head_dim") or LATENT_HEAD_DIM) + latent["rotary_dim"]
    # Norms of the latent vectors are its own: `qk_layernorm` adds none.
    return others | {"latent_attention": latent, "num_key_value_heads": others["num_attention_heads"], "qk_norm": False}


def _with_experts(fields: Mapping[str, Any], terms: TrainerTerms) -> dict[str, Any]:
    """Return the fields with those of experts as one: two for each token, as wide as the MLP (Megatron Core)."""
    others, experts = _part(fields, OF_EXPERTS)
    if experts.get("count", 1) == 1:
        return others
    dense = _dense_layers(terms.get("expert_layers"), others["num_layers"])
    experts = {"per_token": 2, "width": others["intermediate_size"], **experts}
    if dense:
        return others | {"experts": {**experts, "dense_layers": dense}}
    return others | {"experts": experts, "intermediate_size": experts["width"]}


def _dense_layers(said: Any, layers: int) -> list[int]:
    """Return the blocks without experts: those of a 0, by a list or its text, or all but every so manieth.

    Example:
        >>> _dense_layers("([0]*3+[1]*2)", 5), _dense_layers(2, 5), _dense_layers(None, 5)
        ([0, 1, 2], [1, 3], [])
    """
    if isinstance(said, str):
        text = re.sub(r"[\s()]", "", said)
        parts = [RUN.fullmatch(part) for part in text.split("+")]
        said = [bit for part in parts if part for bit in part[1].split(",") * int(part[2] or 1)]
    if isinstance(said, list):
        return [layer for layer, bit in enumerate(said[:layers]) if not int(bit)]
    return [layer for layer in range(layers) if layer % said] if isinstance(said, int) and said > 1 else []


def _expert_terms(workload: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what trainers take otherwise of experts where nobody says it, and what says which blocks have them.

    How wide heads of latent attention are, too.
    """
    if "model.experts.count" in workload:  # plain values leave these out at their defaults
        yield "parallelism.etp", workload.get("parallelism.etp", 1)
        yield "software.dispatcher", workload.get("software.dispatcher", str(Dispatcher.ALL_TO_ALL))
    if dense := workload.get("model.experts.dense_layers"):
        bits = [int(layer not in dense) for layer in range(workload["model.num_layers"])]
        runs = [(bit, len(list(run))) for bit, run in itertools.groupby(bits)]
        yield "expert_layers", "(" + "+".join(f"[{bit}]*{length}" for bit, length in runs) + ")"
    if (rotary := workload.get(f"model.{LATENT}rotary_dim")) is not None:
        yield f"model.{LATENT}used", True
        yield "latent_head_dim", workload["model.head_dim"] - rotary
        yield "model.head_dim", None


def _width(hidden: int, expansion: Any, activation: Any) -> int:
    """Width of an MLP that no key gives: four times the hidden size, with a gate two thirds of that (Megatron Core)."""
    if isinstance(expansion, (int, float)):
        return round(hidden * expansion)
    is_gated = activation in tuple(kind for kind in ActivationKind if kind.gated)
    return int(4 * hidden * 2 / 3 / 64) * 64 if is_gated else 4 * hidden
