"""The tables of a campaign in the form of the paper's evaluation (sections 6.2 to 6.7), from its tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import polars as pl

from kareus.artifacts.tables import Row
from kareus.model.config import model_words
from kareus.plans.units import SECONDS_PER_HOUR
from kareus.report.campaign.overview import fleet_labels, short_labels
from kareus.report.savings_words import ISO_NOTE
from kareus.report.sheets import Sheet, SheetRow, heads, percent, sheet_of
from kareus.report.workload.tables import COMPARISON, FLEET_COMPARISON, PASSES, PROFILER

SHORT = {
    "sequential": "M",
    "sequential+perseus": "M+P",
    "nanobatching": "N",
    "nanobatching+perseus": "N+P",
    "kareus": "kareus",
    "kareus-without-frequency": "w/o frequency",
    "kareus-without-kernel-schedule": "w/o kernel schedule",
}
"""Names of the methods in table heads."""
METHODS_NOTE = "M: sequential; N: nanobatching; +P: +perseus"
OF_WORKLOAD = ("workload",)
"""Heads before the results. One column says what a workload is, so that results are in sight on narrow screens."""


def index_sheet(members: pl.DataFrame) -> Sheet:
    """Everything that belongs to a campaign; planned workloads and fleets lead to their pages."""
    states = {"workload": "planned", "fleet": "emulated", "sweep": "measured"}
    pages = {"workload": "page.html", "fleet": "fleets.html"}
    return sheet_of(
        "Members of the campaign",
        members.iter_rows(named=True),
        (
            ("workload", lambda row: ", ".join((row["workload"], *_named(row)))),
            ("part", lambda row: row["part"]),
            ("state", lambda row: f"refused: {row['refusal']}" if row["refusal"] else states[row["kind"]]),
            ("GPUs", lambda row: f"{row['gpus']:,}"),
        ),
        texts=3,
        link=lambda row: (
            f"workloads/{row['workload']}/{pages[row['kind']]}" if row["kind"] in pages and not row["refusal"] else None
        ),
    )


def _named(row: Row) -> tuple[str, ...]:
    return () if row["name"] is None else (f"{row['kind']} {row['name']}",)


def throughput_sheet(members: pl.DataFrame, comparison: pl.DataFrame) -> Sheet:
    """Reductions at max throughput (paper, section 6.2.1)."""
    compared = ("sequential+perseus", "nanobatching+perseus", "kareus")
    return Sheet(
        caption="Max throughput: reductions (%) of the plans of the least time against sequential",
        heads=heads([("", OF_WORKLOAD), ("time", _short(compared)), ("energy", _short(compared))]),
        rows=_rows(
            members,
            comparison,
            [(column, method) for column in _reductions("time", "energy") for method in compared],
        ),
        source=COMPARISON.name,
        note="; ".join([METHODS_NOTE, *_errors_note(comparison, compared, ("time_reduction", "energy_reduction"))]),
    )


def improvement_sheet(members: pl.DataFrame, comparison: pl.DataFrame) -> Sheet:
    """Iso-time and iso-energy reductions (paper, section 6.2.2)."""
    compared = ("nanobatching+perseus", "kareus")
    return Sheet(
        caption="Frontier improvement: reductions (%) against sequential+perseus",
        heads=heads([("", OF_WORKLOAD), ("iso-time energy", _short(compared)), ("iso-energy time", _short(compared))]),
        rows=_rows(
            members,
            comparison,
            [(column, method) for column in _reductions("iso_time_energy", "iso_energy_time") for method in compared],
        ),
        source=COMPARISON.name,
        note="; ".join(
            [
                f"{ISO_NOTE}; of the planned points of each frontier; \u2013: no plan satisfies the constraint",
                *_errors_note(comparison, compared, ("iso_time_energy_reduction", "iso_energy_time_reduction")),
            ]
        ),
    )


def _errors_note(comparison: pl.DataFrame, methods: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the range of the standard errors in a sheet as one remark; none if there are no standard errors."""
    errors = comparison.filter(pl.col("method").is_in(methods)).select(f"{name}_error_percent" for name in names)
    percents = [error for row in errors.iter_rows() for error in row if error]
    if not percents:
        return []
    low, high = f"{min(percents):.1f}", f"{max(percents):.1f}"
    return [
        f"standard errors from the noise of measuring are {low if low == high else f'{low} to {high}'} points; table "
        f"`{COMPARISON.name}` has each"
    ]


def ablation_sheet(members: pl.DataFrame, comparison: pl.DataFrame) -> Sheet:
    """Increases of the ablated variants over kareus (paper, section 6.4)."""
    ablated = ("kareus-without-frequency", "kareus-without-kernel-schedule", "nanobatching")
    return Sheet(
        caption="Ablation: increases (%) over the plan of the least time of kareus",
        heads=heads([("", OF_WORKLOAD), *((SHORT[method], ("time", "energy")) for method in ablated)]),
        rows=_rows(
            members,
            comparison,
            [(f"{cost}_increase_percent", method) for method in ablated for cost in ("time", "energy")],
        ),
        source=COMPARISON.name,
        note="Without its search of frequencies, without that of kernel schedules, and without both (N: nanobatching)",
    )


