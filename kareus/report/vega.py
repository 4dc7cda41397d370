"""The scripts that draw figures in a page: Vega, Vega-Lite and Vega-Embed in one file, from vl-convert.

Bundling takes two seconds, so the scripts are kept in the folder of caches (`kareus.artifacts.cache`).
"""

from functools import cache
from importlib import metadata

from kareus.artifacts.cache import keep, kept

_KIND = "vega"


@cache
def vega_scripts() -> str:
    """Return the scripts, which set `vegaEmbed` of the window and ask the network for nothing."""
    key = f"vl-convert-{metadata.version('vl-convert-python')}"
    scripts = (kept(_KIND, key) or {}).get("scripts")
    if isinstance(scripts, str) and "</script" not in scripts.lower():  # it would end the element that holds them
        return scripts
    bundled = _bundled()
    keep(_KIND, key, {"scripts": bundled})
    return bundled


def _bundled() -> str:
    import vl_convert  # noqa: PLC0415 - only where nothing is kept

    return str(vl_convert.javascript_bundle())  # type: ignore[call-arg]  # its stub lacks the default
