# Before anything is decided: what is damaged, missing or unfinished on disk is made again.

from functools import cache

from snakemake.logging import logger
from snakemake_interface_executor_plugins.settings import ExecMode

from kareus.artifacts.files import set_aside
from kareus.verify.jobs import Job, others, to_force
from kareus.verify.known import read_known
from kareus.verify.repair import repair
from kareus.verify.survey import Kind, survey

SOUND = Path(".snakemake/kareus/sound.json")
STORE = Path("results/measurements")
SURVEYED = [
    *(f"results/{name}" for name in CAMPAIGN.folders),
    *(f"results/graphs/{name}" for name in GRAPHS),
    f"results/campaigns/{CAMPAIGN.folder}",
    "results/workloads.parquet",
    STORE,
]


@cache
def findings():
    """What is wrong on disk; only what has changed since it was found sound is read."""
    sound = read_known(SOUND)
    found = survey(map(Path, SURVEYED), sound)
    sound.write(SOUND)
    return [finding for finding in found if finding.kind is not Kind.LEFT_OVER]


@cache
def force():
    """Let Snakemake run the jobs again whose files are not as they should be, and say which files those are."""
    jobs = [
        Job(rule=rule, wildcards=wildcards, outputs=outputs(rule, **wildcards))
        for rule, every in JOBS.items()
        for wildcards in every
    ]
    foreign = others(jobs, findings(), STORE)
    for finding in findings():
        remedy = (
            "kareus verify --repair removes it"
            if finding in foreign
            else "a run makes it again"
        )
        logger.warning(f"{finding.path}: {finding.kind}: {finding.reason}; {remedy}.")
    workflow.dag.forcefiles.update(to_force(jobs, findings(), STORE))


def verified(_):
    """Input of rules that have none, one of which is behind every file: the check of what is there already."""
    if workflow.exec_mode == ExecMode.DEFAULT:  # not in the jobs that a cluster runs
        force()
    return []


def set_measurements_aside():
    """Put damaged measurements out of the way, so that they are taken again."""
    for finding in findings():
        if finding.path.is_relative_to(STORE):
            if finding.path.suffix == ".parquet":
                set_aside(finding.path)
            else:
                repair(finding)
