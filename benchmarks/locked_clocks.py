"""Forward passes at locked clocks: time and energy at each, and what the best clock saves, measured and predicted.

    python benchmarks/locked_clocks.py --passes PASSES.csv --voltage VOLTAGE.csv --json

PASSES has forward passes of PyTorch's eager mode, without a head, on an A100 40GB of 250 W at eleven locked clocks
(model, precision, batch, seq_len, mode, attention, locked_mhz, time_ms, energy_j, set); VOLTAGE the supply voltage and
the idle power of that card against its clock (gpu, clock_mhz, supply_voltage_mv, idle_power_w). Both are tables of the
energaizer artifact (MIT). The GPU is the A100 80GB of `config/gpu` with this card's voltage, idle power, memory
bandwidth and limit. Nobody measured eager inference as a software, or HBM of an A100 80GB at low clocks: two numbers of
the software and three of the chip are fitted to the passes of the other models that the power limit does not hold back.
Errors `relative` compare each pass with itself at `REFERENCE_MHZ`; `numbers.all` are what all passes together give.
"""

import argparse
import csv
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from kareus.arrays import Array
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import Tally, run_tally, tally
from kareus.graph.records import Direction
from kareus.partition.extract import operator_graphs
from kareus.profile.programs import Execution, StageShape, instruction_program
from kareus.software.record import Software, driven
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.slices import cut

