"""The folder of caches: what costs time to make, and may be deleted at any time.

It is `KAREUS_CACHE` of the environment, else `kareus` in `XDG_CACHE_HOME`, else `~/.cache/kareus`.
"""

import os
from pathlib import Path

CACHE_VARIABLE = "KAREUS_CACHE"
"""Environment variable with the folder of caches."""


def cache_folder() -> Path | None:
    """Return the folder of caches; None where the environment names none and the user has no home."""
    own, shared = os.environ.get(CACHE_VARIABLE), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own)
    try:
        return Path(shared or Path.home() / ".cache") / "kareus"
    except RuntimeError:  # a user whom the system does not know, as in a container
        return None
