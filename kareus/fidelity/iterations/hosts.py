"""What the host adds to passes: it launches kernels ahead of the GPU, so that whichever takes longer decides."""

from collections.abc import Mapping, Sequence

from kareus.fidelity.iterations.passes import PassCost
from kareus.graph.records import TRACED, Direction
from kareus.workload.config import Workload
from kareus.workload.software import Accounting, Software

HOST_NORM = 6
"""Exponent that joins times of host and GPU; infinity would be the longer of both.

Chosen on `vtrain-single`, which shows the host most: with 3 its error is 5.9 % instead of 5.3 (docs/fidelity.md).
"""


def host_slowdown(
    workload: Workload,
    software: Software,
    passes: Mapping[tuple[tuple[int, int], Direction], Sequence[PassCost]],
    stage: int,
) -> dict[Direction, float]:
    """Return by how much the host makes passes of a stage longer than they are on the GPU, by direction.

    Args:
        workload: its pipeline.
        software: that launches.
        passes: parts of each pass, by its place and direction.
        stage: from 0.
    """
    own = {
        d: [part for (place, its), parts in passes.items() if place[0] == stage and its is d for part in parts]
        for d in TRACED
    }
    gpu_s = {d: sum(cost.gpu_s for cost in costs) for d, costs in own.items()}
    if software.accounting is Accounting.TRACES:
        return {d: sum(_joined_s(c.gpu_s, host_time_s(software, c)) for c in own[d]) / gpu_s[d] for d in TRACED}
    host_s = {d: sum(host_time_s(software, cost) for cost in costs) for d, costs in own.items()}
    if software.synchronises_stages and workload.parallelism.pp > 1:
        return {d: _joined_s(gpu_s[d], host_s[d]) / gpu_s[d] for d in TRACED}
    whole_s = sum(gpu_s.values())
    return dict.fromkeys(TRACED, _joined_s(whole_s, sum(host_s.values())) / whole_s)


def _joined_s(gpu_s: float, host_s: float) -> float:
    """Time of a stretch of kernels; where both take about the same, parts of it wait for each."""
    longest_s = max(gpu_s, host_s)
    shares = (gpu_s / longest_s) ** HOST_NORM + (host_s / longest_s) ** HOST_NORM
    return longest_s * float(shares ** (1 / HOST_NORM))


def host_time_s(software: Software, cost: PassCost) -> float:
    """Return the time in which the host launches a pass."""
    return cost.launches * software.host_launch_s + cost.collectives * software.host_collective_s
