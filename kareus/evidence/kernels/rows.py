"""Rows of files with measured kernels, as columns: a GEMM, attention, the experts of a rank or a collective in each."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array, Indices
from kareus.evidence.kernels.routing import ROUTINGS
from kareus.gpu_model.gpu import MOST_W
from kareus.graph.number_formats import Precision
from kareus.prediction.lines import Line, LineValueError, Refusal, check_filled, usable

LEAST_S, MOST_S = 1e-9, 1e4
"""Times of one kernel."""
MOST_SIZE = 2**31
"""Largest size of a kernel: values of a dimension, or GPUs."""
LIMITS = {"num_gpus": (2, MOST_SIZE), "message_bytes": (1, 2**40)}
"""Least and largest sizes of collectives; one GPU sends nothing."""
NOT_READ = re.compile(r"|0+(\.0*)?")
"""Power that was not read: an empty cell, or 0."""
BFLOAT16, FP8, FP8_BLOCK = "bfloat16", "fp8", "fp8_block"
NUMBER_FORMATS = (BFLOAT16, FP8)
EXPERT_FORMATS = (*NUMBER_FORMATS, FP8_BLOCK)
PRECISIONS = {BFLOAT16: Precision.BF16, FP8: Precision.FP8, FP8_BLOCK: Precision.FP8_BLOCKWISE}
"""Number formats by their names in files."""
VLLM, TRTLLM = "vllm", "trtllm"
"""Libraries whose benchmarks differ from a long repetition of one kernel (`counted`)."""
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")


class KernelKind(StrEnum):
    """Kind of the kernels of a file."""

    GEMM = "gemm"
    ATTENTION = "attention"
    COLLECTIVE = "collective"
    EXPERTS = "experts"
    """The fused MLP of the experts of a rank: two grouped GEMMs, the activation, and what brings tokens to experts."""


SIZES: Mapping[KernelKind, tuple[str, ...]] = {
    KernelKind.GEMM: ("m", "n", "k"),
    KernelKind.ATTENTION: ("batch", "seq_len", "heads", "kv_heads", "head_dim", "window"),
    KernelKind.COLLECTIVE: ("num_gpus", "message_bytes"),
    KernelKind.EXPERTS: (
        "num_tokens",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_tp_size",
        "moe_ep_size",
    ),
}
"""Columns of sizes, by kind; a file is told by having all of one kind."""
MAY_BE_ZERO = frozenset({"window"})
"""Sizes that 0 means something for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Measured kernels of one kind; every column has an item for each row."""

    kind: KernelKind
    lines: Indices
    """Line of the file."""
    gpu: NDArray[np.str_]
    """Option of the configuration group `gpu`."""
    number_format: NDArray[np.str_]
    software: NDArray[np.str_]
    """Software that launched the kernel and its version."""
    collective: NDArray[np.str_]
    """Kind of collective; empty for other kernels."""
    routing: NDArray[np.str_]
    """How tokens are spread over experts (`routing`); empty for other kernels."""
    sizes: dict[str, Indices]
    """By column of the file."""
    time_s: Array
    power_w: Array
    """What a power meter read; NaN where nothing was read."""
    power_limit_w: Array
    """NaN where it is not given."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.time_s)

    def where(self, mask: NDArray[np.bool_]) -> "Kernels":
        """Return the rows at which `mask` is true."""
        return Kernels(
            kind=self.kind,
            lines=self.lines[mask],
            gpu=self.gpu[mask],
            number_format=self.number_format[mask],
            software=self.software[mask],
            collective=self.collective[mask],
            routing=self.routing[mask],
            sizes={name: column[mask] for name, column in self.sizes.items()},
            time_s=self.time_s[mask],
            power_w=self.power_w[mask],
            power_limit_w=self.power_limit_w[mask],
        )

    @property
    def libraries(self) -> NDArray[np.str_]:
        """Name of each row's kernel library in lower case: the first word of its software."""
        return np.array([software.split(" ")[0].lower() for software in self.software], dtype=np.str_)

    @property
    def sustained(self) -> NDArray[np.bool_]:
        """Whether power was read: such a kernel was repeated for long enough to settle the clock."""
        return np.isfinite(self.power_w)

    @property
    def groups(self) -> NDArray[np.str_]:
        """What errors are listed by: GPU, number format, software, and burst or sustained."""
        regimes = np.where(self.sustained, "sustained", "burst")
        columns = (self.gpu, self.number_format, self.software, regimes)
        return np.array([" ".join(row) for row in zip(*columns, strict=True)], dtype=np.str_)


