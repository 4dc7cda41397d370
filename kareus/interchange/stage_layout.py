"""Blocks of each chunk, in the order in which a microbatch passes them: by a text, or by the names of modules.

Megatron Core has a text (`pipeline_model_parallel_layout`): `Et*3|(tt|)*29,m|L`. `|` ends a chunk. `E` is the
embedding, `t` a block, `m` one that predicts a further token, `L` the LM head with the loss. `x*3` and `(x)*3` stand
for as many; commas mean nothing. Source: Megatron Core's user guide, "Custom Pipeline Model Parallel Layout".
torchtitan names the modules of each chunk (`parallelism.module_fqns_per_model_part`).
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any

from kareus.graph.instruction import place_in_line
from kareus.model.config import MOST_BLOCKS, Parallelism
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
