"""The order of layouts for a trainer that is not ours: a sweep of its runs, of which a calibration chooses a few.

    python benchmarks/layouts.py --sweep FILE --rows 20 --json

The file has a row for each layout: model, dp, pp, tp, zero, mbs, grad_acc, status, mfu_pct, iteration_time_s,
gpu_memory_gb, batch_consistent. The calibration sees the layouts of one model on at most 64 GPUs, chooses rows one
after the other, and is told their times alone. All other sane rows (MFU of 10 % or more, tensor parallelism within a
node) are then predicted by the price with which `kareus advise` compares layouts, and ranked in the order in which it
recommends them, among the layouts of one model and number of GPUs. Beside that: the same without calibration; the
naive rule (least tp x pp, then the largest microbatch); and a formula of nine parameters, fitted to as many rows of the
same layouts, evenly spread.
"""

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from kareus.adviser.feasible import Candidate, Reason, RefusedLayout, sort_layouts
from kareus.adviser.layouts import Layout
from kareus.adviser.order import recommended
from kareus.adviser.runs import LayoutTimes, roomy
from kareus.arrays import Array
from kareus.calibrate.software_fit import PRIORS, trainer_numbers
from kareus.calibrate.trainer import TrainerCalibration, calibrate_trainer
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Sharding
from kareus.pipeline.config import PipelineSchedule
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.memory import tightness
from ranking import GroupRanking, Ranking, ranked_group

CONFIG = Path("config")
SANE_MFU_PCT, NODE_GPUS = 10.0, 8
MOST_CALIBRATED_GPUS = 64
LEAST_LAYOUTS = 5
"""Layouts of one model and number of GPUs whose order counts."""
SIZES = ("layers", "hidden", "heads", "ffn")
MODELS = {"1B": (16, 2048, 32, 8192), "3B": (28, 3072, 32, 8192)}
"""Sizes of the models of the published sweep."""
VOCABULARY = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One row of the sweep."""

    model: str
    layout: Layout
    ran: bool
    mfu_pct: float
    time_s: float
    memory_gib: float

    @property
    def is_sane(self) -> bool:
        """Whether somebody would keep it."""
        return self.ran and self.mfu_pct >= SANE_MFU_PCT and self.layout.tp <= NODE_GPUS


def read_sweep(path: Path) -> list[SweepRow]:
    """Return the rows whose batch is what the file says."""
    with path.open(newline="") as file:
        return [_row(cells) for cells in csv.DictReader(file) if cells.get("batch_consistent", "1") != "0"]


def _row(cells: Mapping[str, str]) -> SweepRow:
    dp, pp, tp, mbs, microbatches = (int(cells[name]) for name in ("dp", "pp", "tp", "mbs", "grad_acc"))
    layout = Layout(
        dp=dp, pp=pp, tp=tp, cp=1, schedule=PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, chunks=1, microbatch_size=mbs,
        num_microbatches=microbatches, recomputation=Recomputation.NONE,
        sharding=Sharding.OPTIMIZER if dp > 1 and cells["zero"] != "0" else Sharding.NONE, sequence_parallel=tp > 1,
    )  # fmt: skip
    number = {name: float(cells[name] or "nan") for name in ("mfu_pct", "iteration_time_s", "gpu_memory_gb")}
    return SweepRow(
        model=cells["model"], layout=layout, ran=cells["status"] == "ran", mfu_pct=number["mfu_pct"],
        time_s=number["iteration_time_s"], memory_gib=number["gpu_memory_gb"],
    )  # fmt: skip


def base_workload(sizes: Sequence[int], name: str, gpu: str, software: str, seq_len: int) -> Workload:
    """Return what is trained in all layouts of a model."""
    layers, hidden, heads, ffn = sizes
    overrides = [
        f"gpu={gpu}", f"software={software}", "model=llama3.1-8b", "iteration.include_update=true",
        f"sequence_length={seq_len}",
    ]  # fmt: skip
    (composed,) = compose(overrides, CONFIG)
    model = replace(
        composed.workload.model, name=f"sweep-{name.lower()}", num_layers=layers, hidden_size=hidden,
        intermediate_size=ffn, num_attention_heads=heads, num_key_value_heads=heads, head_dim=hidden // heads,
        vocab_size=VOCABULARY, tie_embeddings=False, rotary_scaling=None, layers_per_stage={},
    )  # fmt: skip
    return replace(composed.workload, model=model)


@dataclass(frozen=True)  # without slots, so that what is asked for is kept
class ModelSweep:
    """The rows of one model that can be predicted."""

    base: Workload
    rows: list[SweepRow]
    candidates: list[Candidate]
    """Of each row, whatever memory it needs."""
    left_out: list[RefusedLayout]

    @classmethod
    def of(cls, base: Workload, rows: Sequence[SweepRow]) -> "ModelSweep":
        """Sort out the sane rows that cannot be predicted."""
        layouts = sort_layouts(roomy(base), [row.layout for row in rows])
        by_layout = {candidate.layout: candidate for candidate in layouts.candidates}
        kept = [row for row in rows if row.layout in by_layout]
        return cls(base, kept, [by_layout[row.layout] for row in kept], layouts.refusals)

    @cached_property
    def times(self) -> LayoutTimes:
        """What predicts the rows."""
        return LayoutTimes(self.base, [candidate.workload for candidate in self.candidates])

    def without(self, rows: Sequence[SweepRow]) -> "ModelSweep":
        """Return the sweep without some rows."""
        kept = [n for n, row in enumerate(self.rows) if row not in rows]
        return replace(self, rows=[self.rows[n] for n in kept], candidates=[self.candidates[n] for n in kept])

    @property
    def memory_gib(self) -> list[float]:
        """Estimated memory of each row."""
        return [candidate.memory.total_gib for candidate in self.candidates]


def calibrated(sweep: ModelSweep, rows: int) -> tuple[TrainerCalibration, list[SweepRow]]:
    """Let a calibration choose rows of a model on few GPUs; returns it and the rows that it chose."""
    small = [n for n, row in enumerate(sweep.rows) if row.layout.gpus <= MOST_CALIBRATED_GPUS]
    times = LayoutTimes(sweep.base, [sweep.candidates[n].workload for n in small])
    priors = {name: PRIORS[name] for name in trainer_numbers(sweep.base.software)}
    calibration = calibrate_trainer(priors, times.of, len(small), lambda n: sweep.rows[small[n]].time_s, rows)
    return calibration, [sweep.rows[small[n]] for n in calibration.chosen]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A sane row with a predicted time, and its place in the order of its group (the least is recommended first)."""

    row: SweepRow
    predicted_s: float
    place: float


