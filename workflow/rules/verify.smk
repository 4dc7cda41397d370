# Before anything is decided: what is damaged, missing or unfinished on disk is made again.

from functools import cache

from snakemake.logging import logger
from snakemake_interface_executor_plugins.settings import ExecMode

from kareus.artifacts.files import set_aside
from kareus.verify.jobs import Job, not_made, to_force
from kareus.verify.sound_files import read_known
from kareus.verify.outputs import is_list_of_outputs, write_outputs
from kareus.verify.survey import FindingKind, survey

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
    return [finding for finding in found if finding.kind is not FindingKind.LEFT_OVER]


@cache
def force():
    """Let Snakemake run the jobs again whose files are not as they should be, and say which files those are."""
    jobs = [
        Job(rule=rule, wildcards=wildcards, outputs=outputs(rule, **wildcards))
        for rule, every in JOBS.items()
        for wildcards in every
    ]
    foreign = not_made(jobs, findings(), STORE)
    asked = [str(finding.path) for finding in foreign if is_made(finding.path)]
    for finding in findings():
        if finding not in foreign or is_list_of_outputs(finding.path):
            remedy = "a run makes it again"
        elif str(finding.path) in asked:
            remedy = "a run that is asked for it makes it again"
        else:
            remedy = "kareus verify --repair sets it aside"
        logger.warning(f"{finding.path}: {finding.kind}: {finding.reason}; {remedy}.")
    if (
        any(is_list_of_outputs(finding.path) for finding in foreign)
        and not workflow.dryrun
    ):
        list_outputs()  # no job makes the list, and a run without jobs has no end that could
    workflow.dag.forcefiles.update(to_force(jobs, findings(), STORE), asked, stale())


def is_made(path):
    """Whether a rule makes a file, be it one that the campaign does not ask for, such as a plan of another selector."""
    return any(rule.is_producer(str(path)) for rule in workflow.rules)


def stale():
    """Configurations whose text is not the one that would be written."""
    texts = {
        f"results/{job['workload']}/config/{job['stage']}.yaml": text_of(
            job["workload"], job["stage"]
        )
        for job in JOBS["write_config"]
    } | {
        f"results/graphs/{job['graph']}/config.yaml": graph_text_of(job["graph"])
        for job in JOBS["write_graph_config"]
    }
    return {
        path
        for path, text in texts.items()
        if Path(path).is_file() and Path(path).read_bytes() != text.encode()
    }


def list_outputs():
    """Write down what the campaign has, so that `kareus verify` notices what is missing."""
    declared = [
        Path(output)
        for rule, every in JOBS.items()
        for wildcards in every
        for output in outputs(rule, **wildcards)
    ]
    write_outputs(Path("results"), CAMPAIGN.folder, declared)


def verified(_):
    """Input of rules that have none, one of which is behind every file: the check of what is there already."""
    if workflow.exec_mode == ExecMode.DEFAULT:  # not in the jobs that a cluster runs
        force()
    return []


def set_measurements_aside():
    """Put damaged tables of measurements out of the way, so that they are taken again.

    Journals are left to those who open their shelves, who set aside what is damaged in them.
    """
    for finding in findings():
        if finding.path.is_relative_to(STORE) and finding.path.suffix == ".parquet":
            set_aside(finding.path)
