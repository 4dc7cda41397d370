"""Compare two campaigns: what every method costs in each, where both have planned the same workload.

    python examples/compare_campaigns.py results ../yesterday/results

Everything comes from `kareus.open_results`, as LazyFrames; copy what you need.
"""

import sys

import polars as pl

import kareus
from kareus.errors import KareusError


def fastest(folder: str) -> pl.LazyFrame:
    """The plan of least time of every workload and method, and the least energy that the method reaches."""
    plans = kareus.open_results(folder)["iteration"]
    return plans.group_by("workload", "testbed", "method").agg(
        pl.col("time_s").min(),
        pl.col("energy_j").sort_by("time_s").first(),
        pl.col("energy_j").min().alias("least_energy_j"),
    )


def iso_time(before: str, after: str) -> pl.LazyFrame:
    """Energy of the second campaign within the time of the first one's fastest plan."""
    deadlines = fastest(before).select("workload", "method", within_s="time_s")
    plans = kareus.open_results(after)["iteration"].join(deadlines, on=["workload", "method"])
    return (
        plans.filter(pl.col("time_s") <= pl.col("within_s"))
        .group_by("workload", "method")
        .agg(pl.col("energy_j").min().alias("iso_time_energy_j"))
    )


def compare(before: str, after: str) -> pl.DataFrame:
    """One row for each workload and method of both; changes in percent of the first campaign."""
    by = ["workload", "method"]

    def change(column: str, base: str) -> pl.Expr:
        return (100 * (pl.col(column) / pl.col(base) - 1)).round(2)

    return (
        fastest(before)
        .join(fastest(after), on=by, suffix="_after")
        .join(iso_time(before, after), on=by, how="left")
        .select(
            *by,
            pl.col("time_s").round(3),
            change("time_s_after", "time_s").alias("time_%"),
            pl.col("energy_j").round(0),
            change("energy_j_after", "energy_j").alias("energy_%"),
            change("iso_time_energy_j", "energy_j").alias("iso_time_energy_%"),
            change("least_energy_j_after", "least_energy_j").alias("least_energy_%"),
        )
        .sort(by)
        .collect()
    )


def workloads(folder: str) -> dict[str, str]:
    """The planned workloads of a folder, and what each was measured on."""
    rows = kareus.open_results(folder)["iteration"].select("workload", "testbed").unique().sort("workload").collect()
    return dict(rows.iter_rows())


def main(before: str, after: str) -> None:
    """Print the comparison, what was measured on what, and what has no counterpart."""
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200, fmt_str_lengths=80, tbl_hide_dataframe_shape=True):
        sys.stdout.write(f"{compare(before, after)}\n")
    first, second = workloads(before), workloads(after)
    for name in sorted(first.keys() | second.keys()):
        if name not in first or name not in second:
            said = f"only in {before if name in first else after}, not compared"
        elif first[name] == second[name]:
            said = f"{first[name]}, both times"
        else:
            said = f"{first[name]}; then {second[name]}"
        sys.stdout.write(f"{name}: {said}\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:  # noqa: PLR2004 - two folders
        sys.exit("usage: compare_campaigns.py RESULTS OTHER_RESULTS")
    try:
        main(*sys.argv[1:])
    except KareusError as error:
        sys.exit(str(error))
