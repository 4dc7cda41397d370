"""The scripts that draw figures in a page: Vega, Vega-Lite and Vega-Embed in one file, from vl-convert.

Bundling takes two seconds, so the file is kept in the folder of caches, sealed. It may be deleted at any time; one that
is damaged is made anew.
"""

import logging
from functools import cache
from importlib import metadata
from pathlib import Path

from kareus.artifacts.cache import cache_folder
from kareus.artifacts.files import read_json, write_text
from kareus.artifacts.records import canonical_json
from kareus.artifacts.seals import sealed, unsealed
from kareus.errors import ArtifactError, ConfigError

logger = logging.getLogger(__name__)


@cache
def vega_scripts() -> str:
    """Return the scripts, which set `vegaEmbed` of the window and ask the network for nothing."""
    folder = cache_folder()
    if folder is None:
        return _bundled()
    path = folder / "vega" / f"vl-convert-{metadata.version('vl-convert-python')}.json"
    known = _read(path)
    if known is None:
        known = _bundled()
        _write(path, known)
    return known


def _bundled() -> str:
    import vl_convert  # noqa: PLC0415 - only where the file is missing

    return str(vl_convert.javascript_bundle())  # type: ignore[call-arg]  # its stub lacks the default


def _read(path: Path) -> str | None:
    try:
        return str(unsealed(read_json(path))["scripts"])
    except (ArtifactError, ConfigError, KeyError) as error:
        logger.debug("%s: not used (%s); bundled anew", path, error)
        return None


def _write(path: Path, scripts: str) -> None:
    """Write the file; a folder that cannot be written costs time and nothing else."""
    try:
        write_text(path, canonical_json(sealed({"scripts": scripts})))
    except OSError as error:
        logger.debug("%s: not written (%s)", path, error)
