"""Blocks of stages and chunks: as keys, as terms, and as the texts or names of modules by which trainers place them.

Terms are:

- `layers_per_chunk`, `first_layers`, `last_layers`, `even_layers`, `embedding_counts`, `head_counts`: blocks of chunks
  and stages, which are even but for the ends, and whether embedding and head count as one (Megatron Core).
- `stage_layout`, `stage_modules`: blocks of every chunk by a text (likewise), and by names of modules (torchtitan).

Megatron Core has a text (`pipeline_model_parallel_layout`): `Et*3|(tt|)*29,m|L`. `|` ends a chunk. `E` is the
embedding, `t` a block, `m` one that predicts a further token, `L` the LM head with the loss. `x*3` and `(x)*3` stand
for as many; commas mean nothing. Source: Megatron Core's user guide, "Custom Pipeline Model Parallel Layout".
torchtitan names the modules of each chunk (`parallelism.module_fqns_per_model_part`).
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kareus.graph.instruction import place_in_line
from kareus.interchange.model_terms import TrainerTerms
from kareus.model.config import MOST_BLOCKS
from kareus.model.parallelism import Parallelism
from kareus.pipeline.config import CHUNKS_OF_V, PipelineSchedule
from kareus.profile.programs import chunk_shapes

_REPEATED = re.compile(r"(?:\(([^()]*)\)|([EtmL|]))\*(\d{1,4})")
_PLAIN = re.compile(r"E?[t|]*m*L?")
_BLOCK = re.compile(r"layers\.(\d{1,5})")
FIRST, LAST = ("tok_embeddings",), ("norm", "lm_head")
"""Modules before and after the blocks."""
OUTPUT = "output"
"""The LM head in former versions of torchtitan."""


def layout_text(split: Sequence[int], chunks: int, stages: int | None = None, further: int = 0) -> str:
    """Return the text of blocks on each stage, or each chunk, in so many chunks; of `stages`, if not one an entry.

    The last chunk has `further` blocks that predict further tokens.

    Examples:
        >>> layout_text([7, 8, 8, 5], 1), layout_text([2, 4], 2, further=1), layout_text([2, 2, 3, 1], 2, 2)
        ('Et*7|t*8|t*8|t*5L', 'Et|t*2|t|t*2mL', 'Et*2|t*2|t*3|tL')
    """
    placed = blocks_in_line(split, chunks, stages)
    return "E" + "|".join(f"t*{blocks}" if blocks > 1 else "t" for blocks in placed) + "m" * further + "L"


def layout_split(text: str, stages: int) -> tuple[list[int], int] | None:
    """Return blocks on each stage, or on each chunk where those of a stage are not equal, and chunks.

    None where no split of Kareus is so: a chunk has no block, but for the ends of equal chunks, or embedding, head or
    what predicts further tokens are elsewhere than at the ends.

    Examples:
        >>> layout_split("Et*3|(tt|)*2t,L", 4), layout_split("Et*3|t|t|t*2L", 2), layout_split("Et*3|(tt|)*29,m|L", 16)
        (([3, 2, 2, 1], 1), ([3, 1, 1, 2], 2), None)
        >>> layout_split("E|t|t|L", 2)
        ([1, 1], 2)
    """
    text = _written_out(text)
    blocks = [chunk.count("t") for chunk in text.split("|")]
    if not _PLAIN.fullmatch(text) or len(blocks) % stages:
        return None
    split = split_of(blocks, stages)
    return (split, len(blocks) // stages) if min(split) else None


def chunk_blocks(text: str) -> list[int]:
    """Return the blocks of every chunk of a text, whatever else they have; none of a text without any.

    Example:
        >>> chunk_blocks("Et*3|(tt|)*2mL"), chunk_blocks("")
        ([3, 2, 2, 0], [])
    """
    text = _written_out(text)
    return [chunk.count("t") for chunk in text.split("|")] if "t" in text else []


def _written_out(text: str) -> str:
    """Return a text without repetitions, commas and blanks."""
    text = re.sub(r"[,\s]", "", text)
    while (repeated := _REPEATED.search(text)) and len(text) <= MOST_BLOCKS:
        text = text[: repeated.start()] + (repeated[1] or repeated[2] or "") * int(repeated[3]) + text[repeated.end() :]
    return text


def chunk_modules(
    split: Sequence[int], chunks: int, stages: int | None = None, *, folded: bool = False
) -> list[list[str]]:
    """Return the names of torchtitan's modules in each chunk.

    Examples:
        >>> chunk_modules([2, 1], 1)
        [['tok_embeddings', 'layers.0', 'layers.1'], ['layers.2', 'norm', 'lm_head']]
    """
    ends = itertools.accumulate(blocks_in_line(split, chunks, stages, folded=folded), initial=0)
    parts = [[f"layers.{n}" for n in range(*span)] for span in itertools.pairwise(ends)]
    return [[*FIRST, *parts[0]], *parts[1:-1], [*parts[-1], *LAST]] if len(parts) > 1 else [[*FIRST, *parts[0], *LAST]]


def modules_split(parts: Any, stages: int, *, folded: bool = False) -> tuple[list[int], int] | None:
    """Return what `layout_split` does, of names of modules; None also where blocks are not in their order.

    Examples:
        >>> modules_split([["tok_embeddings", "layers.0", "layers.1"], ["layers.2", "norm", "output"]], 2)
        ([2, 1], 1)
    """
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts) or len(parts) % stages:
        return None
    named = [[LAST[-1] if name == OUTPUT else str(name) for name in part] for part in parts]
    blocks = [sum(_BLOCK.fullmatch(name) is not None for name in part) for part in named]
    chunks = len(parts) // stages
    if not blocks or min(blocks) == 0 or named != chunk_modules(blocks, chunks, stages, folded=folded):
        return None
    return split_of(blocks, stages, folded=folded), chunks


def split_of(blocks: list[int], stages: int, *, folded: bool = False) -> list[int]:
    """Return blocks on each stage where they give these blocks on each chunk, else the latter."""
    of_stages = Parallelism.summed(blocks, stages, folded=folded)
    same = blocks_in_line(of_stages, len(blocks) // stages, folded=folded) == blocks
    return list(of_stages) if same else blocks


def blocks_in_line(split: Sequence[int], chunks: int, stages: int | None = None, *, folded: bool = False) -> list[int]:
    """Return the blocks of every chunk, in the order in which a microbatch passes them."""
    shapes = chunk_shapes(split, chunks, folded=folded, stages=stages)
    count = stages or len(split)
    return [
        shapes[at].layers for at in sorted(shapes, key=lambda at: place_in_line(at[0], at[1], count, folded=folded))
    ]


def pipeline_keys(terms: TrainerTerms, lost: list[str]) -> dict[str, Any]:
    """Return the keys that say the schedule, its chunks and the blocks of the stages."""
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
        lost.append(f"blocks of each stage by a text ({text}): taken as balanced")
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


def layout_terms(workload: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the terms that say how blocks lie on stages and chunks."""
    split, chunks = list(workload["parallelism.layers_per_stage"]), workload["pipeline.chunks"]
    pp, schedule = workload["parallelism.pp"], PipelineSchedule(workload["pipeline.schedule"])
    if pp > 1:
        yield "stage_modules", chunk_modules(split, chunks, pp, folded=schedule.folds)
    with_ends = {split[0] + 1, *split[1:-1], split[-1] + 1}
    counts_ends = chunks > 1 and len(with_ends) == 1 and split[0] % chunks > 0 and max(with_ends) % chunks == 0
    is_whole = counts_ends or not any(blocks % chunks for blocks in split)  # as Megatron Core asks of a stage's chunks
    if not schedule.folds and (len(split) > pp or not is_whole):
        yield "stage_layout", layout_text(split, chunks, pp, workload.get("model.mtp_layers", 0))
        yield "pipeline.chunks", 1  # the text says how many there are
    elif counts_ends:
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
