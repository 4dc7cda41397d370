# Everything computed while the workflow is read: what belongs to the campaign, and what their stages depend on.
# The work is done by functions of the package; nothing here deserves a test of its own.

import shutil
import sys
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.io import is_flagged

from kareus.artifacts.code import code_hash
from kareus.artifacts.locks import lock_until_exit, require_locked
from kareus.artifacts.records import content_hash
from kareus.campaign.command_line import missing_profile, workflow_config
from kareus.campaign.jobs import campaign_jobs
from kareus.campaign.resolve import resolve_campaign
from kareus.cli import EVERY
from kareus.cli.fork_server import start as start_fork_server
from kareus.errors import KareusError
from kareus.partition.names import expected_partitions
from kareus.plans.selectors import check_selectors, parse_selector, spelled
from kareus.processes import PARENT_VARIABLE
from kareus.progress.events import end_with
from kareus.report.contents import (
    ADVICE_TABLES,
    CAMPAIGN_TABLES,
    FLEET_TABLES,
    PLOTS,
    TABLES,
    WRITTEN_AS,
    campaign_figure_names,
)
from kareus.report.outcome import run_lines
from kareus.verify.stage import RUN_LOCK
from kareus.workload.naming import graph_name
from kareus.workload.slices import SLICES, cut, slice_text

shell.executable("bash")
# So that a stage's parent is Snakemake, and it dies with Snakemake, even if that happens before it runs.
shell.prefix(f"{PARENT_VARIABLE}=$PPID exec ")

# `INTO <path> <command>...` runs `<command>... > <path>`, but beside the path, renamed into place once it is whole.
# The name beside it is that of `temporary_of` in kareus/artifacts/files.py: with the number and the start of the process.
BESIDE = """read -ra stat < /proc/$$/stat; new="${path%/*}/.${path##*/}.$$-${stat[21]}.kareus.tmp"; """
INTO = f"""bash -c 'path=$1; {BESIDE}"${{@:2}}" > "$new" && mv "$new" "$path"' into"""
# `PLACE <folder> <path>...` copies paths to a folder in the same way.
PLACE = f"""bash -c 'for from in "${{@:2}}"; do path="$1/${{from##*/}}"; {BESIDE}cp "$from" "$new" && mv "$new" "$path" || exit; done' place"""

BACKUPS = Path(
    ".snakemake/backups"
)  # outputs that jobs of a run make anew; left there by kills

if set("{}") & set(str(workflow.basedir)):
    raise WorkflowError(
        f"{workflow.basedir}: Snakemake takes braces in the path of a workflow for wildcards; "
        "move the folder to a path without them."
    )

profile = missing_profile(sys.argv[1:], Path(workflow.basedir))
if profile is not None:
    raise WorkflowError(
        f"--workflow-profile {profile}: there is no such profile; give one of profiles/, such as profiles/slurm, "
        "or none."
    )

try:
    if workflow.remote_exec:  # a job of a cluster: the head of the run holds the lock
        require_locked(RUN_LOCK)
    config.update(workflow_config(config))
    CAMPAIGN = resolve_campaign(config["campaign"], config["overrides"])
    check_selectors(config["select"])
    config["select"] = [spelled(text) for text in config["select"]]
except KareusError as error:
    raise WorkflowError(str(error)) from None

QUESTION = CAMPAIGN.asked
WORKLOADS = list(CAMPAIGN.workloads)
CAMPAIGN_FIGURES = campaign_figure_names(
    (member.part, member.kind) for member in CAMPAIGN.members if member.refusal is None
)
GRAPHS = {graph_name(workload): workload for workload in CAMPAIGN.folders.values()}
EMULATED = list(dict.fromkeys(workload for workload, _ in CAMPAIGN.fleets))


def kept(path):
    """Flag of all outputs: what a job made before stays until the job has made it anew, and if it fails.

    It may be damaged, or of another version, so rules tell commands to replace whatever is there (`--force`).
    """
    return path if is_flagged(path, "touch") else update(path)


outputflags:
    kept,


def done(job):
    """Output that says that a job has succeeded; Snakemake removes it when the job starts."""
    return touch(f".snakemake/kareus/done/{job}")


PLAYED = [
    name
    for name, workload in CAMPAIGN.workloads.items()
    if not workload.gpus_to_measure
    or Path(f"results/{name}/engine/end-to-end/iterations.parquet").exists()
]
JOBS = campaign_jobs(CAMPAIGN, config["select"], PLAYED)


wildcard_constraints:
    workload=r"[A-Za-z0-9._-]+",
    graph=r"[A-Za-z0-9._-]+",
    partition=r"[a-z0-9.-]+",
    stage="|".join(SLICES),
    selector=r"[A-Za-z0-9=.+-]+",
    fleet=r"[A-Za-z0-9._-]+",
    sweep=r"[A-Za-z0-9._-]+",


def code(command):
    """Hash of the code behind a command, so that editing the package reruns what it must."""
    return code_hash(EVERY[command].module)


def member(known, place, key):
    """What the campaign has at a place."""
    if key not in known:
        names = (name if isinstance(name, str) else "/".join(name) for name in known)
        raise WorkflowError(
            f"{place}: not of campaign {CAMPAIGN.name}, which has: {', '.join(names) or 'none'}; "
            "give another --config campaign=... or overrides=...."
        )
    return known[key]


