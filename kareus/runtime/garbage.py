"""Python's collection of garbage, kept out of the time in which the host launches.

The objects of an iteration, records of operators and messages, are many, and nearly all are freed without it. While a
rank launches, a collection would stop it in the middle, and all ranks that wait for it: for microseconds each time, and
for tens of milliseconds where the collector visits every object of the process.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 1
"""The oldest generation of objects that an iteration leaves for the collector."""


@contextmanager
def collected_afterwards() -> Iterator[None]:
    """Collect no garbage within, and that of young objects on leaving; where collection is off, it stays off."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.collect(YOUNG)
