"""Validating: predicting what any file of measurements gives, whatever its columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kareus.evidence.frontiers.answer import TableAnswer, answer_tables
from kareus.evidence.iterations import IterationAnswer, answer_iterations
from kareus.evidence.kernels.answer import KernelAnswer, answer_kernels
from kareus.evidence.kernels.rows import kind_of, read_usable_kernels
from kareus.evidence.memory import MemoryAnswer, answer_memory
from kareus.evidence.node_power import PowerAnswer, answer_power, has_power
from kareus.prediction.lines import read_lines
from kareus.prediction.memory_formats import format_of
from kareus.prediction.rows import has_iterations, read_usable_iterations

ValidationAnswer = KernelAnswer | IterationAnswer | MemoryAnswer | PowerAnswer | TableAnswer
"""Predictions and errors of a file with measured kernels, iterations, their memory, powers of nodes, frontiers or
reductions."""


@dataclass(frozen=True, slots=True)
class Validation:
    """A file of measurements and how it was predicted."""

    name: str
    """Name of the file without its endings, for those that ship, or its path."""
    answer: ValidationAnswer

    @property
    def title(self) -> str:
        """What was compared with what."""
        ours = self.answer.gpu.name if isinstance(self.answer, TableAnswer) else "GPUs"
        return f"simulated {ours} against {self.name}"

    @property
    def lines(self) -> list[str]:
        """Title and answer for people, and an empty line."""
        return [self.title, *self.answer.lines, ""]


def validate_file(name: str, path: Path, overrides: Sequence[str], config_dir: Path) -> Validation:
    """Predict what a file gives; its columns tell what that is.

    Args:
        name: what to call the file.
        path: CSV, or .csv.gz.
        overrides: Hydra overrides of all that is predicted.
        config_dir: Hydra groups.

    Raises:
        ArtifactError: the file is missing, has columns of no known kind, or values that cannot be used.
        ConfigError: an override cannot be used, or no row can be predicted.
    """
    header, lines = read_lines(path)
    if has_iterations(header):
        runs, unusable = read_usable_iterations(lines, path)
        return Validation(name, answer_iterations(runs, overrides, config_dir, unusable))
    kept = format_of(header)
    if kept is not None:
        return Validation(name, answer_memory(lines, kept, overrides, config_dir))
    if has_power(header):
        return Validation(name, answer_power(lines, overrides, config_dir))
    kind = kind_of(header)
    if kind is None:
        return Validation(name, answer_tables(header, lines, path, overrides, config_dir))
    rows, unusable = read_usable_kernels(kind, lines, path)
    return Validation(name, answer_kernels(rows, overrides, config_dir, unusable))