def workload(wildcards):
    """The resolved workload of a results folder."""
    name = wildcards.workload
    return member(CAMPAIGN.folders, f"results/{name}", name)


def fleet(wildcards):
    """The emulated fleet of a results folder."""
    workload, name = wildcards.workload, wildcards.fleet
    return member(
        CAMPAIGN.fleets, f"results/{workload}/emulate/{name}", (workload, name)
    )


def sweep(wildcards):
    """The sweep of the profiler of a results folder."""
    workload, name = wildcards.workload, wildcards.sweep
    return member(
        CAMPAIGN.sweeps, f"results/{workload}/profile/{name}", (workload, name)
    )


def fleet_overrides(wildcards):
    """Overrides that give a fleet."""
    return list(fleet(wildcards).overrides)


def fleet_content(wildcards):
    """Hash of a fleet and its workload, so that editing the configuration reruns it."""
    return content_hash([fleet(wildcards).workload, fleet(wildcards).emulation])


def fleet_series(wildcards):
    """The CSV file of a fleet, if it has one."""
    return fleet(wildcards).emulation.series or []


def fleets_of(pattern):
    """Files of all fleets of a workload."""
    return lambda wildcards: expand(
        pattern,
        workload=wildcards.workload,
        fleet=[
            name for workload, name in CAMPAIGN.fleets if workload == wildcards.workload
        ],
    )


def sweep_overrides(wildcards):
    """Overrides that give a sweep of the profiler."""
    return list(sweep(wildcards).overrides)


def sweep_content(wildcards):
    """Hash of a sweep and of what it sees of its workload, so that editing the configuration reruns it."""
    return content_hash(
        [cut(sweep(wildcards).workload, "profile"), sweep(wildcards).sweep]
    )


def partitions(wildcards):
    """Names of a workload's partitions, known before extraction so that every job is."""
    return expected_partitions(workload(wildcards))


@cache
def text_of(workload, stage):
    """Slice of the configuration of the workload of a results folder, as YAML."""
    return slice_text(CAMPAIGN.folders[workload], stage)


@cache
def graph_text_of(graph):
    """Slice of the configuration that extraction sees."""
    return slice_text(GRAPHS[graph], "partition")


def config_text(wildcards):
    """Slice of a workload's configuration, as YAML; a change of it reruns its stage and no other."""
    workload(wildcards)
    return text_of(wildcards.workload, wildcards.stage)


def graph_config_text(wildcards):
    """Slice of the configuration that extraction sees; workloads that share it share their operator graph."""
    member(GRAPHS, f"results/graphs/{wildcards.graph}", wildcards.graph)
    return graph_text_of(wildcards.graph)


def graph_files(wildcards):
    """Tables of a workload's operator graph."""
    made = rules.extract_partitions.output
    graph = graph_name(workload(wildcards))
    return expand([made.segments, made.partitions], graph=graph)


def plan_config(wildcards):
    """Slice of the configuration that selection sees; a selector that is none is refused before anything is measured."""
    try:
        parse_selector(wildcards.selector)
    except KareusError as error:
        raise WorkflowError(str(error)) from None
    return f"results/{wildcards.workload}/config/plan.yaml"


def gpus(wildcards):
    """GPUs that a job that measures takes."""
    return workload(wildcards).gpus_to_measure


def all_gpus(wildcards):
    """GPUs that a job that trains takes."""
    own = workload(wildcards)
    return own.parallelism.gpus if own.gpus_to_measure else 0


def runs(wildcards):
    """Runs that the report shows: played back as a matter of course, on real GPUs those that were asked for."""
    tables = expand(rules.run_end_to_end.output.iterations, workload=wildcards.workload)
    return tables if wildcards.workload in PLAYED else []


def searches(wildcards):
    """Candidates of every partition of a workload."""
    return expand(
        rules.search_partition.output.candidates,
        workload=wildcards.workload,
        partition=partitions(wildcards),
    )


def chosen_plans(wildcards):
    """Plans that the report shows."""
    return expand(
        rules.select_plan.output.plan,
        workload=wildcards.workload,
        selector=config["select"],
    )


def trials(wildcards):
    """What the campaign's sweeps of the profiler measured."""
    return [
        f"results/{workload}/profile/{sweep}/trials.parquet"
        for workload, sweep in CAMPAIGN.sweeps
    ]


def rounds(wildcards):
    """Rounds of every partition's search."""
    return expand(
        rules.search_partition.output.rounds,
        workload=wildcards.workload,
        partition=partitions(wildcards),
    )


def proposals(wildcards):
    """What choosing candidates took, of every partition's search."""
    return expand(
        rules.search_partition.output.proposals,
        workload=wildcards.workload,
        partition=partitions(wildcards),
    )


def run_answer():
    """What the run ends with: the answers of its plans and of the adviser, and where pages and plans are."""
    plans, fleets, answers = (
        [Path(job.output[name]) for job in workflow.dag.jobs if job.rule.name == rule]
        for rule, name in (
            ("select_plan", "plan"),
            ("emulate_fleet", "fleet"),
            ("answer_question", "answer"),
        )
    )
    return run_lines(Path("results"), plans, CAMPAIGN.folder, fleets, answers)


def outputs(rule, **wildcards):
    """All outputs of a job."""
    return expand(map(str, getattr(rules, rule).output), **wildcards)
