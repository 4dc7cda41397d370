"""Recomputation: what of its forward a backward runs again instead of finding it kept."""

from dataclasses import replace
from enum import StrEnum

from kareus.graph.records import WEIGHT_GRADIENT_SUFFIX, BlockGraph, Operator, Segment

AGAIN_SUFFIX = ".again"
"""Ends the name of an operator of the forward that a segment of the backward runs again."""
PROJECTION_WEIGHT_GRADIENT = f"projection{WEIGHT_GRADIENT_SUFFIX}"
"""Operator of a backward that reads the output of attention, as does the gradient of attention."""


FURTHER_BLOCK = "mtp-block-"
"""Begins names of segments beside the LM head that are a block which predicts a further token, or what enters it."""


class Recomputation(StrEnum):
    """What a backward recomputes; of a split one, the input gradients do."""

    NONE = "none"
    """Nothing: everything that a backward reads is kept from the forward."""
    SELECTIVE = "selective"
    """Attention alone, in every block: it keeps queries, keys and values, not its output (Korthikanti et al., 2022)."""
    FULL = "full"
    """The forward of every block, from the block's input, right before the block runs backward."""
    STAGE = "stage"
    """The whole forward of the stage (or of its chunk), from its input, before the last block runs backward."""

    @property
    def repeats_blocks(self) -> bool:
        """Whether the whole forward of every block is run again, so that its operators keep nothing for backward."""
        return self in (Recomputation.FULL, Recomputation.STAGE)


def recomputed_blocks(layers: int, every: int = 1, first: int | None = None) -> tuple[bool, ...]:
    """Return whether each of the blocks of a stage, or of its chunk, is recomputed.

    torchtitan counts blocks and takes each `every`-th (`activation_checkpoint.selective_ac_option`); Megatron takes the
    first of each chunk (`--recompute-method block`).
    """
    last = layers if first is None else min(first, layers)
    return tuple(block < last and (block + 1) % every == 0 for block in range(layers))


def block_backward(graph: BlockGraph, recomputation: Recomputation) -> tuple[Segment, ...]:
    """Return the backward of one block, with what runs again amid it.

    If attention is recomputed, it runs again right before its gradient, once gathered keys and values are there, and
    the projection's weight gradient, which reads its output, after it.
    """
    if recomputation is not Recomputation.SELECTIVE:
        return graph.backward
    attention = dict.fromkeys(o for s in graph.forward for o in s.operators if o.is_core_attention)
    late = tuple(dict.fromkeys(o for s in graph.backward for o in s.operators if o.name == PROJECTION_WEIGHT_GRADIENT))
    again = tuple(replace(o, name=f"{o.name}{AGAIN_SUFFIX}") for o in attention)
    return tuple(_with_attention(_without(segment, late), (*again, *late)) for segment in graph.backward)


def head_backward(graph: BlockGraph, recomputation: Recomputation) -> tuple[Segment, ...]:
    """Return the backward of the LM head, with what runs again of blocks that predict further tokens.

    As Megatron Core: with `full` each of these blocks as a whole with what enters it, with `selective` its attention
    (`MultiTokenPredictionLayer`, in `megatron/core/transformer/multi_token_prediction.py`); the head is kept.
    """
    again = tuple(s for s in graph.head_forward if s.name.startswith(FURTHER_BLOCK))
    if recomputation is Recomputation.SELECTIVE:
        return block_backward(replace(graph, forward=again, backward=graph.head_backward), recomputation)
    if not recomputation.repeats_blocks:
        return graph.head_backward
    place = next((n for n, s in enumerate(graph.head_backward) if s.name.startswith(FURTHER_BLOCK)), 0)
    return (*graph.head_backward[:place], *again, *graph.head_backward[place:])


def _without(segment: Segment, late: tuple[Operator, ...]) -> Segment:
    kept = tuple(o for o in segment.operators if o not in late)
    tail = segment.operators[len(segment.operators) - segment.independent_tail :]
    return replace(segment, operators=kept, independent_tail=len([o for o in tail if o not in late]))


def _with_attention(segment: Segment, added: tuple[Operator, ...]) -> Segment:
    place = next((n for n, o in enumerate(segment.operators) if o.is_core_attention), None)
    if place is None:
        return segment
    return replace(segment, operators=(*segment.operators[:place], *added, *segment.operators[place:]))
