"""Fuzzed inputs: overrides, configurations of models, CSV files, journals, plans and Parquet, thousands of them.

Nothing may end in a traceback, take more than ten seconds of processor time, or kill its process; and what is accepted
must give what the unspoilt input gives. Checkpoints have a part of their own.
"""

from collections.abc import Iterator

from attacks.pool import fuzzed
from attacks.rows import Row
from attacks.target import Target

SURFACES = {
    "overrides": ("fuzzed overrides of `resolve`", 500),
    "huggingface": ("fuzzed Hugging Face configurations", 400),
    "references": ("fuzzed reference CSVs (`validate`, `fit`)", 400),
    "series": ("fuzzed CSVs of prices (`emulate`)", 300),
    "journals": ("fuzzed journals of measurements", 400),
    "documents": ("fuzzed plan files (`check-plan`)", 500),
    "tables": ("fuzzed Parquet files (`select`)", 500),
}
"""Module of `attacks.surfaces`, what a row calls it, and tries."""


def attacks(target: Target) -> Iterator[Row]:
    """Fuzz each surface."""
    for surface, (attack, tries) in SURFACES.items():
        yield fuzzed(target, attack, surface, tries)
