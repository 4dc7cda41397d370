"""Which shapes of attention a benchmark's sweep ran before another on the same GPU, from the public code of the sweep.

For each kind of heads AIConfigurator's sweeps (`collector/cases`, `get_context_attention_test_cases`) go from long
sequences to short ones, then from large batches to small ones. Eight GPUs take the shapes of this queue in turn, so
that what a GPU ran before a shape stands a constant number of places before it. The first shapes of other heads follow
the tiny ones that end the queue before: sequences of down to one value, next to which the GPU idles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Indices
from kareus.evidence.kernels.rows import Kernels

LENGTHS = (16384, 12288, 10240, 8192, 6144, 4096, 3072, 2048, 1536, 1024)
BATCHES = (256, 128, 64, 32, 16, 8, 4, 2, 1)
SHAPES: Indices = np.array([(length, batch) for length in LENGTHS for batch in BATCHES])
"""Sequence lengths and batches in the order of the sweeps; short sequences come after all that is scored."""
MOST_TOKENS, MOST_OWN_TOKENS = 131_072, 65_536
"""Tokens of a shape at the most, and where every query head has its own keys and values."""
MOST_OWN_BATCH = 128
MOST_BYTES = 2**31 - 1
"""Bytes of all keys at the most."""
PLACES = {("h200", "vllm"): 4, ("b200", "vllm"): 8, ("b200", "trtllm"): 2}
"""Shapes that eight GPUs run at once, by option and library: eight over the variants of a shape (keys and values in
fp8, queries, too), as the readings of the first shapes tell."""
RUNS = 6
"""Runs before a run that are looked at: a reading looks back over a second."""


@dataclass(frozen=True, slots=True)
class EarlierShapes:
    """What the GPU of each row ran a number of runs earlier."""

    rows: Kernels
    """Shapes; those of the rows themselves where nothing ran."""
    ran: NDArray[np.bool_]
    """Whether anything of the same heads ran then."""


def earlier_shapes(rows: Kernels) -> Sequence[EarlierShapes]:
    """Return what ran before each row, the latest first; shapes like its own where the queue is not known."""
    places = PLACES.get((str(rows.gpu[0]), str(rows.libraries[0])))
    if places is None:
        return [EarlierShapes(rows, np.ones(len(rows), dtype=bool))] * RUNS
    taken = _taken(rows)
    place, own = np.cumsum(taken, axis=1) - 1, _place(rows, taken)
    found = []
    for run in range(1, RUNS + 1):
        wanted = own - run * places
        index = np.argmax(taken & (place == np.maximum(wanted, 0)[:, None]), axis=1)
        sizes = dict(rows.sizes)
        for name, column in zip(("seq_len", "batch"), SHAPES[index].T, strict=True):
            sizes[name] = np.where(wanted < 0, sizes[name], column)
        found.append(EarlierShapes(replace(rows, sizes=sizes), wanted >= 0))
    return found


def _taken(rows: Kernels) -> NDArray[np.bool_]:
    """Mask of the shapes that the sweep has for the heads of each row, shape (rows, shapes)."""
    size = {name: column[:, None] for name, column in rows.sizes.items()}
    tokens, batch = SHAPES.prod(axis=1)[None], SHAPES[:, 1][None]
    own = size["heads"] == size["kv_heads"]
    fits = tokens * size["kv_heads"] * size["head_dim"] * 2 < MOST_BYTES
    taken: NDArray[np.bool_] = (
        fits & (tokens <= np.where(own, MOST_OWN_TOKENS, MOST_TOKENS)) & ~(own & (batch > MOST_OWN_BATCH))
    )
    return taken


def _place(rows: Kernels, taken: NDArray[np.bool_]) -> Indices:
    """Number of shapes of the same heads that come before each row."""
    length, batch = rows.sizes["seq_len"][:, None], rows.sizes["batch"][:, None]
    earlier = (SHAPES[:, 0] > length) | ((SHAPES[:, 0] == length) & (SHAPES[:, 1] > batch))
    before: Indices = (taken & earlier).sum(axis=1)
    return before
