"""Jobs of a campaign that have to run again because of damaged or missing files.

Snakemake knows what is out of date by what it recorded about a job when it ended, well or not. It does not know what is
damaged, what is missing on the way to a file that is in place, nor that a file in place is the former one because the
job that was to make it anew has failed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kareus.verify.survey import Finding, FindingKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job of a run, before Snakemake has built its graph."""

    rule: str
    wildcards: Mapping[str, str]
    outputs: Sequence[str]
    """All output files, with the one that marks the job's success."""


def to_force(jobs: Sequence[Job], findings: Sequence[Finding], store: Path) -> set[str]:
    """Return one output that exists of each job that has to run again; jobs none of whose outputs exist run anyway.

    Args:
        jobs: jobs of the campaign.
        findings: what is damaged or missing.
        store: folder of the measurements, which several jobs share.
    """
    wrong = {finding.path for finding in findings if finding.kind is not FindingKind.LEFT_OVER}
    spoilt = wrong | {above for path in wrong for above in path.parents}  # an output may be a folder
    subjects = {_subject(path, store) for path in wrong if path.is_relative_to(store)}
    forced = set[str]()
    for job in jobs:
        existing = [output for output in job.outputs if Path(output).exists()]
        is_unfinished = len(existing) < len(job.outputs)
        is_spoilt = any(Path(output) in spoilt for output in job.outputs)
        if existing and (is_unfinished or is_spoilt or any(_measures(job, subject) for subject in subjects)):
            forced.add(existing[0])
    return forced


def not_made(jobs: Sequence[Job], findings: Sequence[Finding], store: Path) -> list[Finding]:
    """Return damaged files that no job of the campaign makes."""
    outputs = {Path(output) for job in jobs for output in job.outputs}
    return [
        finding
        for finding in findings
        if finding.kind is FindingKind.DAMAGED
        and outputs.isdisjoint((finding.path, *finding.path.parents))
        and not finding.path.is_relative_to(store)
    ]


def _subject(path: Path, store: Path) -> str:
    """Return the subject of the shelf of a file: `<store>/<gpu>/<subject>_<hash>/...`."""
    _, *shelf = path.relative_to(store).parts[:-1]
    return shelf[0].rpartition("_")[0] if shelf else ""


def _measures(job: Job, subject: str) -> bool:
    """Whether a job measures on the shelves of a subject: instructions, or a partition."""
    match job.rule:
        case "profile_instructions":
            return subject == "instructions"
        case "search_partition":
            return job.wildcards["partition"] == subject
        case "sweep_profiler":
            return subject != "instructions"
    return False
