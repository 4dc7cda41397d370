"""Power of whole nodes in training runs: that of the GPUs, predicted, and that of the node around them, documented.

The node around eight H100s, in watts: two Xeon of 350 W (Intel ARK, Xeon Platinum 8480+), whose cores are half busy;
32 modules of DDR5 at 8 W; eight ConnectX-7 at 25 W, each with a transceiver of 9 W (docs.nvidia.com, MMS4X00-NS400);
four NVSwitch and the GPU baseboard at 400 W in all; drives, management and regulators of the mainboard at 150 W. The
power supplies are 96 % efficient at half load (80 PLUS Titanium). The last two of the node's parts are assumptions.
Fans are not in the measurements: the nodes are immersed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kareus.errors import ConfigError
from kareus.evidence import ARCHITECTURES
from kareus.gpu_model.gpu import MOST_W
from kareus.prediction.lines import Line, LineValueError, Refusal, plain_refusals, read_lines, refused_lines
from kareus.prediction.measured import MeasuredWorkloads
from kareus.prediction.rows import CHOICES, LEAST_S, MOST_S, MOST_SIZE, MeasuredIteration
from kareus.prediction.workload_prediction import Prediction, predict

COLUMNS = ("task", "n_gpus", "tp", "pp", "mbs", "gbs", "seq", "iteration_s", "node_power_w_train")
"""Columns that tell such a file from others."""
GPUS_PER_NODE = 8
NODE_W = 2 * 350 / 2 + 32 * 8 + 8 * (25 + 9) + 400 + 150
"""Power of a node around its GPUs, after its power supplies."""
SUPPLY_EFFICIENCY = 0.96
"""Share of what power supplies take that they give, where the meter is before them."""
BEFORE_SUPPLIES = "AC node"
"""Part of a row's kind that says so."""
PRETRAINING = "pretrain"
SIZES = ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "chunks")
KINDS = ("mlp", "norm", "position")
"""Columns of the architectures that ship, but for the name of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRow:
    """A measured run and its prediction."""

    line: int
    model: str
    time_s: float
    predicted: Prediction
    node_power_w: float
    predicted_node_power_w: float

    @property
    def error(self) -> float:
        """Predicted over measured power of a node, less one."""
        return self.predicted_node_power_w / self.node_power_w - 1


@dataclass(frozen=True, slots=True)
class PowerAnswer:
    """Runs of a file."""

    rows: tuple[PowerRow, ...]
    refused: tuple[Refusal, ...]

    @property
    def power_mape_pct(self) -> float:
        """Mean absolute percentage error of the power of nodes."""
        return 100 * float(np.mean([abs(row.error) for row in self.rows]))

    @property
    def time_mape_pct(self) -> float:
        """The same of the time of iterations."""
        return 100 * float(np.mean([abs(row.predicted.time_s / row.time_s - 1) for row in self.rows]))

    @property
    def title(self) -> str:
        """What the file holds."""
        return "Power of nodes in training"

    @property
    def gpus(self) -> set[str]:
        """Options of the GPUs."""
        return {"h100-sxm5-80gb"}

    @property
    def plain(self) -> dict[str, Any]:
        """The answer as plain data."""
        return {
            "kind": "power",
            "power_mape_pct": self.power_mape_pct,
            "time_mape_pct": self.time_mape_pct,
            "node_overhead_w": NODE_W,
            "rows": [
                {
                    "row": row.line,
                    "model": row.model,
                    "time_s": row.time_s,
                    "predicted_time_s": row.predicted.time_s,
                    "node_power_w": row.node_power_w,
                    "predicted_node_power_w": row.predicted_node_power_w,
                }
                for row in self.rows
            ],
            "refused": plain_refusals(self.refused),
        }

    @property
    def lines(self) -> list[str]:
        """The answer for people."""
        lines = [f"{'line':>4} {'model':<12} {'time s':>15} {'node power W':>15} {'error':>7}"]
        for row in self.rows:
            times, powers = (row.time_s, row.predicted.time_s), (row.node_power_w, row.predicted_node_power_w)
            lines.append(
                f"{row.line:>4} {row.model:<12} {times[0]:7.2f} {times[1]:7.2f} {powers[0]:7.0f} {powers[1]:7.0f} "
                f"{100 * row.error:>6.1f}%"
            )
        lines += ["", f"mean absolute errors: node power {self.power_mape_pct:.1f} %, time {self.time_mape_pct:.1f} %"]
        return ["", *lines, *refused_lines(self.refused)]


def has_power(header: Sequence[str]) -> bool:
    """Whether a file with these columns has runs with power meters."""
    return set(COLUMNS) <= set(header)


def answer_power(lines: Sequence[Line], overrides: Sequence[str], config_dir: Path) -> PowerAnswer:
    """Predict the power of the nodes of all runs that can be represented.

    Raises:
        ArtifactError: a column is missing.
        ConfigError: no run can be represented; with the reason of the first.
    """
    workloads = MeasuredWorkloads(tuple(overrides), config_dir)
    rows, refused = [], []
    for line in lines:
        try:
            row = _row(line)
            rows.append(_power_row(line, row, predict(workloads.of(row))))
        except (ConfigError, LineValueError) as error:
            refused.append(Refusal(line.number, str(error)))
    if not rows:
        raise ConfigError(refused[0].reason if refused else "no rows; give a file with data.")
    return PowerAnswer(tuple(rows), tuple(refused))


def _row(line: Line) -> MeasuredIteration:
    """The iteration of a run.

    Raises:
        ConfigError: the run is no pre-training, is of a model whose architecture is not known, or does not divide.
        LineValueError: a value cannot be used.
    """
    task, model = line.text("task"), line.text("model")
    if task != PRETRAINING:
        raise ConfigError(f"task={task}: adapters of a frozen model are not represented.")
    models = architectures()
    if model not in models:
        raise ConfigError(f"model={model}: architecture not known; known: {', '.join(models)}.")
    sizes = {name: line.positive(name, int, 1, MOST_SIZE) for name in ("n_gpus", "tp", "pp", "cp", "mbs", "gbs", "seq")}
    replicas, num_microbatches = _shares(sizes)
    values: dict[str, Any] = {
        **models[model],
        **({"chunks": line.positive("chunks", int, 1, MOST_SIZE)} if "chunks" in line.cells else {}),
        "line": line.number,
        "family": "mlperf",
        "gpu": line.text("gpu").lower(),
        "model": model,
        "dp": replicas,
        "tp": sizes["tp"],
        "pp": sizes["pp"],
        "cp": sizes["cp"],
        "microbatch_size": sizes["mbs"],
        "num_microbatches": num_microbatches,
        "seq_len": sizes["seq"],
        "precision": line.choice("precision", ("bf16", "fp8")),
        "sequence_parallel": True,
        "sharding": "optimizer",
        "attention": "flash",
        "recompute": "none",
        "tp_overlap": "userbuffers",
        "compiled": False,
        "iteration_time_s": line.positive("iteration_s", float, LEAST_S, MOST_S),
    }
    return MeasuredIteration(**values)


@cache
def architectures() -> Mapping[str, Mapping[str, int | str]]:
    """Return the sizes of models that ship, by name: columns of measured iterations."""
    _, lines = read_lines(ARCHITECTURES)
    return {line.text("model"): _architecture(line) for line in lines}


def _architecture(line: Line) -> dict[str, int | str]:
    return {
        **{name: line.positive(name, int, 1, MOST_SIZE) for name in SIZES},
        **{name: line.choice(name, CHOICES[name]) for name in KINDS},
    }


def _shares(sizes: Mapping[str, int]) -> tuple[int, int]:
    """Replicas of a run, and microbatches of each.

    Raises:
        ConfigError: replicas do not share the GPUs evenly, or microbatches the batch.
    """
    replica_gpus = sizes["tp"] * sizes["pp"] * sizes["cp"]
    replicas, left_gpus = divmod(sizes["n_gpus"], replica_gpus)
    if left_gpus:
        raise ConfigError(f"n_gpus={sizes['n_gpus']}: must be a multiple of tp * pp * cp = {replica_gpus}.")
    num_microbatches, left_sequences = divmod(sizes["gbs"], replicas * sizes["mbs"])
    if left_sequences:
        raise ConfigError(
            f"gbs={sizes['gbs']}: must be a multiple of mbs times {replicas} replicas = {replicas * sizes['mbs']}."
        )
    return replicas, num_microbatches


def _power_row(line: Line, row: MeasuredIteration, predicted: Prediction) -> PowerRow:
    gpu_w = predicted.energy_j / predicted.time_s / row.gpus
    taken_w = GPUS_PER_NODE * gpu_w + NODE_W
    return PowerRow(
        line=line.number,
        model=row.model,
        time_s=row.iteration_time_s,
        predicted=predicted,
        node_power_w=line.positive("node_power_w_train", float, 1.0, GPUS_PER_NODE * MOST_W),
        predicted_node_power_w=taken_w / SUPPLY_EFFICIENCY if BEFORE_SUPPLIES in line.text("kind") else taken_w,
    )
