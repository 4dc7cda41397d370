"""What Snakemake's own command line takes without a word although it means nothing."""

import itertools
from collections.abc import Sequence
from pathlib import Path

OPTION = "--workflow-profile"
NO_PROFILE = "none"


def missing_profile(arguments: Sequence[str], folder: Path) -> str | None:
    """Return the profile that a command line names and that is not there, so that Snakemake runs without any.

    Args:
        arguments: of Snakemake, without its name.
        folder: of the Snakefile.
    """
    given = [text.partition("=")[2] for text in arguments if text.startswith(f"{OPTION}=")]
    given += [text for option, text in itertools.pairwise(arguments) if option == OPTION]
    for name in given:
        places = (Path(name), Path("profiles") / name, folder / "profiles" / name)
        if name != NO_PROFILE and not any(place.exists() for place in places):
            return name
    return None