def runs_sheet(members: pl.DataFrame, comparison: pl.DataFrame) -> Sheet:
    """Return the table of measured and predicted iterations."""
    compared = ("sequential", "sequential+perseus", "nanobatching+perseus", "kareus")
    return Sheet(
        caption="End to end: how far (%) the plans `fastest` ran above what was predicted",
        heads=heads([("", OF_WORKLOAD), ("time", _short(compared)), ("energy", _short(compared))]),
        rows=_rows(
            members,
            comparison,
            [(f"ran_{cost}_percent", method) for cost in ("time", "energy") for method in compared],
        ),
        source=COMPARISON.name,
        note=METHODS_NOTE,
    )


def _reductions(*names: str) -> list[str]:
    return [f"{name}_reduction_percent" for name in names]


def _short(methods: Iterable[str]) -> list[str]:
    return [SHORT[method] for method in methods]


def _rows(members: pl.DataFrame, comparison: pl.DataFrame, columns: Sequence[tuple[str, str]]) -> tuple[SheetRow, ...]:
    """Return a row for each workload, each once: cells of (column, method) in `comparison`; refused ones are marked."""
    costs = {(row["workload"], row["method"]): row for row in comparison.iter_rows(named=True)}
    rows, workloads = [], members.unique("workload", maintain_order=True).to_dicts()
    labels = short_labels(workloads)
    for member in workloads:
        name, refusal = member["workload"], member["refusal"]
        cells = [
            _refused(refusal) if refusal else number(costs.get((name, method)), column) for column, method in columns
        ]
        rows.append(SheetRow(cells=(labels[name], *cells), link=None if refusal else f"workloads/{name}/page.html"))
    return tuple(rows)


def _refused(refusal: str) -> str:
    """Return the refusal in one word, as in the paper's tables; the index has the reason."""
    return "OOM" if "out of memory" in refusal else "refused"


def number(row: Row | None, column: str) -> str:
    """A percentage without its sign, or a dash."""
    return percent(row[column] if row else None).removesuffix(" %")


def fleet_sheets(fleets: pl.DataFrame) -> list[Sheet]:
    """Strong scaling, max throughput and frontier improvement of emulated fleets (paper, section 6.3)."""
    each = fleets.unique(("workload", "fleet"), maintain_order=True).rename({"fleet": "name"})
    labels = fleet_labels(each.to_dicts(), lambda row: f"{row['gpus']:,} GPUs")
    reduced, iso = ("sequential+perseus", "kareus"), ("kareus",)
    throughput = [(column, method) for column in _reductions("time", "energy") for method in reduced]
    improved = [(column, method) for column in _reductions("iso_time_energy", "iso_energy_time") for method in iso]
    return [
        Sheet(
            caption="Emulation, max throughput: reductions (%) against sequential",
            heads=heads([("", ("fleet", "microbatches")), ("time", _short(reduced)), ("energy", _short(reduced))]),
            rows=_fleet_rows(fleets, labels, throughput),
            source=FLEET_COMPARISON.name,
            note=METHODS_NOTE,
        ),
        Sheet(
            caption="Emulation, frontier improvement: reductions (%) of kareus against sequential+perseus",
            heads=heads([("", ("fleet", "microbatches", "iso-time energy", "iso-energy time"))]),
            rows=_fleet_rows(fleets, labels, improved),
            source=FLEET_COMPARISON.name,
            note=ISO_NOTE,
        ),
        sheet_of(
            "Strong scaling",
            each.iter_rows(named=True),
            (
                ("fleet", lambda row: labels[row["workload"], row["name"]]),
                ("model", lambda row: model_words(row["model"])),
                ("GPUs", lambda row: f"{row['gpus']:,}"),
                ("pipelines", lambda row: f"{row['pipelines']:,}"),
                ("microbatches of each", lambda row: f"{row['num_microbatches']:,}"),
                ("of all", lambda row: f"{row['pipelines'] * row['num_microbatches']:,}"),
                ("sequences of all", lambda row: f"{row['global_batch_size']:,}"),
            ),
            texts=2,
            source=FLEET_COMPARISON.name,
            link=lambda row: f"workloads/{row['workload']}/fleets.html",
        ),
    ]


def _fleet_rows(
    fleets: pl.DataFrame, labels: Mapping[tuple[str, str], str], columns: Sequence[tuple[str, str]]
) -> tuple[SheetRow, ...]:
    rows = []
    for fleet in fleets.partition_by("workload", "fleet", maintain_order=True):
        costs = {row["method"]: row for row in fleet.iter_rows(named=True)}
        cells = [number(costs.get(method), column) for column, method in columns]
        rows.append(
            SheetRow(cells=(labels[fleet["workload"][0], fleet["fleet"][0]], str(fleet["num_microbatches"][0]), *cells))
        )
    return tuple(rows)


