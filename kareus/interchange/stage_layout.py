"""Blocks of each chunk by a text, as Megatron Core has them (`pipeline_model_parallel_layout`): `Et*3|(tt|)*29,m|L`.

`|` ends a chunk; the first chunks of all stages come before the second ones. `E` is the embedding, `t` a block, `m` one
that predicts a further token, `L` the LM head with the loss. `x*3` and `(x)*3` stand for as many; commas mean nothing.
Source: Megatron Core's user guide, "Custom Pipeline Model Parallel Layout".
"""

import re
from collections.abc import Sequence

from kareus.model.config import MOST_BLOCKS
from kareus.profile.programs import chunk_shapes

_REPEATED = re.compile(r"(?:\(([^()]*)\)|([EtmL|]))\*(\d{1,4})")
_PLAIN = re.compile(r"E?[t|]*m*L?")


def layout_text(split: Sequence[int], chunks: int, further: int = 0) -> str:
    """Return the text of blocks on each stage, in so many chunks, with `further` that predict further tokens.

    Examples:
        >>> layout_text([7, 8, 8, 5], 1), layout_text([2, 4], 2, 1)
        ('Et*7|t*8|t*8|t*5L', 'Et|t*2|t|t*2mL')
    """
    return (
        "E" + "|".join(f"t*{blocks}" if blocks > 1 else "t" for blocks in _blocks(split, chunks)) + "m" * further + "L"
    )


def layout_split(text: str, stages: int) -> tuple[list[int], int] | None:
    """Return blocks on each stage, and chunks; None where no split of Kareus is so.

    That is where a chunk between the ends or a stage has no block, embedding, head or what predicts further tokens are
    elsewhere than at the ends, or chunks of a stage differ by more than embedding and head.

    Examples:
        >>> layout_split("Et*3|(tt|)*2t,L", 4), layout_split("Et*3|(tt|)*29,m|L", 16)
        (([3, 2, 2, 1], 1), None)
        >>> layout_split("E|t|t|L", 2)
        ([1, 1], 2)
    """
    text = _written_out(text)
    blocks = [chunk.count("t") for chunk in text.split("|")]
    if not _PLAIN.fullmatch(text) or len(blocks) % stages:
        return None
    chunks = len(blocks) // stages
    split = [sum(blocks[stage::stages]) for stage in range(stages)]
    return (split, chunks) if min(split) and _blocks(split, chunks) == blocks else None


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
    while (found := _REPEATED.search(text)) and len(text) <= MOST_BLOCKS:
        text = text[: found.start()] + (found[1] or found[2] or "") * int(found[3]) + text[found.end() :]
    return text


def _blocks(split: Sequence[int], chunks: int) -> list[int]:
    """Return the blocks of every chunk, in the order in which a microbatch passes them."""
    shapes = chunk_shapes(split, chunks)
    return [shapes[stage, chunk].layers for chunk in range(chunks) for stage in range(len(split))]