TIMES = {KernelKind.EXPERTS: "latency"}
"""Columns of time that are not seconds: milliseconds, as AIConfigurator has them."""
DEVICES = {"NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100-sxm5-80gb", "NVIDIA B200": "b200"}
"""Options of the group `gpu` by what CUDA calls a GPU."""


def kind_of(header: Sequence[str]) -> KernelKind | None:
    """Return the kind of kernels that a file with these columns has, or None if it has none."""
    return next((kind for kind, sizes in SIZES.items() if {*sizes, TIMES.get(kind, "time_s")} <= set(header)), None)


def read_kernels(kind: KernelKind, lines: Sequence[Line], path: Path) -> Kernels:
    """Return the kernels of a file.

    Raises:
        ArtifactError: a value that cannot be used, with its line and column; or no rows.
    """
    check_filled(lines, path)
    return _columns(kind, [_cells(kind, line) for line in lines])


def read_usable_kernels(kind: KernelKind, lines: Sequence[Line], path: Path) -> tuple[Kernels, tuple[Refusal, ...]]:
    """Return the kernels of a file whose values can be used, and why the others cannot.

    Raises:
        ArtifactError: a column is missing, or no row can be used.
    """
    rows, refused = usable(lines, path, partial(_cells, kind))
    return _columns(kind, rows), refused


def _cells(kind: KernelKind, line: Line) -> dict[str, Any]:
    """Values of one row by column."""
    if kind is KernelKind.EXPERTS:
        line = _completed(line)
    return {
        "line": line.number,
        "dtype": BFLOAT16,
        "collective": "",
        "routing": "",
        **{name: line.text(name) for name in ("gpu", "software")},
        **{name: line.choice(name, allowed) for name, allowed in _choices(kind).items()},
        **{name: _size(line, name) for name in SIZES[kind]},
        "time_s": line.positive("time_s", float, LEAST_S, MOST_S),
        "power_w": _power_w(line, "power_w"),
        "power_limit_w": _power_w(line, "power_limit_w"),
    }


def _completed(line: Line) -> Line:
    """Return a row of AIConfigurator's table of experts in the columns of the others.

    Raises:
        LineValueError: ranks that do not divide the experts and their size.
    """
    device, milliseconds = line.text("device"), line.positive("latency", float, 1e3 * LEAST_S, 1e3 * MOST_S)
    cells = {
        "gpu": DEVICES.get(device, device),
        "software": f"{line.text('framework')} {line.text('version')}",
        "dtype": line.text("moe_dtype"),
        "routing": line.text("distribution"),
        "time_s": repr(milliseconds / 1e3),
        "num_tokens": line.text("num_tokens").removesuffix(".0"),
        "power_w": line.cells.get("power", ""),
        "power_limit_w": line.cells.get("power_limit", ""),
    }
    completed = replace(line, cells={**line.cells, **cells})
    for of, ranks in (("num_experts", "moe_ep_size"), ("inter_size", "moe_tp_size")):
        if _size(completed, of) % _size(completed, ranks):
            raise LineValueError(
                f"{line.path}: line {line.number}: {ranks}={line.text(ranks)}: must divide {of} ({line.text(of)})."
            )
    return completed


def _columns(kind: KernelKind, rows: Sequence[Mapping[str, Any]]) -> Kernels:
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return Kernels(
        kind=kind,
        lines=columns["line"],
        gpu=columns["gpu"],
        number_format=columns["dtype"],
        software=columns["software"],
        collective=columns["collective"],
        routing=columns["routing"],
        sizes={name: columns[name] for name in SIZES[kind]},
        time_s=columns["time_s"],
        power_w=columns["power_w"],
        power_limit_w=columns["power_limit_w"],
    )


def _choices(kind: KernelKind) -> dict[str, tuple[str, ...]]:
    """Columns of which a few texts are allowed."""
    if kind is KernelKind.GEMM:
        return {"dtype": NUMBER_FORMATS}
    if kind is KernelKind.EXPERTS:
        return {"dtype": EXPERT_FORMATS, "routing": ROUTINGS}
    return {"collective": COLLECTIVES} if kind is KernelKind.COLLECTIVE else {}


def _size(line: Line, column: str) -> int:
    if column in MAY_BE_ZERO and not line.count(column):
        return 0
    least, most = LIMITS.get(column, (1, MOST_SIZE))
    return line.positive(column, int, least, most)


def _power_w(line: Line, column: str) -> float:
    """Power in a cell, NaN where the cell is missing, empty or 0: nothing was read, or no limit is given."""
    text = (line.cells.get(column) or "").strip()
    return float("nan") if NOT_READ.fullmatch(text) else line.positive(column, float, 1.0, MOST_W)
