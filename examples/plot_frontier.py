"""Plot the time-energy frontier of every method of every workload in a results folder.

    python examples/plot_frontier.py results frontier.png

The body of `plot` fits in a cell of a notebook.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import kareus
from kareus.errors import KareusError


def plot(folder: str, path: str) -> None:
    """Write the figure of the results in `folder` to `path`."""
    frontiers = kareus.open_results(folder)["iteration"].sort("time_s").collect()
    workloads = frontiers.partition_by("workload", maintain_order=True)
    figure, axes = plt.subplots(1, len(workloads), figsize=(6 * len(workloads), 4), squeeze=False, layout="constrained")
    for axis, own in zip(axes[0], workloads, strict=True):
        for (method,), plans in own.group_by("method", maintain_order=True):
            axis.plot(plans["time_s"], plans["energy_j"] / 1e3, marker=".", label=method)
        axis.set(xlabel="iteration time (s)", ylabel="energy (kJ)")
        axis.set_title(f"{own['workload'][0]}\n{own['testbed'][0]}", fontsize=8)
        axis.legend(fontsize=7)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    try:
        plot(*sys.argv[1:])
    except KareusError as error:
        sys.exit(f"plot_frontier: {error}")
