"""The tables of docs/pipelines.md and docs/research/emulation.md, from the commands that they name.

    python benchmarks/doc_tables.py results            # prints both tables
    python benchmarks/doc_tables.py results --write    # and puts them into the pages

A test under `pytest -m acceptance` runs the commands and compares.
"""

import argparse
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from kareus.artifacts.tables import read_table
from kareus.report.sheets import percent
from kareus.report.workload.tables import COMPARISON, FLEET_COMPARISON
from kareus.workload.memory import estimate_memory
from kareus.workload.resolve import resolve_accepted

ROOT = Path(__file__).parents[1]
PIPELINES = ("1f1b", "gpipe", "interleaved", "zb-h1")
HEADS = {
    "docs/pipelines.md": (
        "| `pipeline=` | memory, GiB | sequential, s | kJ | kareus, s | kJ |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ),
    "docs/research/emulation.md": (
        "| microbatches | time less: `sequential+perseus` | `kareus` | energy less: `sequential+perseus` | `kareus` | "
        "iso-time energy less: `kareus` | iso-energy time less: `kareus` |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ),
}
"""Head of each table, by the page that it is in."""


def main() -> None:
    """Print both tables, or put them into their pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="results folder in which both commands have run")
    parser.add_argument("--write", action="store_true", help="put the tables into the pages")
    arguments = parser.parse_args()
    for name, rows in made_tables(arguments.results).items():
        print(f"{name}\n\n{chr(10).join((*HEADS[name], *rows))}\n")
        if arguments.write:
            put(ROOT / name, HEADS[name], rows)


def made_tables(results: Path) -> dict[str, list[str]]:
    """Return the rows of each table, by the page that it is in."""
    comparison, fleets = (
        pl.concat(
            read_table(path, schema) for path in sorted(results.glob(f"campaigns/*/report/data/{schema.name}.parquet"))
        )
        for schema in (COMPARISON, FLEET_COMPARISON)
    )
    return {
        "docs/pipelines.md": list(pipeline_rows(comparison)),
        "docs/research/emulation.md": list(emulation_rows(fleets)),
    }


def made() -> str:
    """Return the date and the commit that a row of a table is made of, for its last cell."""
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return f"{datetime.now(UTC).date()}, `{commit}`"


def put(page: Path, head: tuple[str, str], rows: list[str]) -> None:
    """Put a table into a page, in the place of that with the same head."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), head, rows), encoding="utf-8")


def printed_rows(page: str) -> list[str]:
    """Return the rows of the table of a page, such as `docs/research/emulation.md`."""
    return _split((ROOT / page).read_text(encoding="utf-8"), HEADS[page])[1]


def replaced(text: str, head: tuple[str, str], rows: list[str]) -> str:
    """Return the text of a page with other rows under `head`."""
    before, _, after = _split(text, head)
    return "\n".join((before, *head, *rows, after))


def _split(text: str, head: tuple[str, str]) -> tuple[str, list[str], str]:
    """Return what is before the head of a table, its rows, and what is after them."""
    before, head_found, after = text.partition("\n" + "\n".join(head) + "\n")
    if not head_found:
        raise SystemExit(f"the page has no table with the head {head[0]}")
    lines = after.split("\n")
    count = next(number for number, line in enumerate(lines) if not line.startswith("|"))
    return before, lines[:count], "\n".join(lines[count:])


def pipeline_rows(comparison: pl.DataFrame) -> Iterator[str]:
    """Yield a row for each pipeline of the default workload: memory, and the fastest plans of two methods."""
    rows = {(row["workload"], row["method"]): row for row in comparison.iter_rows(named=True)}
    workloads = resolve_accepted([f"pipeline={','.join(PIPELINES)}"], ROOT / "config")
    for name, workload in workloads.items():
        cells = [f"`{workload.pipeline.schedule}`", f"{estimate_memory(workload).total_gib:.1f}"]
        for method in ("sequential", "kareus"):
            row = rows[name, method]
            cells += [f"{row['time_s']:.3f}", f"{row['energy_j'] / 1e3:.2f}"]
        yield table_row(cells)


def emulation_rows(fleets: pl.DataFrame) -> Iterator[str]:
    """Yield a row for each fleet of a table `FLEET_COMPARISON`, by its number of microbatches."""
    for of_length in fleets.sort("num_microbatches").partition_by("num_microbatches", maintain_order=True):
        by_method = {row["method"]: row for row in of_length.iter_rows(named=True)}
        perseus, ours = by_method["sequential+perseus"], by_method["kareus"]
        cells = [str(of_length["num_microbatches"][0])]
        cells += [percent(row[f"{cost}_reduction_percent"]) for cost in ("time", "energy") for row in (perseus, ours)]
        cells += [percent(ours[f"{iso}_reduction_percent"]) for iso in ("iso_time_energy", "iso_energy_time")]
        yield table_row(cells)


def table_row(cells: list[str]) -> str:
    """Return one row of a table."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
