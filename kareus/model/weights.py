"""Weights: to and from Hugging Face checkpoints (safetensors), sharded as they are read; and drawn before a training.

Names are those of transformers' `LlamaForCausalLM` and `Qwen3ForCausalLM`. A weight of ours may hold several of theirs,
one below the other: queries, keys and values; gate and up.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from kareus.artifacts.files import write_atomically, write_json
from kareus.artifacts.records import content_hash
from kareus.errors import ArtifactError
from kareus.model.communication import Communicator, Mesh, group_rank, group_size
from kareus.model.config import Model
from kareus.model.experts import LatentAttention
from kareus.model.features import QkNormScope
from kareus.model.layers import INITIAL_STD
from kareus.model.published import PREFIX, Published, as_published, published, whole_weight
from kareus.model.weight_files import INDEX, SINGLE, check_file, indexed_files

EXPERTS = {"mlp.experts_gate_up.weight": ("gate_proj", "up_proj"), "mlp.experts_down.weight": ("down_proj",)}
"""Parameters of a block that hold weights of experts, and the names of these."""
CHOOSING = "mlp.choose.bias"
"""Parameter of a block by which experts are chosen, with which nothing is computed."""
ALONE = Mesh()
"""Of one GPU that holds everything."""
EMBEDDING, LM_HEAD, POSITIONS = "model.embed_tokens.weight", "lm_head.weight", "model.embed_positions.weight"
_MATRIX = 2
"""Dimensions of the weights that are drawn; norms start at one and biases at zero."""
_BIAS = "bias"
"""Ends the name of every bias."""


class OneExpert(NamedTuple):
    """Which expert of a block a weight is of."""

    number: int
    among: int
    """Experts of the block, which the GPUs of an expert-parallel group share out, whole."""


class Piece(NamedTuple):
    """A weight of a published checkpoint, within a parameter of ours."""

    name: str
    shape: tuple[int, ...]
    """Shape of the whole weight."""
    divided: int | None = None
    """Dimension that is divided over the tensor-parallel group; None if every GPU holds all of it."""
    expert: OneExpert | None = None
    """Whose it is, if it is an expert's."""


def pieces(model: Model, name: str, first_layer: int) -> tuple[Piece, ...]:
    """Return the tensors of a checkpoint that our parameter `name` holds.

    Args:
        model: the architecture.
        name: of a parameter of a stage, such as `blocks.0.mlp.down.weight`.
        first_layer: number of the stage's first block in the model.
    """
    hidden, vocabulary = model.hidden_size, model.vocab_size
    if not name.startswith("blocks."):
        ends = {
            "embedding.weight": Piece(EMBEDDING, (vocabulary, hidden), 0),
            "embedding.positions": Piece(POSITIONS, ((model.max_positions or 0) + model.position_offset, hidden)),
            "head.norm.weight": Piece("model.norm.weight", (hidden,)),
            "head.norm.bias": Piece("model.norm.bias", (hidden,)),
            "head.lm_head.bias": Piece("lm_head.bias", (vocabulary,), 0),
            "head.lm_head.weight": Piece(EMBEDDING if model.tie_embeddings else LM_HEAD, (vocabulary, hidden), 0),
        }
        return (ends[name],)
    _, block, rest = name.split(".", 2)
    parts = _expert_pieces(model, EXPERTS[rest]) if rest in EXPERTS else _block_pieces(model)[rest]
    return tuple(piece._replace(name=f"model.layers.{first_layer + int(block)}.{piece.name}") for piece in parts)


def is_of_experts(name: str) -> bool:
    """Return whether our parameter `name` holds experts, whose copies are on other ranks than those of the rest."""
    return name.split(".", 2)[-1] in EXPERTS


def moves_choices(name: str) -> bool:
    """Return whether experts are chosen by our parameter `name`, which is in fp32 whatever others are in."""
    return name.endswith(CHOOSING)