def by_price(sweeps: Sequence[ModelSweep], values: Mapping[str, float]) -> list[Ranked]:
    """Rank sane rows as `advise` does, by numbers of the software."""
    ranked = []
    for sweep in sweeps:
        times_s, memory_gib = sweep.times.of(values), sweep.memory_gib
        for members in _groups(sweep.rows).values():
            order = recommended([times_s[n] for n in members], [memory_gib[n] for n in members])
            ranked += [
                Ranked(sweep.rows[members[n]], float(times_s[members[n]]), place) for place, n in enumerate(order)
            ]
    return ranked


def by_rule(sweeps: Sequence[ModelSweep]) -> list[Ranked]:
    """Rank by the naive rule, which predicts no times."""
    return [
        Ranked(row, float("nan"), row.layout.tp * row.layout.pp - row.layout.microbatch_size / 1e3)
        for sweep in sweeps
        for row in sweep.rows
    ]


def _groups(rows: Sequence[SweepRow]) -> dict[tuple[str, int], list[int]]:
    groups: dict[tuple[str, int], list[int]] = {}
    for n, row in enumerate(rows):
        groups.setdefault((row.model, row.layout.gpus), []).append(n)
    return groups


FORMULA = (0.5, 0.5, 1e-3, 2e-4, 1.0, 0.5, 0.5, 1e-2, 1.0)
"""Starting values of the formula's parameters."""


