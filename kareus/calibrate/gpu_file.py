"""The text of a GPU's configuration with other coefficients: everything else, comments too, stays as it is."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import yaml

from kareus.artifacts.configuration import parse_yaml
from kareus.artifacts.files import read_text
from kareus.errors import ArtifactError, ConfigError
from kareus.gpu_model.gpu import KernelUncertainty

NOTE = "# measured kernels: "
"""Begins the lines that say how well coefficients fit measured kernels."""


def check_lines(source: Path) -> None:
    """Check that a GPU's file has one coefficient a line, so that they are found.

    Raises:
        ArtifactError: the file is missing, or has all coefficients in one line.
    """
    if re.search(r"^coefficients:[ \t]*[^#\s]", read_text(source), flags=re.MULTILINE):
        raise ArtifactError(f"{source}: coefficients: written in one line; write each on an indented line of its own.")


def is_gpu(path: Path) -> bool:
    """Return whether a file is a GPU's configuration, which a fit may replace."""
    try:
        content = parse_yaml(read_text(path))
    except (ArtifactError, ConfigError):
        return False
    return isinstance(content, dict) and bool({"coefficients", "defaults"} & set(content))


def with_values(text: str, values: Mapping[str, float], comments: Mapping[str, str]) -> str:
    """Return the configuration with new values of coefficients, each with its comment.

    A file that inherits its coefficients from another gets those that are new.
    """
    fitted = {name: f"  {name}: {number(value)} # {comments[name]}" for name, value in values.items()}
    lines = []
    for line in text.splitlines():
        name = line.strip().partition(":")[0]
        is_of_gpu = line.startswith("  ") and not line.startswith("   ")  # deeper lines are those of kernel libraries
        lines.append(fitted.pop(name) if is_of_gpu and name in fitted else line)
    if fitted:
        heading = next((n for n, line in enumerate(lines) if line.startswith("coefficients:")), len(lines))
        lines[heading : heading + 1] = [*(lines[heading : heading + 1] or ["coefficients:"]), *fitted.values()]
    return "\n".join(lines) + "\n"


def with_libraries(text: str, libraries: Mapping[str, Mapping[str, float]]) -> str:
    """Return the configuration with other coefficients of kernel libraries."""
    others = re.sub(r"^libraries:.*\n(?:  .*\n)*", "", text, flags=re.MULTILINE)
    block = ["libraries:" + ("" if libraries else " {}")]
    for library, values in libraries.items():
        block += [f"  {library}:", *(f"    {name}: {number(value)}" for name, value in values.items())]
    return _before_coefficients(others, block)


def with_notes(text: str, notes: Mapping[str, str]) -> str:
    """Return the configuration with comments on how well the laws fit, by what they were fitted to."""
    others = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(NOTE))
    return _before_coefficients(others, [f"{NOTE}{name}: {note}" for name, note in notes.items()])


def with_kernel_uncertainty(text: str, uncertainty: KernelUncertainty | None) -> str:
    """Return the configuration with other errors of predicted kernels at its end, or without any."""
    others = re.sub(r"^kernel_uncertainty:(?:.*\n)(?:  .*\n)*", "", text, flags=re.MULTILINE)
    if uncertainty is None:
        return others
    return others + yaml.safe_dump({"kernel_uncertainty": asdict(uncertainty)}, sort_keys=False)


def number(value: float) -> str:
    """Return four digits, with a point where there is an exponent: YAML reads 6e-05 as text."""
    mantissa, exponent, power = f"{value:.4g}".partition("e")
    return mantissa + (".0" if exponent and "." not in mantissa else "") + exponent + power


def _before_coefficients(text: str, block: list[str]) -> str:
    lines = text.splitlines()
    place = next((n for n, line in enumerate(lines) if line.startswith("coefficients:")), len(lines))
    return "\n".join([*lines[:place], *block, *lines[place:]]) + "\n"