def load_weights(stage: nn.Module, model: Model, folder: Path, first_layer: int, mesh: Mesh = ALONE) -> None:
    """Read this GPU's shards of a stage's weights.

    Args:
        stage: with parameters named `embedding`, `blocks.<n>`, `head`, or some of them; their dtype stays.
        model: the architecture.
        folder: of the checkpoint.
        first_layer: number of the stage's first block in the model.
        mesh: of this GPU.

    Raises:
        ArtifactError: a file or a weight is missing, or has another shape.
    """
    files = _files_by_weight(folder)
    for path in sorted(set(files.values())):
        check_file(path)
    by_parameter = [
        (
            parameter.data,
            [(p, _place(published(model, p.name), files)) for p in held_pieces(model, name, first_layer, mesh)],
        )
        for name, parameter in stage.named_parameters()
    ]
    places = [place for _, parts in by_parameter for _, place in parts]
    for place in places:
        if place.name not in files:
            raise ArtifactError(f"{folder}: has no weight '{place.name}'; choose the checkpoint of {model.name}.")
    with ExitStack() as stack:
        paths = sorted({files[place.name] for place in places})
        opened = {path: stack.enter_context(_opened(path)) for path in paths}
        for weight, parts in by_parameter:
            fill_rows(weight, (_shard(opened[path := files[at.name]], p, at, path, mesh) for p, at in parts))


def fill_rows(weight: Tensor, shards: Iterable[Tensor]) -> None:
    """Write `shards`, one below the other, into `weight`; no more than one of them is in memory at once."""
    start = 0
    for shard in shards:
        weight[start : start + len(shard)].copy_(shard)
        start += len(shard)


