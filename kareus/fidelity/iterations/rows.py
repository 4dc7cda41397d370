"""Rows of files with measured training iterations: model, layout, batch, software and time of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kareus.fidelity.lines import Line, Refusal, check_filled, usable

LEAST_S, MOST_S = 1e-6, 1e6
"""Times of one iteration."""
MOST_SIZE = 2**31
COLUMNS = ("family", "dp", "pp", "tp", "num_microbatches", "iteration_time_s")
"""Columns that tell such a file from others."""
CHOICES = {
    "mlp": ("swiglu", "gelu", "squared-relu"),
    "norm": ("rmsnorm", "layernorm"),
    "position": ("rope", "learned", "alibi"),
    "attention": ("flash", "unfused"),
    "sharding": ("none", "optimizer", "grad-op", "fsdp"),
    "recompute": ("none", "selective", "full"),
    "tp_overlap": ("none", "userbuffers"),
    "precision": ("bf16", "fp16", "fp8"),
}
"""Allowed texts by column."""
SIZES = (
    "layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "dp", "pp", "tp", "cp", "chunks", "microbatch_size",
    "num_microbatches", "seq_len",
)  # fmt: skip
SWITCHES = ("sequence_parallel", "compiled")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredIteration:
    """A measured iteration; its fields have the names of the file's columns."""

    line: int
    """Line of the file."""
    family: str
    """Where the row comes from; errors are listed by it."""
    gpu: str
    """Option of the configuration group `gpu`."""
    model: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    mlp: str
    norm: str
    position: str
    attention: str
    dp: int
    pp: int
    tp: int
    cp: int
    chunks: int
    """Virtual stages of each stage of the pipeline; 1 where it does not interleave."""
    sequence_parallel: bool
    sharding: str
    microbatch_size: int
    num_microbatches: int
    seq_len: int
    precision: str
    recompute: str
    tp_overlap: str
    compiled: bool
    iteration_time_s: float

    @property
    def gpus(self) -> int:
        """All GPUs of the job."""
        return self.dp * self.pp * self.tp * self.cp


def has_iterations(header: Sequence[str]) -> bool:
    """Whether a file with these columns has measured iterations."""
    return set(COLUMNS) <= set(header)


def read_iterations(lines: Sequence[Line], path: Path) -> list[MeasuredIteration]:
    """Return the rows of a file.

    Raises:
        ArtifactError: a value that cannot be used, with its line and column; or no rows.
    """
    check_filled(lines, path)
    return [_row(line) for line in lines]


def read_usable_iterations(lines: Sequence[Line], path: Path) -> tuple[list[MeasuredIteration], tuple[Refusal, ...]]:
    """Return the rows of a file whose values can be used, and why the others cannot.

    Raises:
        ArtifactError: a column is missing, or no row can be used.
    """
    return usable(lines, path, _row)


def _row(line: Line) -> MeasuredIteration:
    values: dict[str, Any] = {
        "line": line.number,
        "iteration_time_s": line.positive("iteration_time_s", float, LEAST_S, MOST_S),
    }
    values |= {name: line.text(name) for name in ("family", "gpu", "model")}
    values |= {name: line.positive(name, int, 1, MOST_SIZE) for name in SIZES}
    values |= {name: line.choice(name, allowed) for name, allowed in CHOICES.items()}
    values |= {name: line.switch(name) for name in SWITCHES}
    return MeasuredIteration(**values)
