"""Rows of Megatron-LM that sizes alone do not tell: experts, latent attention, further tokens, stages by a text.

Their columns are Megatron-LM's arguments, which the table of its files (`kareus.interchange`) reads.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kareus.artifacts.records import from_plain
from kareus.graph.recomputation import Recomputation
from kareus.interchange.meaning import keys_of
from kareus.interchange.reading import terms_said
from kareus.interchange.stage_layout import chunk_blocks
from kareus.interchange.syntax import scalar
from kareus.interchange.table import trainer_named
from kareus.model.config import Model
from kareus.model.training_options import RecomputedModule
from kareus.profile.programs import chunk_shapes
from kareus.software.record import Dispatcher

TELLING = (
    "num-experts",
    "multi-latent-attention",
    "mtp-num-layers",
    "pipeline-model-parallel-layout",
    "recompute-modules",
)
"""Columns of which one says something of such rows."""
TABLE = "megatron-lm"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldByTerms:
    """What a row says beyond sizes."""

    model: Model
    """With rows of the embedding as many as there are tokens."""
    ep: int
    etp: int
    dispatcher: Dispatcher
    recomputation: Recomputation
    recompute_modules: tuple[RecomputedModule, ...]
    layers_per_stage: tuple[int, ...] | None
    """As a text says; None: without one."""
    chunks: int
    states_bytes: float | None
    """What stays allocated between iterations, of a row that does not say how many GPUs there are."""


def told_by_terms(cells: Mapping[str, str], sizes: Mapping[str, int], chunks: int) -> ToldByTerms | None:
    """Return what the columns of a row say beyond sizes; None where none of them does.

    Args:
        cells: texts by column.
        sizes: of the row, by name of a measured iteration's.
        chunks: of each stage, where no text says so.

    Raises:
        ConfigError: a value that no model has.
    """
    if not any(cells.get(column) for column in TELLING):
        return None
    values = {column.replace("-", "_"): _value(text) for column, text in cells.items() if text}
    terms = terms_said(trainer_named(TABLE), values, {"model.vocab_size": sizes["vocab"]})
    keys = keys_of(terms, [])
    model = from_plain(Model, {"name": "measured", **keys["model"], "max_positions": _positions(keys["model"], sizes)})
    blocks = chunk_blocks(cells.get("pipeline-model-parallel-layout", ""))
    split = None
    if blocks:
        chunks = len(blocks) // sizes["pp"]
        split = tuple(sum(blocks[stage :: sizes["pp"]]) for stage in range(sizes["pp"]))
        model = _on_stages(model, blocks, split)
    is_plain = bool(cells.get("num_gpus"))
    return ToldByTerms(
        model=model,
        ep=keys.get("parallelism.ep", 1),
        etp=keys.get("parallelism.etp", 1),
        dispatcher=Dispatcher(keys.get("software.dispatcher", Dispatcher.ALL_TO_ALL)),
        recomputation=Recomputation(keys["recomputation"]),
        recompute_modules=tuple(map(RecomputedModule, keys.get("training.recompute_modules", ()))),
        layers_per_stage=split,
        chunks=chunks,
        states_bytes=None if is_plain or not cells.get("mem_allocated_bytes") else float(cells["mem_allocated_bytes"]),
    )


def _value(text: str) -> Any:
    """Return a value; modules stand in brackets, with blanks between them."""
    if re.fullmatch(r"\[[a-z_ ]+\]", text):
        return text[1:-1].split()
    value = scalar(text)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _positions(model: Mapping[str, Any], sizes: Mapping[str, int]) -> int | None:
    return sizes["seq_len"] if model.get("positions") == "learned" else None


def _on_stages(model: Model, blocks: Sequence[int], split: Sequence[int]) -> Model:
    """Return the model with as many blocks without experts on each stage as where its blocks lie by a text.

    Chunks of a text may be of any size, those of a workload are alike but for the ends: blocks have other numbers.
    """
    if model.experts is None or not model.dense_layers:
        return model
    stages, numbers = len(split), iter(range(model.num_layers))
    chunks = len(blocks) // stages
    there = [sum(next(numbers) in model.dense_layers for _ in range(count)) for count in blocks]
    left = [sum(there[stage::stages]) for stage in range(stages)]
    shapes, first, dense = chunk_shapes(split, chunks), 0, list[int]()
    for chunk in range(chunks):
        for stage in range(stages):
            layers = shapes[stage, chunk].layers
            taken = min(layers, left[stage])
            dense += range(first, first + taken)
            left[stage], first = left[stage] - taken, first + layers
    return replace(model, experts=replace(model.experts, dense_layers=tuple(dense)))