def search_sheet(passes: pl.DataFrame, times: pl.DataFrame, labels: Mapping[str, str]) -> Sheet:
    """Return the table of search passes and the time of searches (paper, section 6.6).

    Args:
        passes: a table `PASSES`.
        times: a table `SEARCH_TIME`.
        labels: short names of workloads.
    """
    names = passes["chosen_by"].unique(maintain_order=True).to_list()
    workloads = passes["workload"].unique(maintain_order=True).to_list()
    rows = [_search_row(labels[name], names, _own(passes, name), _own(times, name)) for name in workloads]
    rows += [
        _search_row(name, names, passes.join(searches, on="workload", how="semi"), searches)
        for name, searches in _by_strategy(times)
    ]
    return Sheet(
        caption="Searches: shares of the frontiers found by each pass, and time",
        heads=heads(
            [
                ("", ("workload", "measured", "on the frontier")),
                ("found by (%)", names),
                ("time", ("profiling (h)", "GPU-hours", "optimisation (s)", "profiling (%)")),
            ]
        ),
        rows=tuple(rows),
        source=PASSES.name,
        note="Profiling is the testbed's clock, virtual if it is simulated; GPU-hours count every GPU of a partition's "
        "group; optimisation is the planning machine's clock. What workloads share counts in each. Several passes may "
        "choose one candidate; shares are of all choices.",
    )


def _by_strategy(times: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Searches of all workloads by strategy, each with the name of its row."""
    strategies = [(str(strategy), rows) for (strategy,), rows in times.group_by("strategy", maintain_order=True)]
    return [
        ("all workloads" if len(strategies) == 1 else f"all workloads, search={name}", searches)
        for name, searches in strategies
    ]


def _own(frame: pl.DataFrame, workload: str) -> pl.DataFrame:
    return frame.filter(pl.col("workload") == workload)


def _search_row(name: str, names: Sequence[str], passes: pl.DataFrame, times: pl.DataFrame) -> SheetRow:
    choices = passes["on_frontier"].sum()
    by_pass = dict(passes.group_by("chosen_by").agg(pl.sum("on_frontier")).iter_rows())
    profiling_s, optimisation_s = (float(times[name].sum()) for name in ("profiling_s", "optimisation_s"))
    return SheetRow(
        cells=(
            name,
            f"{times['measured'].sum():,}",
            f"{times['on_frontier'].sum():,}",
            *(f"{100 * by_pass.get(chosen_by, 0) / choices:.0f}" for chosen_by in names),
            f"{profiling_s / SECONDS_PER_HOUR:.2f}",
            f"{times['gpu_s'].sum() / SECONDS_PER_HOUR:.1f}",
            f"{optimisation_s:.1f}",
            f"{100 * profiling_s / (profiling_s + optimisation_s):.1f}",
        )
    )


_SWEPT: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("sweep", lambda row: row["sweep"]),
    ("window (s)", lambda row: f"{row['window_s']:g}"),
    ("cooldown (s)", lambda row: f"{row['cooldown_s']:g}"),
)
"""Columns that say which setting of the profiler a row is of."""


def profiler_sheet(profiler: pl.DataFrame) -> Sheet:
    """Distribution of measured energy over windows and cooldowns (paper, section 6.7)."""
    return sheet_of(
        "Profiler: energy of one execution over repeated trials, and temperatures of the GPU",
        profiler.iter_rows(named=True),
        (
            *_SWEPT,
            ("trials", lambda row: str(row["trials"])),
            ("mean (mJ)", lambda row: f"{1e3 * row['energy_mean_j']:.2f}"),
            ("least (mJ)", lambda row: f"{1e3 * row['energy_least_j']:.2f}"),
            ("most (mJ)", lambda row: f"{1e3 * row['energy_most_j']:.2f}"),
            ("deviation (%)", lambda row: percent(row["energy_deviation_percent"], digits=2).removesuffix(" %")),
            ("before (\u00b0C)", lambda row: f"{row['temperature_before_c']:.1f}"),
            ("after (\u00b0C)", lambda row: f"{row['temperature_after_c']:.1f}"),
        ),
        source=PROFILER.name,
    )


def settling_sheet(profiler: pl.DataFrame) -> Sheet:
    """Bias of measured energies against a GPU that runs for long, and what a measurement takes."""

    def bias(row: Row, name: str) -> str:
        return f"{100 * (row[name] / row['warm_reference_energy_j'] - 1):+z.2f}"

    return sheet_of(
        "Settling: mean energy against that of a GPU which stays warm",
        profiler.iter_rows(named=True),
        (
            *_SWEPT,
            ("as measured (%)", lambda row: bias(row, "energy_mean_j")),
            ("at the settled temperature (%)", lambda row: bias(row, "warm_energy_mean_j")),
            ("takes (s)", lambda row: f"{row['duration_mean_s']:.1f}"),
        ),
        source=PROFILER.name,
    )
