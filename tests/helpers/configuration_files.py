"""Configuration files, which Hydra parses once in a process: each composition reads twenty, mostly the same ones.

Hydra changes what it has loaded, so it gets a copy.
"""

import copy
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult

Loader = Callable[[Any, str], ConfigResult]


def parse_once() -> None:
    """Have Hydra keep what it makes of a file while its content is the same, and of the files of its package."""
    Plugins.instance()  # registers the sources
    for scheme, content in (("file", _content), ("pkg", lambda source, name: b"")):
        kind = SourcesRegistry.instance().resolve(scheme)
        kind.load_config = _kept(kind.load_config, content)  # type: ignore[assignment]


def _kept(load: Loader, content: Callable[[Any, str], bytes]) -> Loader:
    results: dict[tuple[str, str, str, bytes], ConfigResult] = {}

    @wraps(load)
    def load_config(source: Any, config_path: str) -> ConfigResult:
        key = (source.provider, source.path, config_path, content(source, config_path))
        if key not in results:
            results[key] = load(source, config_path)
        return copy.deepcopy(results[key])

    return load_config


def _content(source: Any, name: str) -> bytes:
    """Content of a file; nothing where it cannot be read, which is an error of Hydra's that is not kept."""
    try:
        return Path(source.path, source._normalize_file_name(name)).read_bytes()
    except OSError:
        return b""
