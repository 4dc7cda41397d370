"""The layout of a plan as a trainer's own settings, which `kareus from` reads as the same layout."""

from collections.abc import Sequence
from pathlib import Path

from kareus.artifacts.files import read_text
from kareus.artifacts.records import leaves, to_plain
from kareus.artifacts.seals import check_text, sealed_text
from kareus.errors import ArtifactError, ConfigError, printable
from kareus.interchange.table import trainer_named
from kareus.interchange.writing import written
from kareus.plans.document import Plan
from kareus.workload.config import Workload

FIRST = "Layout for {}, by Kareus"


def layout_text(plan: Plan, workload: Workload, trainer: str, syntax: str) -> str:
    """Return a layout as settings, below comments on what they carry and what they leave out, and sealed.

    Args:
        plan: for the comments.
        workload: the one that it is for, resolved.
        trainer: name of its table.
        syntax: `shell`, `toml` or `yaml`.
    """
    table = trainer_named(trainer)
    plain = dict(leaves(to_plain(workload)))
    layout = written(table, {**MODEL_FIELDS, **plain}, workload.gpu.gpus_per_node, syntax)
    environment = ", ".join(filter(None, [workload.testbed.nccl_environment, *layout.environment]))
    unsaid = [f"  {text}" for text in layout.unsaid] or ["  nothing"]
    lines = [
        FIRST.format(trainer),
        f"Of a plan of {plan.gpus} GPUs for {plan.workload} ({plan.testbed.label}).",
        "Carries: parallelism, batch, what is recomputed and shared out, and the model as far as it has keys for it.",
        "Leaves out: clocks, SM counts, data and optimizer; what is not here is for you to add.",
        "An export replaces this file only as it was written; once changed, only with --force.",
        "Of layout and model these settings do not say:",
        *unsaid,
        *([f"Environment that belongs to it: {environment}"] if environment else []),
    ]
    return sealed_text(header(lines) + layout.text)


MODEL_FIELDS = {"model.rotary_share": 1.0}
"""Fields of a model that plain values leave out at their defaults, and that trainers name."""


def header(lines: Sequence[str]) -> str:
    """Return the lines as comments that start with `#`; whatever is not printable ASCII is escaped."""
    return "".join(f"# {ascii_only(line)}\n" for line in lines)


def ascii_only(text: str) -> str:
    """Return `text` on one line, in ASCII, so that no reader can take a part of it for content."""
    return printable(text).encode("ascii", "backslashreplace").decode()


def is_sealed(path: Path) -> bool:
    """Return whether a text file is as it was sealed."""
    try:
        check_text(read_text(path))
    except (ArtifactError, ConfigError):
        return False
    return True


def starts_with(path: Path, first: str) -> bool:
    """Return whether the first line of a text file has the header's first line."""
    try:
        return read_text(path).startswith(header([first]).rstrip("\n"))
    except ArtifactError:
        return False