CONFIG = Path("config")
CARD = "A100 40GB, 250 W (yz8)"
LIMIT_W, HBM_GB_PER_S = 250.0, 1555.0
"""NVIDIA's data sheet of the A100 PCIe 40GB."""
REFERENCE_MHZ = 960
"""Clock at which no pass reaches the power limit."""
LEAKAGE_EXPONENT = 3.0
"""Power of the voltage that leakage goes with: idle power of an A100 80GB and of this card follows it within 0.4 W."""
HELD_BACK = 0.995
"""Clock of a pass over the locked one, below which the power limit holds it back."""
MODELS: dict[str, dict[str, Any]] = {
    "gpt2model_gpt2": {
        "model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
    },
    "optmodel_opt-1p3b": {
        "model_type": "opt", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32, "ffn_dim": 8192,
        "max_position_embeddings": 2048, "vocab_size": 50272, "word_embed_proj_dim": 2048,
    },
    "qwen2model_qwen2-1p5b": {
        "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 1536, "num_attention_heads": 12,
        "num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151936, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    },
}  # fmt: skip
"""Published sizes of the dense decoders among the models; the others are encoders."""
OF_TIME = {"host_launch_s": (3e-5, 1e-6, 1e-4), "traffic": (4.0, 1.0, 9.9), "stream_gb_per_s": (2500.0, 500.0, 2e4)}
OF_ENERGY = {"hbm_j_per_byte": (100e-12, 40e-12, 250e-12), "hbm_core_energy_share": (0.5, 1e-3, 0.7)}
"""Numbers that are fitted: start and bounds.

Of HBM's energy at least 30 % are the DRAM's, whatever the core's voltage: 3.9 pJ a bit (O'Connor et al., "Fine-Grained
DRAM", MICRO 2017) of what 105 pJ a byte are. L2, crossbar and memory controllers have the core's.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One pass at every clock."""

    model: str
    batch: int
    seq_len: int
    clocks_mhz: Array
    times_s: Array
    energies_j: Array
    is_free: NDArray[np.bool_]
    """Whether the power limit does not hold it back."""

    @property
    def at_reference(self) -> int:
        """Place of the clock that errors are relative to."""
        return int(np.flatnonzero(self.clocks_mhz == REFERENCE_MHZ)[0])


def read_curves(path: Path) -> list[Curve]:
    """Return the curves of dense decoders in bf16 whose time grows with their tokens."""
    points: dict[tuple[str, int, int], list[tuple[float, ...]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["set"] == "dvfs" and row["precision"] == "bf16" and row["model"] in MODELS:
                key = (row["model"], int(row["batch"]), int(row["seq_len"]))
                locked_mhz, measured_mhz = float(row["locked_mhz"]), float(row["measured_mhz"])
                share = measured_mhz / locked_mhz
                points[key].append((locked_mhz, float(row["time_ms"]) / 1e3, float(row["energy_j"]), share))
    curves = [
        Curve(
            model=model, batch=batch, seq_len=seq_len, clocks_mhz=columns[0], times_s=columns[1], energies_j=columns[2],
            is_free=columns[3] > HELD_BACK,
        )
        for (model, batch, seq_len), rows in sorted(points.items())
        if (columns := np.array(sorted(rows)).T) is not None
    ]  # fmt: skip
    return [curve for curve in curves if not _is_cut(curve, curves)]


def _is_cut(curve: Curve, curves: Sequence[Curve]) -> bool:
    """Return whether a pass took less time than one of the same length with fewer sequences: it did not run whole."""
    fewer = [c for c in curves if (c.model, c.seq_len) == (curve.model, curve.seq_len) and c.batch < curve.batch]
    return any(curve.times_s[0] < other.times_s[0] for other in fewer)


def card(gpu: Gpu, path: Path) -> Gpu:
    """Return the A100 with voltage, idle power, memory bandwidth and limit of the card of the passes."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == CARD and row["supply_voltage_mv"]]
    clocks, volts, idle_w = (np.array([float(row[name]) for row in rows]) for name in
                             ("clock_mhz", "supply_voltage_mv", "idle_power_w"))  # fmt: skip
    order = np.argsort(clocks)
    clocks, volts, idle_w = clocks[order], volts[order] / volts.max(), idle_w[order]
    x, shares = 1 - clocks / clocks.max(), clocks / clocks.max()

    def error(v: Array) -> Array:
        law: Array = np.maximum(1 - v[0] * x + v[1] * x**2, v[2])
        return np.where(x < v[0] / (2 * v[1]), law, v[2]) ** 2 - volts**2

    slope, curvature, floor = least_squares(error, [1.4, 2.0, volts.min()]).x
    parts = np.stack([np.ones_like(volts), volts**LEAKAGE_EXPONENT, volts**2 * shares], axis=1)
    at_rest_w, core_w, _ = nnls(parts, idle_w)[0]
    c = gpu.coefficients
    # Together with what leaks, the clock tree takes at the maximum clock what the A100 80GB's does.
    leaking_w = c.core_leakage_w * (1 - c.voltage_floor**c.leakage_exponent)
    clock_w = c.clock_power_w + leaking_w - core_w * (1 - floor**LEAKAGE_EXPONENT)
    shown = np.linspace(clocks.min(), clocks.max(), 8).round()
    waiting = tuple((float(c), float(np.interp(c, clocks, idle_w) / idle_w[-1])) for c in shown)
    numbers = {
        "voltage_slope": slope, "voltage_curvature": curvature, "voltage_floor": floor, "clock_power_w": clock_w,
        "core_leakage_w": core_w, "leakage_exponent": LEAKAGE_EXPONENT,
    }  # fmt: skip
    return replace(
        gpu,
        name="A100-PCIE-40GB", hbm_gb_per_s=HBM_GB_PER_S, power_limit_w=LIMIT_W, blocking_power_w=float(idle_w[-1]),
        static_power_w=float(at_rest_w + core_w * floor**LEAKAGE_EXPONENT), waiting_shares=waiting,
        coefficients=replace(gpu.coefficients, **numbers),
    )  # fmt: skip


def workload_of(curve: Curve, folder: Path) -> Workload:
    """Return the pass as a workload of eager PyTorch on one GPU."""
    path = folder / f"{curve.model}.json"
    path.write_text(json.dumps(MODELS[curve.model] | {"architectures": [], "torch_dtype": "bfloat16"}))
    overrides = [
        f"model={path}", "gpu=a100-sxm4-80gb", "software=torchtitan-eager", f"sequence_length={curve.seq_len}",
        f"microbatch_size={curve.batch}", "num_microbatches=1", *(f"parallelism.{n}=1" for n in ("pp", "tp", "dp")),
    ]  # fmt: skip
    (composed,) = compose(overrides, CONFIG)
    software = replace(composed.workload.software, fused_attention=False)
    return replace(composed.workload, software=software)


def forward_of(workload: Workload) -> Tally:
    """Return the forward of all blocks and the embedding, without a head."""
    program = instruction_program(
        dict(operator_graphs(cut(workload, "partition"))),
        StageShape(layers=workload.model.num_layers, first=True, last=False),
        Direction.FORWARD,
        Execution.SEQUENTIAL,
        recomputation=workload.recomputation,
        default_sm_count=workload.testbed.default_collective_sm_count,
        software=workload.software,
    )
    return tally(program)


@dataclass(frozen=True, slots=True)
class Passes:
    """All curves, with what runs in each."""

    curves: list[Curve]
    tallies: list[Tally]
    gpu: Gpu
    software: Software

    def costs(self, n: int, numbers: Mapping[str, float], clocks_mhz: Array) -> tuple[Array, Array]:
        """Return times and energies of a curve by the numbers that are fitted."""
        of_software = {name: numbers[name] for name in ("host_launch_s", "traffic")}
        behaviour = run_tally(
            driven(with_numbers(self.gpu, numbers), replace(self.software, **of_software), 1),
            self.tallies[n],
            clocks_mhz,
            {},
        )
        return np.asarray(behaviour.time_s), np.asarray(behaviour.energy_j)

    def fitted(self, members: Sequence[int]) -> dict[str, float]:
        """Return all numbers, fitted to the times and then to the powers of some curves, and what their limit holds."""
        start = {name: value for name, (value, _, _) in {**OF_TIME, **OF_ENERGY}.items()}
        held_back_w = np.concatenate(
            [(c.energies_j / c.times_s)[~c.is_free] for c in (self.curves[n] for n in members)]
        )
        start["throttle_share"] = float(np.median(held_back_w)) / LIMIT_W
        numbers = self._fitted(members, start, OF_TIME, lambda times_s, _: times_s)
        return self._fitted(members, numbers, OF_ENERGY, lambda times_s, energies_j: energies_j / times_s)

    def _fitted(
        self,
        members: Sequence[int],
        numbers: dict[str, float],
        free: Mapping[str, tuple[float, float, float]],
        quantity: Callable[[Array, Array], Array],
    ) -> dict[str, float]:
        def errors(x: Array) -> Array:
            tried = numbers | dict(zip(free, np.exp(x), strict=True))
            logarithms = []
            for n in members:
                curve = self.curves[n]
                is_free, measured = curve.is_free, quantity(curve.times_s, curve.energies_j)
                predicted = quantity(*self.costs(n, tried, curve.clocks_mhz[is_free]))
                logarithms.append(np.log(predicted / measured[is_free]))
            return np.concatenate(logarithms)

        start, low, high = np.log(np.array(list(free.values()))).T
        x = least_squares(errors, start, bounds=(low, high), loss="soft_l1", f_scale=0.05).x
        return numbers | {name: float(value) for name, value in zip(free, np.exp(x), strict=True)}


def with_numbers(gpu: Gpu, numbers: Mapping[str, float]) -> Gpu:
    """Return the GPU with what was fitted of its HBM, and what its limiter holds."""
    whole, share = numbers["hbm_j_per_byte"], numbers["hbm_core_energy_share"]
    parts = {"hbm_j_per_byte": (1 - share) * whole, "hbm_core_j_per_byte": share * whole}
    others = {name: numbers[name] for name in ("stream_gb_per_s", "throttle_share")}
    return replace(gpu, coefficients=replace(gpu.coefficients, **parts, **others))


def measure(passes: Passes) -> dict[str, Any]:
    """Return errors by clock with each model left out of the fit, and savings of the best clock."""
    errors: dict[str, list[Array]] = defaultdict(list)
    savings, numbers = [], {"all": passes.fitted(range(len(passes.curves)))}
    for n, curve in enumerate(passes.curves):
        if curve.model not in numbers:
            numbers[curve.model] = passes.fitted([k for k, c in enumerate(passes.curves) if c.model != curve.model])
        times_s, energies_j = passes.costs(n, numbers[curve.model], curve.clocks_mhz)
        pairs = {"time": (times_s, curve.times_s), "energy": (energies_j, curve.energies_j)}
        for name, (predicted, measured) in pairs.items():
            errors[name].append(np.abs(predicted / measured - 1))
            k = curve.at_reference
            errors[f"relative_{name}"].append(np.abs(predicted / predicted[k] * measured[k] / measured - 1))
        savings.append({"pass": f"{curve.model} {curve.batch} x {curve.seq_len}", **_best(curve, energies_j)})
    off = [abs(saving["measured_pct"] - saving["predicted_pct"]) for saving in savings]
    return {
        "curves": len(passes.curves),
        "points": sum(map(len, errors["time"])),
        **{f"{name}_mape_pct": 100 * float(np.mean(np.concatenate(shares))) for name, shares in errors.items()},
        "by_clock_pct": _by_clock(passes.curves, errors),
        "savings_off_points": float(np.mean(off)),
        "savings": savings,
        "numbers": numbers,
    }


def _best(curve: Curve, energies_j: Array) -> dict[str, float]:
    """Return the clocks of the least measured and predicted energy, and what the predicted one saves."""
    best = int(np.argmin(energies_j))
    return {
        "measured_best_mhz": float(curve.clocks_mhz[int(np.argmin(curve.energies_j))]),
        "predicted_best_mhz": float(curve.clocks_mhz[best]),
        "measured_pct": float(100 * (1 - curve.energies_j[best] / curve.energies_j[-1])),
        "predicted_pct": float(100 * (1 - energies_j[best] / energies_j[-1])),
    }


def _by_clock(curves: Sequence[Curve], errors: Mapping[str, Sequence[Array]]) -> dict[int, dict[str, float]]:
    """Return the mean error of each kind at each clock."""
    clocks = sorted({float(clock) for curve in curves for clock in curve.clocks_mhz})
    return {
        int(clock): {
            name: 100 * float(np.mean([s[c.clocks_mhz == clock] for s, c in zip(shares, curves, strict=True)
                                       if clock in c.clocks_mhz]))
            for name, shares in errors.items()
        }
        for clock in clocks
    }  # fmt: skip


def main() -> None:
    """Read, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=Path, required=True)
    parser.add_argument("--voltage", type=Path, required=True)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    curves = read_curves(arguments.passes)
    with tempfile.TemporaryDirectory() as folder:
        workloads = [workload_of(curve, Path(folder)) for curve in curves]
    tallies = [forward_of(workload) for workload in workloads]
    gpu = card(workloads[0].gpu, arguments.voltage)
    passes = Passes(curves, tallies, gpu, workloads[0].software)
    answer = measure(passes)
    if arguments.json:
        print(json.dumps(answer))
        return
    for name, value in answer.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