def formula_s(model: Any, row: SweepRow, x: Sequence[float]) -> float:
    """Return the time of a row by a formula of nine parameters.

    A microbatch on a stage takes its products at a share of the peak that grows with its tokens (x0, x1), a time for
    each block (x2), and for tensor parallelism one for each block and GPU (x3) and its bytes over the links (x4).
    Pipelines add x8 times their bubbles. Then gradients are summed over the network (x5), weights gathered where
    replicas share out the optimizer (x6), and each doubling of replicas adds x7.
    """
    layout, tokens = row.layout, row.layout.microbatch_size * 4096
    blocks = model.num_layers / layout.pp
    weights = model.num_layers * (4 * model.hidden_size**2 + 3 * model.hidden_size * model.intermediate_size)
    held_weights = (weights + 2 * VOCABULARY * model.hidden_size) / layout.tp / layout.pp
    flops = 6 * tokens * held_weights + 12 * blocks * tokens * 4096 * model.hidden_size / layout.tp / 2
    block_tokens = tokens / layout.tp
    pass_s = flops / (989e12 * x[0]) * (1 + x[1] * 1e3 / block_tokens) + blocks * x[2]
    if layout.tp > 1:
        pass_s += blocks * (
            layout.tp * x[3] + x[4] * 8 * 2 * tokens * model.hidden_size * (layout.tp - 1) / layout.tp / 300e9
        )
    total_s = pass_s * (layout.num_microbatches + x[8] * (layout.pp - 1))
    if layout.dp > 1:
        network = 50e9 if layout.gpus > NODE_GPUS else 300e9
        rails = min(NODE_GPUS // layout.tp, layout.dp) if layout.gpus > NODE_GPUS else 1
        total_s += x[5] * 8 * held_weights / network / rails + x[7] * np.log2(layout.dp)
        total_s += x[6] * 2 * held_weights / network / rails if layout.sharding is Sharding.OPTIMIZER else 0.0
    return float(total_s)


def by_formula(sweeps: Sequence[ModelSweep], seen: Sequence[SweepRow]) -> list[Ranked]:
    """Rank by the formula, fitted to rows that it may see."""
    models = {row.model: sweep.base.model for sweep in sweeps for row in sweep.rows}

    def errors(x: Array) -> Array:
        times_s = [formula_s(models[row.model], row, np.exp(x)) for row in seen]
        return np.concatenate([np.log(np.divide(times_s, [row.time_s for row in seen])) / 0.05, x - np.log(FORMULA)])

    x = np.exp(least_squares(errors, np.log(FORMULA), loss="soft_l1").x)
    rows = [row for sweep in sweeps for row in sweep.rows]
    times_s = [formula_s(models[row.model], row, x) for row in rows]
    return [Ranked(row, time_s, time_s) for row, time_s in zip(rows, times_s, strict=True)]


def _percent(share: float) -> float | None:
    """Return a percentage; None where there is nothing that it is of."""
    return 100 * float(share) if np.isfinite(share) else None


def score(ranked: Sequence[Ranked]) -> dict[str, float | None]:
    """Return errors of times, and what the order of groups costs."""
    errors = [abs(layout.predicted_s / layout.row.time_s - 1) for layout in ranked]
    groups = [[ranked[n] for n in members] for members in _groups([layout.row for layout in ranked]).values()]
    orders = Ranking(groups=tuple(_order(layouts) for layouts in groups if len(layouts) >= LEAST_LAYOUTS))
    return {
        "time_mape_pct": _percent(np.mean(errors)),
        "tau": orders.tau,
        "first_choice_loss_pct": orders.loss_of_first_pct(1),
        "first_choice_loss_median_pct": float(np.median([group.losses_pct[0] for group in orders.groups])),
        "best_of_three_loss_pct": orders.loss_of_first_pct(3),
        "rows": len(ranked),
        "groups": len(orders.groups),
    }


def _order(layouts: Sequence[Ranked]) -> GroupRanking:
    places = [layout.place for layout in layouts]
    predicted_s = [layout.place if np.isnan(layout.predicted_s) else layout.predicted_s for layout in layouts]
    return ranked_group([layout.row.time_s for layout in layouts], predicted_s, places)


def memory(bases: Mapping[str, Workload], rows: Sequence[SweepRow]) -> dict[str, float | None]:
    """Return how far the memory of what ran is off, and how much of what ran and of what crashed is refused."""
    errors, refused = [], {True: [], False: []}
    for name, base in bases.items():
        by_layout = {row.layout: row for row in rows if row.model == name}
        for candidate in sort_layouts(roomy(base), by_layout).candidates:
            row = by_layout[candidate.layout]
            if row.ran and np.isfinite(row.memory_gib):
                errors.append(abs(candidate.memory.allocated_gib / row.memory_gib - 1))
        layouts = sort_layouts(base, by_layout)
        for candidate in layouts.candidates:
            is_tight = bool(tightness(candidate.workload, candidate.memory))
            refused[by_layout[candidate.layout].ran].append(is_tight and not by_layout[candidate.layout].ran)
        for refusal in layouts.refusals:
            if refusal.reason is Reason.MEMORY:
                refused[by_layout[refusal.layout].ran].append(True)
    return {
        "memory_mape_pct": _percent(np.mean(errors)),
        "ran_refused_pct": _percent(np.mean(refused[True])),
        "crashed_refused_pct": _percent(np.mean(refused[False])) if refused[False] else None,
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return all figures."""
    rows = read_sweep(arguments.sweep)
    sizes = {**MODELS, **{name: tuple(map(int, text.split(","))) for name, text in arguments.model}}
    names = list(dict.fromkeys(row.model for row in rows))
    bases = {
        name: base_workload(sizes[name], name, arguments.gpu, arguments.software, arguments.sequence_length)
        for name in names
        if name in sizes
    }
    sane = [row for row in rows if row.is_sane and row.model in bases]
    sweeps = [ModelSweep.of(base, [row for row in sane if row.model == name]) for name, base in bases.items()]
    chosen = arguments.calibrate_on or next(iter(bases))
    whole = sweeps[list(bases).index(chosen)]
    calibration, seen = calibrated(whole, arguments.rows)
    others = [sweep.without(seen) for sweep in sweeps]
    posterior, start = calibration.posterior, bases[chosen].software
    as_shipped = {name: getattr(start, name) for name in posterior.values}
    small = [row for row in whole.rows if row.layout.gpus <= MOST_CALIBRATED_GPUS]
    even = [small[n] for n in np.linspace(0, len(small) - 1, arguments.rows).astype(int)]
    return {
        **score(by_price(others, posterior.values)),
        **memory(bases, rows),
        "without_calibration": score(by_price(others, as_shipped)),
        "formula": score(by_formula([sweep.without(even) for sweep in sweeps], even)),
        "naive_rule": score(by_rule(others)),
        "calibrated_on": chosen,
        "calibration_rows": len(seen),
        "calibration_error_left_out_pct": 100 * calibration.error,
        "calibration_tau_left_out": calibration.tau,
        "may_rank": not calibration.doubts,
        "numbers": {name: f"{value:.4g} ({posterior.note(name)})" for name, value in posterior.values.items()},
        "not_predicted": [refusal.message for sweep in sweeps for refusal in sweep.left_out],
        "models_without_sizes": [name for name in names if name not in sizes],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", type=Path, required=True, help="CSV file of a sweep")
    parser.add_argument("--rows", type=int, default=20, help="rows that the calibration chooses")
    parser.add_argument("--calibrate-on", metavar="MODEL", help="whose rows it sees (default: the first of the file)")
    parser.add_argument(
        "--model", nargs=2, action="append", default=[], metavar=("NAME", ",".join(map(str.upper, SIZES))),
        help="sizes of a further model, such as --model 8B 32,4096,32,14336",
    )  # fmt: skip
    parser.add_argument("--gpu", default="h100-sxm5-80gb")
    parser.add_argument("--software", default="nanotron")
    parser.add_argument("--sequence-length", type=int, default=4096)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    figures = measure(arguments)
    print(json.dumps(figures) if arguments.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
