# Everything computed while the workflow is read: which workloads there are, and what their stages depend on.
# The work is done by functions of the package; nothing here deserves a test of its own.

import shlex
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

from kareus.artifacts.code import code_hash
from kareus.artifacts.files import lock_until_exit, require_locked
from kareus.artifacts.records import content_hash
from kareus.cli import COMMANDS
from kareus.emulate.resolve import resolve_fleets
from kareus.errors import KareusError
from kareus.partition.names import expected_partitions
from kareus.plan.selectors import parse_selector
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import SLICES, slice_text

shell.executable("bash")
shell.prefix(
    "exec "
)  # so that a stage's parent is Snakemake, and it dies with Snakemake


RUN_LOCK = Path(".snakemake/kareus.lock")

try:
    validate(config, "../schemas/workflow.schema.yaml")
except WorkflowError as error:
    what = str(error).splitlines()[1].removeprefix("ValidationError: ")
    raise WorkflowError(
        f"--config or config/workflow.yaml: {what}; allowed: overrides, select, emulation."
    ) from None

for key in ("overrides", "select", "emulation"):
    if isinstance(config[key], str):
        config[key] = shlex.split(config[key])

try:
    if workflow.remote_exec:  # a job of a cluster: the head of the run holds the lock
        require_locked(RUN_LOCK)
    RESOLVED = resolve_accepted(config["overrides"])
    FLEETS = {(f.workload_name, f.name): f for f in resolve_fleets(config["emulation"])}
    for selector in config["select"]:
        parse_selector(selector)
except KareusError as error:
    raise WorkflowError(str(error)) from None

WORKLOADS = list(RESOLVED)
EMULATED = {f.workload_name: f.workload for f in FLEETS.values()}


wildcard_constraints:
    workload=r"[A-Za-z0-9._-]+",
    partition=r"[a-z0-9-]+",
    stage="|".join(SLICES),
    selector=r"[A-Za-z0-9=.+-]+",
    fleet=r"[A-Za-z0-9._-]+",


def code(command):
    """Hash of the code behind a command, so that editing the package reruns what it must."""
    return code_hash(COMMANDS[command][0])


def workload(wildcards):
    """The resolved workload of a results folder."""
    known = EMULATED | RESOLVED
    if wildcards.workload not in known:
        raise WorkflowError(
            f"results/{wildcards.workload}: not a workload of this configuration; it has: {', '.join(known)}."
        )
    return known[wildcards.workload]


def fleet(wildcards):
    """The emulated fleet of a results folder."""
    key = (wildcards.workload, wildcards.fleet)
    if key not in FLEETS:
        raise WorkflowError(
            f"results/{wildcards.workload}/emulate/{wildcards.fleet}: not a fleet of this configuration; it has: "
            f"{', '.join(name for _, name in FLEETS)}."
        )
    return FLEETS[key]


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
        fleet=[name for workload, name in FLEETS if workload == wildcards.workload],
    )


def partitions(wildcards):
    """Names of a workload's partitions, known before extraction so that every job is."""
    return expected_partitions(workload(wildcards))


def config_text(wildcards):
    """Slice of a workload's configuration, as YAML; a change of it reruns its stage and no other."""
    return slice_text(workload(wildcards), wildcards.stage)


def gpus(wildcards):
    """GPUs that a job that measures takes."""
    return workload(wildcards).gpus_to_measure


def all_gpus(wildcards):
    """GPUs that a job that trains takes."""
    own = workload(wildcards)
    return own.parallelism.gpus if own.gpus_to_measure else 0


def runs(wildcards):
    """Runs that the report shows: played back as a matter of course, on real GPUs those that were asked for."""
    table = f"results/{wildcards.workload}/engine/end-to-end/iterations.parquet"
    is_wanted = not workload(wildcards).gpus_to_measure or Path(table).exists()
    return [table] if is_wanted else []


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
