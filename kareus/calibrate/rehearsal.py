"""Rehearsing a calibration on a simulated GPU whose coefficients are hidden, and what the calibration missed of it.

Hidden coefficients are drawn around those of the GPU's file, by a seed. Kernels that were not measured, of other shapes
and at other clocks, judge the calibrated GPU: their times and powers by the hidden GPU's laws are exact.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kareus.arrays import generator
from kareus.calibrate.coefficients import OF_HEAT, expectations
from kareus.calibrate.probes import Probe, ProbeKind, attention, beside, collective, gemm, norm, swiglu
from kareus.gpu_model.coefficients import COEFFICIENTS, SHARES
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import run_program
from kareus.gpu_model.thermal import with_numbers
from kareus.graph.records import CollectiveKind, Operator, Program, Step

MOST_SPREAD = 0.3
"""Largest standard deviation of a hidden logarithm: one GPU differs from another of its kind by less."""
MOST_DEVIATIONS = 2.0
SPREAD_OF_HEAT = 0.15
MOST_SHARE = 0.98


def hidden_gpu(gpu: Gpu, seed: int) -> Gpu:
    """Return a GPU with hidden coefficients, static power and heat, drawn around those of `gpu`."""
    drawn = generator(seed, "calibration rehearsal")

    def moved(name: str, value: float, spread: float) -> float:
        deviation = float(np.clip(drawn.standard_normal(), -MOST_DEVIATIONS, MOST_DEVIATIONS))
        other = value * float(np.exp(deviation * spread))
        return min(other, MOST_SHARE) if name in SHARES else other

    c = gpu.coefficients
    values: dict[str, Any] = {
        name: max(moved(name, expectation.value, min(expectation.spread, MOST_SPREAD)), COEFFICIENTS[name].least)
        for name, expectation in expectations(gpu).items()
    }
    values |= {name: moved(name, getattr(c, name), SPREAD_OF_HEAT) for name in OF_HEAT}
    static_power_w = moved("static_power_w", gpu.static_power_w, SPREAD_OF_HEAT)
    return replace(with_numbers(gpu, static_power_w, values), uncertainty=None)


def unmeasured(group_size: int) -> list[Probe]:
    """Return kernels of shapes that no calibration measures."""
    kernels = [
        (ProbeKind.GEMM, gemm("probe", shape))
        for shape in (
            (8192, 5120, 5120), (4096, 14336, 4096), (16384, 1536, 3072), (2560, 2560, 2560), (768, 3072, 12288),
            (32768, 3072, 1024), (96, 5120, 5120), (1280, 1280, 40960), (6144, 6144, 512), (16384, 2048, 4096),
        )
    ] + [
        (kind, attention(sizes, backward=kind is ProbeKind.ATTENTION_BACKWARD))
        for kind in (ProbeKind.ATTENTION, ProbeKind.ATTENTION_BACKWARD)
        for sizes in ((1, 24, 8, 8192, 128), (4, 20, 4, 2048, 128), (2, 12, 12, 1536, 64))
    ] + [
        (ProbeKind.MEMORY, operator)
        for operator in (norm(8192, 5120), norm(2048, 3072), swiglu(8192, 8192), norm(32768, 3072))
    ]  # fmt: skip
    return [*(_alone(kind, operator) for kind, operator in kernels), *_moving(group_size)]


def _alone(kind: ProbeKind, operator: Operator) -> Probe:
    return Probe(kind=kind, program=Program(name="unmeasured", steps=(Step(operators=(operator,)),)))


def _moving(group_size: int) -> list[Probe]:
    reduce, gather = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER
    alone = [(reduce, 96, 12), (reduce, 32, 20), (gather, 192, 12), (CollectiveKind.REDUCE_SCATTER, 96, 16)]
    return [
        *(beside((), collective(kind, mib, group_size), sm_count) for kind, mib, sm_count in alone),
        beside((gemm("probe", (8192, 4096, 14336)),), collective(reduce, 128, group_size), 12),
        beside((norm(16384, 8192),) * 2, collective(reduce, 96, group_size), 12),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """How far predictions of unmeasured kernels are off, in percent of what the hidden GPU does."""

    kind: ProbeKind
    time_mape_pct: float
    power_mape_pct: float
    worst_time_pct: float
    worst_power_pct: float


def missed(gpu: Gpu, hidden: Gpu, probes: list[Probe], clocks_mhz: list[int]) -> list[Missed]:
    """Return what the predictions of `gpu` miss of the hidden GPU, by kind of kernel."""
    errors = []
    for kind in dict.fromkeys(probe.kind for probe in probes):
        programs = [probe.program for probe in probes if probe.kind is kind]
        clocks = np.array(clocks_mhz, dtype=np.float64)
        pairs = [(run_program(gpu, program, clocks), run_program(hidden, program, clocks)) for program in programs]
        times, powers = (
            100 * np.abs([getattr(ours, of) / getattr(theirs, of) - 1 for ours, theirs in pairs])
            for of in ("time_s", "power_w")
        )
        errors.append(
            Missed(
                kind=kind,
                time_mape_pct=float(times.mean()),
                power_mape_pct=float(powers.mean()),
                worst_time_pct=float(times.max()),
                worst_power_pct=float(powers.max()),
            )
        )
    return errors
