"""Prices by the hour as CSV, read by `kareus emulate`."""

import random
from collections.abc import Callable
from pathlib import Path

from attacks.mutations import mutated, mutated_table
from attacks.surfaces.calls import call
from attacks.target import SMALL

PRICES = "hour,price_per_kwh\n0,0.12\n1,0.30\n2,-0.01\n3,0.05\n"
FLEET = (
    "emulation.pipelines=2",
    "emulation.num_microbatches=2",
    "emulation.deadlines=2",
    "emulation.stragglers=[]",
)


def prepare(folder: Path, seed: int) -> Callable[[int], str]:
    """Return a function that emulates with a drawn series."""

    def attempt(number: int) -> str:
        chance = random.Random(f"series {seed} {number}")
        path = folder / "prices.csv"
        path.write_bytes(mutated_table(PRICES, chance) if chance.random() < 0.6 else mutated(PRICES.encode(), chance))  # noqa: PLR2004
        iterations = chance.choice((10, 100, 1000, 10**9))
        hours = f"emulation.series={path.name}", f"emulation.iterations={iterations}"
        return call("emulate", *SMALL.split(), *FLEET, "emulation.power_caps=[]", *hours).failure

    return attempt