def save_weights(stage: nn.Module, model: Model, path: Path, first_layer: int, mesh: Mesh = ALONE) -> None:
    """Write a stage's weights, whole; every rank of the tensor-parallel group calls this, its first one writes.

    Of experts these are those of the GPU.

    Args:
        stage: as in `load_weights`; likewise the next, `first_layer` and `mesh`.
        model: the architecture.
        path: the file to write, in the folder of the checkpoint.
        first_layer: see `stage`.
        mesh: see `stage`.
    """
    whole: dict[str, Tensor] = {}
    for name, parameter in stage.named_parameters():
        parts = held_pieces(model, name, first_layer, mesh)
        rows = [p.shape[0] // (group_size(mesh.tp) if p.divided == 0 else 1) for p in parts]
        for piece, shard in zip(parts, torch.split(parameter.detach(), rows), strict=True):
            whole[piece.name] = _whole(shard, piece, mesh.tp).cpu()
    if group_rank(mesh.tp) == 0:
        save_tensors(as_published(model, whole), path)


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a whole safetensors file or none.

    Raises:
        ArtifactError: the system refuses, as where the disk is full.
    """
    try:
        write_atomically(path, lambda partial: _save(tensors, partial))
    except SafetensorError as error:
        raise ArtifactError(
            f"{path}: cannot be written ({error}); check the path, its permissions and the space on its disk."
        ) from error


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a file with the process's usual permissions; safetensors makes it private."""
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(mode)


def save_index(folder: Path, files: Iterable[str]) -> None:
    """Write which of `files` has which weights; the last step of writing a checkpoint of several files."""
    weight_map: dict[str, str] = {}
    for file in files:
        with _opened(folder / file) as opened:
            weight_map |= dict.fromkeys(opened.keys(), file)
    write_json(folder / INDEX, {"metadata": {}, "weight_map": weight_map})


def held_pieces(model: Model, name: str, first_layer: int, mesh: Mesh) -> tuple[Piece, ...]:
    """Return those of `pieces` of which this GPU has a part: all, but of experts its own."""
    whole = pieces(model, name, first_layer)
    return tuple(p for p in whole if p.expert is None or p.expert.number in _experts(p.expert, mesh))


def own_part(piece: Piece, mesh: Mesh) -> tuple[slice, ...]:
    """Return the slice of a whole weight that this GPU holds, of those that it has a part of."""
    sizes, group = [slice(0, length) for length in piece.shape], mesh.tp
    if piece.divided is not None:
        size = piece.shape[piece.divided] // group_size(group)
        sizes[piece.divided] = slice(size * group_rank(group), size * (group_rank(group) + 1))
    return tuple(sizes)


def _experts(expert: OneExpert, mesh: Mesh) -> range:
    """Return the experts of a block that this GPU holds."""
    groups = expert.among // group_size(mesh.ep)
    return range(groups * group_rank(mesh.ep), groups * (group_rank(mesh.ep) + 1))


def _expert_pieces(model: Model, kinds: Sequence[str]) -> Iterator[Piece]:
    """Yield the pieces of all experts of a block, each one's in a row."""
    experts = model.experts
    assert experts is not None
    shapes = {"down_proj": (model.hidden_size, experts.width)}
    wide = (experts.width, model.hidden_size)
    for number in range(experts.count):
        for kind in kinds if model.activation.gated else kinds[-1:]:
            whose = OneExpert(number, experts.count)
            yield Piece(f"mlp.experts.{number}.{kind}.weight", shapes.get(kind, wide), expert=whose)


def _block_pieces(model: Model) -> dict[str, tuple[Piece, ...]]:
    """Return the pieces of every parameter that a block may have but for its experts, by its name in the block."""
    hidden, inner, query, key_value = (
        model.hidden_size,
        model.intermediate_size,
        model.query_width,
        model.key_value_width,
    )
    heads = (("self_attn.q_proj", query), ("self_attn.k_proj", key_value), ("self_attn.v_proj", key_value))
    gated = (("mlp.gate_proj", inner), ("mlp.up_proj", inner))
    whole = {
        "attention.norm": "input_layernorm",
        "attention.post_norm": "post_self_attn_layernorm",
        "mlp.norm": "post_attention_layernorm",
        "mlp.post_norm": "post_mlp_layernorm",
    }
    columns = {"attention.qkv": heads, "mlp.gate_up": gated, "mlp.up": gated[1:]}
    rows = {"attention.projection": ("self_attn.o_proj", model.attended_width), "mlp.down": ("mlp.down_proj", inner)}
    by_name: dict[str, tuple[Piece, ...]] = {}
    for kind, width in (("query", query), ("key", key_value)):
        shared = model.qk_norm_scope is QkNormScope.HEAD
        size, divided = (model.head_dim, None) if shared else (width, 0)
        by_name[f"attention.qk_norm.{kind}_weight"] = (Piece(f"self_attn.{kind[0]}_norm.weight", (size,), divided),)
    if model.latent_attention is not None:
        by_name |= _latent_pieces(model, model.latent_attention)
    if model.experts is not None:
        by_name["mlp.router.weight"] = (Piece("mlp.gate.weight", (model.experts.count, hidden)),)
        by_name[CHOOSING] = (Piece("mlp.gate.e_score_correction_bias", (model.experts.count,)),)
        by_name["mlp.shared_gate.weight"] = (Piece("mlp.shared_expert_gate.weight", (1, hidden)),)
        width = model.experts.shared_width
        beside = tuple((f"mlp.shared_experts.{kind}_proj", width) for kind in ("gate", "up"))
        columns |= {"mlp.shared_gate_up": beside, "mlp.shared_up": beside[1:]}
        rows["mlp.shared_down"] = ("mlp.shared_experts.down_proj", width)
    for ours, theirs in whole.items():
        for kind in ("weight", "bias"):
            by_name[f"{ours}.{kind}"] = (Piece(f"{theirs}.{kind}", (hidden,)),)
    for ours, parts in columns.items():
        by_name[f"{ours}.weight"] = tuple(Piece(f"{name}.weight", (width, hidden), 0) for name, width in parts)
        by_name[f"{ours}.bias"] = tuple(Piece(f"{name}.bias", (width,), 0) for name, width in parts)
    for ours, (name, width) in rows.items():
        by_name[f"{ours}.weight"] = (Piece(f"{name}.weight", (hidden, width), 1),)
        by_name[f"{ours}.bias"] = (Piece(f"{name}.bias", (hidden,)),)
    return by_name


def _latent_pieces(model: Model, latent: LatentAttention) -> dict[str, tuple[Piece, ...]]:
    """Return the pieces of attention that has latent vectors."""
    hidden, rank, shared = model.hidden_size, latent.query_rank, latent.key_value_rank
    name, made = ("q_proj", model.query_width) if rank is None else ("q_a_proj", rank)
    both = model.num_attention_heads * (model.head_dim - latent.rotary_dim + latent.value_dim)
    whole = {
        "latent.weight": ((name, (made, hidden)), ("kv_a_proj_with_mqa", (shared + latent.rotary_dim, hidden))),
        "latent_norm.query_weight": (("q_a_layernorm", (made,)),),
        "latent_norm.key_value_weight": (("kv_a_layernorm", (shared,)),),
        "query_up.weight": (("q_b_proj", (model.query_width, made)),),
        "key_value_up.weight": (("kv_b_proj", (both, shared)),),
    }
    return {
        f"attention.{ours}": tuple(
            # what makes heads of latent vectors is divided as heads are; the vectors are of all heads
            Piece(f"self_attn.{theirs}.weight", shape, 0 if "_up" in ours else None)
            for theirs, shape in parts
        )
        for ours, parts in whole.items()
    }


def _files_by_weight(folder: Path) -> dict[str, Path]:
    if (indexed := indexed_files(folder)) is not None:
        return indexed
    with _opened(folder / SINGLE) as file:
        return dict.fromkeys(file.keys(), folder / SINGLE)


def _opened(path: Path) -> Any:
    check_file(path)
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ArtifactError(f"{path}: not a safetensors file ({error}); download the checkpoint again.") from error


def _place(place: Published, files: dict[str, Path]) -> Published:
    """Leave out the prefix of a name that an older checkpoint has without it."""
    bare = place.name.removeprefix(PREFIX)
    return place._replace(name=bare) if place.name not in files and bare in files else place


def _shard(file: Any, piece: Piece, place: Published, path: Path, mesh: Mesh) -> Tensor:
    try:
        stored = file.get_slice(place.name)
    except SafetensorError as error:
        raise ArtifactError(f"{path}: has no weight '{place.name}'; download the checkpoint again.") from error
    sizes, (rows, *columns) = tuple(stored.get_shape()), piece.shape
    whole = (place.rows or rows, *columns)
    if sizes != (whole[::-1] if place.transposed else whole):
        raise ArtifactError(f"{path}: {place.name} has the shape {sizes}, the model {whole}; choose its checkpoint.")
    if not place.is_plain:
        weight = whole_weight(place, piece.shape, _tensor(file.get_tensor(place.name)))
        return (weight + place.less if place.less else weight)[own_part(piece, mesh)]
    first, *others = own_part(piece, mesh)
    slices = (slice(place.first_row + first.start, place.first_row + first.stop), *others)
    return _tensor(stored[slices[::-1]]).t() if place.transposed else _tensor(stored[slices])


def _tensor(value: Any) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def _whole(shard: Tensor, piece: Piece, group: Communicator | None) -> Tensor:
    shard = shard.contiguous()
    if group is None or piece.divided is None:
        return shard.clone()
    (by_rank,) = group.all_gather((shard,)).wait()
    return torch.cat(tuple(by_rank), dim=piece.divided)


def draw_weights(stage: nn.Module, model: Model, seed: int, first_layer: int, mesh: Mesh = ALONE) -> None:
    """Initialise a stage's weights: each matrix is drawn whole by its own generator, and this GPU keeps its shard.

    Args:
        stage: as `kareus.model.weights.load_weights` takes it, or a part of one; likewise the others.
        model: the architecture.
        seed: of the training.
        first_layer: number of the stage's first block in the model.
        mesh: of this GPU.
    """
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            if parameter.dim() == _MATRIX:
                parts = held_pieces(model, name, first_layer, mesh)
                fill_rows(parameter, (_drawn(piece, seed, mesh) for piece in parts))
            else:
                parameter.fill_(0 if name.endswith(_BIAS) else 1)


def _drawn(piece: Piece, seed: int, mesh: Mesh) -> Tensor:
    generator = torch.Generator().manual_seed(int(content_hash((seed, piece.name)), 16) >> 1)
    return torch.empty(piece.shape).normal_(std=INITIAL_STD, generator=generator)[own_part(piece, mesh)]
