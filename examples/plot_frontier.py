"""Plot the time-energy frontier of every method of every workload in a results folder.

    python examples/plot_frontier.py results frontier.png

The body of `plot` fits in a cell of a notebook.
"""

import sys

import altair as alt

import kareus
from kareus.errors import KareusError


def plot(folder: str, path: str) -> None:
    """Write the figure of the results in `folder` to `path`."""
    tables = kareus.open_results(folder)
    frontiers = (
        tables["iteration"].sort("time_s").select("workload", "testbed", "method", "time_s", "energy_j").collect()
    )
    charts = [
        alt.Chart(alt.InlineData(values=own.to_dicts()), title=[own["workload"][0], own["testbed"][0]])
        .mark_line(point=True)
        .encode(
            x=alt.X("time_s:Q", title="iteration time (s)").scale(zero=False),
            y=alt.Y("energy_j:Q", title="energy (J)").scale(zero=False),
            color=alt.Color("method:N", title=None),
        )
        for own in frontiers.partition_by("workload", maintain_order=True)
    ]
    alt.hconcat(*charts).save(path)  # as PNG, SVG, PDF or a page, by the suffix


if __name__ == "__main__":
    if len(sys.argv) != 3:  # noqa: PLR2004 - a folder and a file
        sys.exit("usage: plot_frontier.py RESULTS FIGURE")
    try:
        plot(*sys.argv[1:])
    except KareusError as error:
        sys.exit(f"plot_frontier: {error}")
    sys.stdout.write(f"written: {sys.argv[2]}\n")
