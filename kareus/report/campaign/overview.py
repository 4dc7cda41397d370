"""All workloads of a campaign beside one another: absolute figures at max throughput of each method."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from kareus.artifacts.tables import Row
from kareus.model.config import model_words
from kareus.pipeline.compare import OURS, THROUGHPUT_BASELINE
from kareus.plans.answer import Answer, fastest_answer
from kareus.report.savings_words import WHICH_PLAN, savings_words
from kareus.report.sheets import DASH, Sheet, SheetRow, heads, percent
from kareus.report.workload.tables import COMPARISON

SHORT_GPU = re.compile(r"-SXM.*|-PCIE.*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The plan of the least time of one method of one workload."""

    workload: str
    label: str
    method: str
    time_s: float
    energy_j: float
    tokens_per_s: float
    joules_per_token: float
    time_reduction_percent: float | None
    energy_reduction_percent: float | None


def overview_rows(comparison: pl.DataFrame) -> list[Overview]:
    """Return a row for each workload and method of a table `COMPARISON`, each workload once."""
    rows = comparison.unique(["workload", "method"], maintain_order=True).to_dicts()
    labels = short_labels(rows)
    return [
        Overview(
            workload=row["workload"],
            label=labels[row["workload"]],
            method=row["method"],
            time_s=row["time_s"],
            energy_j=row["energy_j"],
            tokens_per_s=tokens(row) / row["time_s"],
            joules_per_token=row["energy_j"] / tokens(row),
            time_reduction_percent=row["time_reduction_percent"],
            energy_reduction_percent=row["energy_reduction_percent"],
        )
        for row in rows
    ]


def short_labels(rows: list[Row]) -> dict[str, str]:
    """Return a short name for each workload, by the name of its folder.

    Those alike also have the parts of their folders' names that not all of them have, such as `search-paper`.
    """
    short = {row["workload"]: short_label(row) for row in rows}
    labels = {}
    for name, label in short.items():
        alike = [set(other.split("_")) for other, its in short.items() if its == label]
        distinct = [part for part in name.split("_") if part not in set.intersection(*alike)]
        labels[name] = ", ".join([label, *distinct])
    return labels


def fleet_labels(fleets: Sequence[Row], title: Callable[[Row], str]) -> dict[tuple[str, str], str]:
    """Return what tells each fleet of a campaign from the others, by the names of its workload and its own.

    A title alone where no two are alike; those of several workloads begin with what the workload is, and fleets of one
    that are alike end with their names.

    Args:
        fleets: members of a campaign, or rows of `FLEET_COMPARISON`, with the name of the fleet as `name`.
        title: what a fleet is, such as its size.
    """
    members = {(row["workload"], row["name"]): row for row in fleets}
    workloads = short_labels(list({row["workload"]: row for row in members.values()}.values()))
    titles = {key: title(row) for key, row in members.items()}
    if len(workloads) > 1:
        titles = {(workload, name): f"{workloads[workload]}: {text}" for (workload, name), text in titles.items()}
    alike = list(titles.values())
    return {key: text if alike.count(text) == 1 else f"{text} ({key[1]})" for key, text in titles.items()}


def short_label(member: Row) -> str:
    """Return what a member is in a few words, such as `Llama 3.2 3B, pp2-tp8, 8x4,096, A100`."""
    return (
        f"{model_words(member['model'])}, {member['parallelism']}, {member['microbatch_size']}\u00d7"
        f"{member['sequence_length']:,}, {SHORT_GPU.sub('', member['gpu'])}"
    )


def tokens(row: Row) -> int:
    """Return the tokens of an iteration; all degrees but those of data parallelism share its sequences."""
    replicas = re.search(r"\bdp(\d+)", row["parallelism"])
    sequences = row["num_microbatches"] * row["microbatch_size"] * (int(replicas[1]) if replicas else 1)
    return int(sequences * row["sequence_length"])


def headlines(workloads: Iterable[pl.DataFrame], fleets: Iterable[pl.DataFrame]) -> list[str]:
    """Return what `kareus` saves over all workloads, and over all fleets, as far as they were compared.

    Args:
        workloads: a table `ITERATION` of each.
        fleets: a table `FLEET` of each.
    """
    kinds = {name: _fastest(plans) for name, plans in (("workload", workloads), ("fleet", fleets))}
    sentences = (
        savings_words(answers, f"{len(answers)} {name}s" if len(answers) > 1 else f"the {name}")
        for name, answers in kinds.items()
    )
    return list(filter(None, sentences))


def _fastest(plans: Iterable[pl.DataFrame]) -> list[Answer]:
    """Return the answers that plans `fastest` of `kareus` are, of those that have it and its baseline."""
    both = {OURS, THROUGHPUT_BASELINE}
    return [fastest_answer(methods, OURS) for methods in plans if both <= set(methods["method"])]


def overview_sheet(overview: list[Overview], members: pl.DataFrame) -> Sheet:
    """Return a row for each workload: savings first, then absolute figures; refused ones with their reasons."""
    plans = {(row.workload, row.method): row for row in overview}
    rows = []
    for member in members.filter(pl.col("kind") == "workload").unique("workload", maintain_order=True).to_dicts():
        name = member["workload"]
        ours, base = plans.get((name, OURS)), plans.get((name, THROUGHPUT_BASELINE))
        if member["refusal"] or ours is None or base is None:
            cells = (short_label(member), "refused", *[DASH] * 9)
            rows.append(SheetRow(cells=cells, note=f"refused: {member['refusal']}"))
            continue
        rows.append(
            SheetRow(
                cells=(
                    ours.label,
                    percent(ours.time_reduction_percent),
                    percent(ours.energy_reduction_percent),
                    *_figures(ours),
                    *_figures(base),
                ),
                link=f"workloads/{name}/page.html",
            )
        )
    figures = ("s", "kJ", "tokens/s", "mJ/token")
    return Sheet(
        caption="The least time of kareus for each workload, beside sequential (the trainer's own execution)",
        note=WHICH_PLAN,
        heads=heads(
            [("", ("workload",)), ("saved", ("time", "energy")), ("kareus", figures), (THROUGHPUT_BASELINE, figures)]
        ),
        rows=tuple(rows),
        source=COMPARISON.name,
    )


def _figures(row: Overview) -> tuple[str, ...]:
    return (
        f"{row.time_s:.3f}",
        f"{row.energy_j / 1e3:,.2f}",
        f"{row.tokens_per_s:,.0f}",
        f"{1e3 * row.joules_per_token:.1f}",
    )
