"""Command `results`: one line for each workload that was planned, newest first; of one workload, its summary."""

import argparse
import datetime
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from kareus.artifacts.files import read_text
from kareus.artifacts.layout import campaign_table
from kareus.artifacts.records import suggest
from kareus.artifacts.tables import read_table
from kareus.campaign.config import CAMPAIGN
from kareus.errors import ArtifactError, ConfigError
from kareus.plans.answer import BASELINE
from kareus.plans.units import scaled
from kareus.report.outcome import Outcome, PlanOutcome, outcome
from kareus.report.sheets import table
from kareus.workload.tables import WORKLOADS

logger = logging.getLogger(__name__)

HEADS = ("workload", "plan", "method", "time", "energy", "time saved", "energy saved", "planned")
FLEETS = "report/fleets.txt"
"""Summary of emulated fleets in the folder of a workload."""
PAGES = {"report/summary.txt": "report/page.html", FLEETS: "report/fleets.html"}
"""Page of each summary; of one workload the first summary that it has is printed."""
TEXTS = 3
"""Columns, from the first, that are text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One workload of the list: planned, refused, or with a problem."""

    folder: Path
    outcome: Outcome | None = None
    note: str = ""
    """What there is to say in the place of a plan."""

    @property
    def planned_at_s(self) -> float:
        """Time of the newest plan; 0 where there is none."""
        return self.outcome.planned_at_s if self.outcome else 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folder, the filters and the form."""
    text = "results of the workflow, or the folder of one workload, whose summary is printed (default: results)"
    parser.add_argument("results", type=Path, nargs="?", default=Path("results"), metavar="FOLDER", help=text)
    text = "only workloads whose names have this in them, or match it with * and ?; of several, all must"
    parser.add_argument("--match", action="append", default=[], metavar="TEXT", help=text)
    parser.add_argument("--campaign", metavar="NAME", help="only workloads of this folder of FOLDER/campaigns/")
    parser.add_argument("--newest", type=int, metavar="N", help="only the newest N")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")


def run(arguments: argparse.Namespace) -> None:
    """Print what was planned.

    Raises:
        ArtifactError: there is no such folder, or nothing was planned in it.
        ConfigError: a filter cannot be used.
    """
    results: Path = arguments.results
    if arguments.newest is not None and arguments.newest < 1:
        raise ConfigError(f"--newest {arguments.newest}: must be 1 or more.")
    listed = _filtered(_listed(results), arguments)
    summary = next((name for name in PAGES if (results / name).is_file()), None)
    if not arguments.json and summary is not None:
        logger.info("%s", "\n".join(_summary(results, summary, listed[0])))
        return
    if arguments.json:
        for listing in listed:
            logger.info("%s", json.dumps(_plain(listing), allow_nan=False))
        return
    for line in (*_lines(listed), *_pages(results, listed)):
        logger.info("%s", line)


def _is_workload(folder: Path) -> bool:
    """Whether a folder is that of one workload: planned, or with emulated fleets alone."""
    return (folder / "plan").is_dir() or (folder / FLEETS).is_file()


def _listed(results: Path) -> list[Listed]:
    """Return all workloads of a folder, newest first, then what was not planned."""
    if _is_workload(results):
        return [_one(results)]
    refusals = _refusals(results)
    folders = {path.parents[1] for pattern in ("*/plan/*.json", "*/report/*.txt") for path in results.glob(pattern)}
    listed = [_one(folder) for folder in sorted(folders)]
    names = {listing.folder.name for listing in listed}
    rest = {name: f"refused: {why}" if why else "not planned yet; run snakemake" for name, why in refusals.items()}
    listed += [Listed(folder=results / name, note=note) for name, note in rest.items() if name not in names]
    if not listed and not _campaign_pages(results):  # a campaign may plan nothing, and ask the adviser
        raise ArtifactError(f"{results}: nothing was planned there; run snakemake, or give another folder.")
    return sorted(listed, key=lambda listing: -listing.planned_at_s)


def _refusals(results: Path) -> dict[str, str | None]:
    """Return the workloads of the last campaign, with the reasons why they were refused."""
    path = results / "workloads.parquet"
    return dict(read_table(path, WORKLOADS).select("workload", "refusal").rows()) if path.is_file() else {}


def _one(folder: Path) -> Listed:
    try:
        planned = outcome(folder)
    except ArtifactError as error:  # of one workload, which keeps none of the others from being listed
        return Listed(folder=folder, note=str(error))
    if planned is None:
        is_fleet = (folder / FLEETS).is_file()
        note = f"emulated fleets; page {folder / PAGES[FLEETS]}" if is_fleet else "no plan; run snakemake"
        return Listed(folder=folder, note=note)
    return Listed(folder=folder, outcome=planned)


def _filtered(listed: Sequence[Listed], arguments: argparse.Namespace) -> list[Listed]:
    """Return what the filters leave.

    Raises:
        ConfigError: nothing is left, or the folder is that of one workload.
    """
    kept = list(listed)
    if _is_workload(arguments.results) and (arguments.match or arguments.campaign or arguments.newest):
        raise ConfigError(
            f"{arguments.results}: the folder of one workload; --match, --campaign and --newest choose among the "
            "workloads of a folder of results."
        )
    if arguments.campaign is not None:
        members = _members(arguments.results, arguments.campaign)
        kept = [listing for listing in kept if listing.folder.name in members]
    for text in arguments.match:
        kept = [listing for listing in kept if text in listing.folder.name or fnmatch(listing.folder.name, text)]
    if listed and not kept:
        raise ConfigError(f"{arguments.results}: none of its {len(listed)} workloads is as --match and --campaign ask.")
    return kept[: arguments.newest]


def _members(results: Path, campaign: str) -> set[str]:
    path = campaign_table(results, campaign)
    if not path.is_file():
        campaigns = [folder.parent.name for folder in results.glob("campaigns/*/campaign.parquet")]
        raise ConfigError(f"--campaign {campaign}: not in {results}; {suggest(campaign, campaigns)}.")
    return set(read_table(path, CAMPAIGN)["workload"])


def _lines(listed: Iterable[Listed]) -> list[str]:
    """Return a table of the planned, and a line for each of the others."""
    rows = [_cells(listing.folder, listing.outcome) for listing in listed if listing.outcome]
    notes = [f"{listing.folder}: {listing.note}" for listing in listed if not listing.outcome]
    return [*(table(list(HEADS), rows, texts=TEXTS) if rows else []), *notes]


def _cells(folder: Path, planned: Outcome) -> tuple[str, ...]:
    """Return the newest plan of a workload, and how many others there are."""
    selector, *cells = _plan_cells(planned.plans[0])
    others = len(planned.plans) - 1
    return (str(folder), f"{selector}{f' (+{others})' if others else ''}", *cells)


def _plan_cells(plan: PlanOutcome) -> tuple[str, ...]:
    answer = plan.answer
    return (
        answer.selector,
        answer.method,
        scaled(answer.time_s, "s", digits=4),
        scaled(answer.energy_j, "J", digits=4),
        _percent(answer.time_reduction_percent),
        _percent(answer.energy_reduction_percent),
        datetime.datetime.fromtimestamp(plan.planned_at_s).astimezone().strftime("%Y-%m-%d %H:%M"),
    )


def _percent(value: float) -> str:
    return f"{value:z.1f} %"


def _summary(folder: Path, summary: str, listed: Listed) -> list[str]:
    """Return all plans of a workload, then the summary of its report, whose choice of plans may be an older one."""
    text, places = read_text(folder / summary).rstrip().splitlines(), _places(folder, PAGES[summary])
    if listed.outcome is None:
        return [f"{folder}: {listed.note}", "", *text, *places]
    plans = listed.outcome.plans
    lines = [
        f"plans, the newest first; saved against {BASELINE} [{plans[0].testbed}]",
        "",
        *table(list(HEADS[1:]), [_plan_cells(plan) for plan in plans], texts=TEXTS - 1),
    ]
    reported = {path.name for path in (folder / "report/plans").glob("*.json")}
    if any(plan.path.name not in reported for plan in plans):
        lines += ["", f"the summary and the page are of {', '.join(sorted(name[:-5] for name in reported))} alone"]
    return [*lines, "", *text, *places]


def _pages(results: Path, listed: Sequence[Listed]) -> list[str]:
    """Return where pages and plans are."""
    lines = []
    if any(listing.outcome for listing in listed):
        labels = dict.fromkeys(plan.testbed for listing in listed if listing.outcome for plan in listing.outcome.plans)
        lines.append(f"saved against {BASELINE} [{'; '.join(labels)}]")
        lines.append("pages: WORKLOAD/report/page.html; plans: WORKLOAD/plan/; summary: kareus results WORKLOAD")
    fleets = [listing.folder for listing in listed if listing.outcome and (listing.folder / FLEETS).is_file()]
    lines += [f"{folder}: emulated fleets; page {folder / PAGES[FLEETS]}" for folder in fleets]
    return lines + [f"campaign {page.parents[1].name}: {page}" for page in _campaign_pages(results)]


def _campaign_pages(results: Path) -> list[Path]:
    """Return the pages of campaigns: reports, and answers of the adviser."""
    return [
        page
        for pattern in ("report/index", "advise/page")
        for page in sorted(results.glob(f"campaigns/*/{pattern}.html"))
    ]


def _plain(listing: Listed) -> dict[str, Any]:
    if listing.outcome is None:
        return {"workload": listing.folder.name, "folder": str(listing.folder), "note": listing.note}
    return {
        "workload": listing.outcome.workload,
        "folder": str(listing.folder),
        "planned_at": datetime.datetime.fromtimestamp(listing.planned_at_s, datetime.UTC).isoformat(timespec="seconds"),
        "page": str(listing.outcome.page) if listing.outcome.page else None,
        "plans": [_plain_plan(plan) for plan in listing.outcome.plans],
    }


def _plain_plan(plan: PlanOutcome) -> Mapping[str, Any]:
    answer = plan.answer
    return {
        "plan": str(plan.path),
        "selector": answer.selector,
        "method": answer.method,
        "testbed": plan.testbed,
        "time_s": answer.time_s,
        "energy_j": answer.energy_j,
        "baseline_time_s": answer.baseline_time_s,
        "baseline_energy_j": answer.baseline_energy_j,
        "time_reduction_percent": answer.time_reduction_percent,
        "energy_reduction_percent": answer.energy_reduction_percent,
    }


def _places(folder: Path, page: str) -> list[str]:
    plans = [("plans", folder / "plan")] if (folder / "plan").is_dir() else []
    places = (("page", folder / page), *plans, ("tables", folder))
    return [f"{what:<8} {place.resolve()}" for what, place in places]
