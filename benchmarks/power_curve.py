"""The shape of the GPU model's power over the clock, against power measured under a stress load at locked clocks.

    python benchmarks/power_curve.py FILE.csv

FILE has the columns gpu, locked_mhz and power_w. Measured parts are a 400 W A100, a 94 GB 500 W H100 and a 600 W H200;
each is compared with a configuration of exactly that part. The load is not one of ours, so its power above static is
scaled to fit, one number for each part: what is checked is V(f)^2 f and the static power.
"""

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from kareus.gpu_model.energy import relative_voltage
from kareus.workload.resolve import resolve_accepted

PARTS = {
    "A100-400W": ["gpu=a100-sxm4-40gb"],
    "H100-94GB-500W": ["gpu=h100-sxm5-80gb", "gpu.power_limit_w=500", "gpu.memory_gib=93", "gpu.hbm_gb_per_s=3938"],
    "H200-600W": ["gpu=h200", "gpu.power_limit_w=600"],
}


def main() -> None:
    """Print one line for each part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="measured power at locked clocks (CSV)")
    file = parser.parse_args().file
    if not file.is_file():
        parser.error(f"{file}: no such file; it needs the columns gpu, locked_mhz and power_w")
    measured = defaultdict(list)
    with file.open(newline="") as handle:
        for row in csv.DictReader(handle):
            measured[row["gpu"]].append((float(row["locked_mhz"]), float(row["power_w"])))
    print("part             points  mean error %  largest %  at MHz  searched range: mean error %")
    for part, overrides in PARTS.items():
        print(line(part, overrides, np.array(measured[part])))


def line(part: str, overrides: list[str], points: np.ndarray) -> str:
    """Fit the load's scale and compare."""
    ((_, workload),) = resolve_accepted(overrides).items()
    gpu = workload.gpu
    points = points[(points[:, 0] <= gpu.maximum_clock_mhz) & (points[:, 1] < 0.98 * gpu.power_limit_w)]
    clocks, power_w = points.T
    shape = relative_voltage(gpu, clocks) ** 2 * clocks / gpu.maximum_clock_mhz
    scale_w = (shape * (power_w - gpu.static_power_w)).sum() / (shape**2).sum()
    errors = 100 * np.abs((gpu.static_power_w + scale_w * shape) / power_w - 1)
    searched = clocks >= gpu.search_frequencies.minimum_mhz
    worst = errors.argmax()
    return (
        f"{part:<15}  {len(points):>6}  {errors.mean():>12.1f}  {errors[worst]:>9.1f}  {clocks[worst]:>6.0f}"
        f"  {errors[searched].mean():>28.1f}"
    )


if __name__ == "__main__":
    main()
