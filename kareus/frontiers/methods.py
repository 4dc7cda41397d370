"""Points of an instruction that each method may use: the rows of the table `MICROBATCH`."""

from collections.abc import Mapping, Sequence
from typing import Any

from kareus.artifacts.records import to_plain
from kareus.frontiers.microbatch import Point, frontier, frontier_mask
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.waiting import effective_energy_j
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import UPDATING
from kareus.profile.programs import Execution

WITHOUT_FREQUENCY = "kareus-without-frequency"
"""The ablation that runs everything at the maximum clock."""
SEARCHED = ("kareus", WITHOUT_FREQUENCY)
"""Methods with points of searched partitions."""


def points_by_method(points: Mapping[Execution, Sequence[Point]], gpu: Gpu) -> dict[str, list[Point]]:
    """Points by method, by rising time: all of the baselines, the frontiers of `kareus` and of its ablations.

    An odd microbatch has no nanobatches, so neither `nanobatching` nor the ablations.

    Args:
        points: every point of one instruction, by how it is executed.
        gpu: whose blocking power and maximum clock apply.
    """
    sequential = points[Execution.SEQUENTIAL]
    searched = [*sequential, *points.get(Execution.OVERLAP, ())]
    sets: dict[str, Sequence[Point]] = {"sequential": sequential, "kareus": frontier(searched, gpu.blocking_power_w)}
    if Execution.NANOBATCHING in points:
        default = points[Execution.NANOBATCHING]
        fastest_mhz = max(point.frequency_mhz for point in sequential)
        at_fastest = [point for point in searched if point.frequency_mhz == fastest_mhz]
        sets |= {
            "nanobatching": default,
            WITHOUT_FREQUENCY: frontier(at_fastest, gpu.blocking_power_w),
            "kareus-without-kernel-schedule": frontier(
                list(dict.fromkeys((*sequential, *default))), gpu.blocking_power_w
            ),
        }
    return {method: sorted(of_method, key=lambda p: p.time_s) for method, of_method in sets.items()}


def microbatch_rows(
    kind: InstructionKind, points: Mapping[Execution, Sequence[Point]], gpu: Gpu
) -> list[dict[str, Any]]:
    """Return the rows of `MICROBATCH` of the instructions of one kind."""
    sets = points_by_method(points, gpu)
    if kind.direction in UPDATING:  # plans with few changes of clock may update at any of them
        at_all = sorted(points[Execution.SEQUENTIAL], key=lambda point: point.time_s)
        sets = {method: of_method if method == WITHOUT_FREQUENCY else at_all for method, of_method in sets.items()}
    return [
        {
            "method": method,
            **kind._asdict(),
            "point": number,
            "execution": point.execution,
            "frequency_mhz": point.frequency_mhz,
            "time_s": point.time_s,
            "energy_j": point.energy_j,
            "dynamic_energy_j": point.energy_j - gpu.static_power_w * point.time_s,
            "effective_energy_j": effective_energy_j(point.energy_j, point.time_s, gpu.blocking_power_w),
            "time_error_s": point.time_error_s,
            "energy_error_j": point.energy_error_j,
            "is_thinned": point.is_thinned,
            "on_frontier": on_frontier,
            "choices": to_plain(point.choices),
        }
        for method, of_method in sets.items()
        for number, (point, on_frontier) in enumerate(
            zip(of_method, frontier_mask(of_method, gpu.blocking_power_w), strict=True)
        )
    ]
