"""Reference data as compressed CSV with damaged bytes, read by `kareus validate`."""

import gzip
import random
from collections.abc import Callable
from pathlib import Path

from attacks.mutations import flipped, mutated
from attacks.surfaces.calls import call
from attacks.surfaces.references import FRONTIERS


def prepare(folder: Path, seed: int) -> Callable[[int], str]:
    """Return a function that validates with a drawn file."""
    content, path = gzip.compress(FRONTIERS.encode(), mtime=0), folder / "reference.csv.gz"

    def attempt(number: int) -> str:
        chance = random.Random(f"packed {seed} {number}")
        path.write_bytes(flipped(content, chance) if chance.random() < 0.7 else mutated(content, chance))  # noqa: PLR2004
        return call("validate", "--reference", path.name).failure

    return attempt
