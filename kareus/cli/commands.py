"""The commands: names, modules and purposes, in the order and the groups in which the help lists them.

A module of a command has `add_arguments(parser)` and `run(arguments)`. It is imported only when the command is called.
It may have `modules_of(argv)`, modules that a command imports late: the fork server imports them before it forks.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    module: str
    purpose: str
    """What it does, as a clause without a full stop."""


FIRST_LOOK = {
    "advise": Command("kareus.cli.advise", "find layout and plan for a model on so many GPUs, by time and energy"),
    "plan": Command("kareus.cli.plan", "plan workloads in one process, without the workflow, and print what they save"),
    "predict": Command("kareus.prediction.stage", "predict time, energy and memory of an iteration in a second"),
    "from": Command("kareus.cli.bring", "say what the file that you train with means here, and write a workload file"),
    "resolve": Command("kareus.prediction.resolve_stage", "list the workloads of sweeps, and why some cannot run"),
}
RESULTS = {
    "results": Command("kareus.report.listing", "list what was planned, newest first"),
    "select": Command("kareus.plans.stage", "choose a point of the frontier and write its plan"),
    "compare": Command("kareus.report.comparison", "say where two plans, or plans of two layouts, differ"),
    "check-plan": Command("kareus.plans.check_stage", "check a plan against its workload and frontiers"),
    "export": Command("kareus.export.stage", "write a plan in the format of another tool"),
    "train": Command("kareus.training.stage", "train a workload, by a plan or without"),
    "explain": Command(
        "kareus.explain.stage", "say by its log whether a run is as fast as predicted, and what may be wrong"
    ),
}
CAMPAIGNS = {
    "init": Command("kareus.campaign.init_stage", "lay out a folder for campaigns: configuration, workflow, profiles"),
    "campaign": Command("kareus.campaign.stage", "list what belongs to a campaign, and what cannot run"),
    "emulate": Command("kareus.emulate.stage", "emulate fleets of pipelines: scaling, stragglers, power caps, hours"),
    "verify": Command("kareus.verify.stage", "recheck everything in a folder, and remove what is damaged"),
}
GPUS = {
    "doctor": Command("kareus.doctor.stage", "say what this machine can do, and what to do about what it cannot"),
    "clocks": Command("kareus.device.stage", "show the GPUs' clocks, or restore those that a killed run left locked"),
    "validate": Command(
        "kareus.evidence.validate_stage", "compare predictions with measurements: those that ship, or files of yours"
    ),
    "calibrate": Command(
        "kareus.adviser.trainer_stage", "measure one GPU, or a few runs of your trainer, and write its file"
    ),
    "fit": Command("kareus.evidence.fit_stage", "fit a GPU's coefficients to frontiers, reductions or kernels"),
}
GROUPS = {
    "A first look": FIRST_LOOK,
    "Plans and results": RESULTS,
    "Many workloads": CAMPAIGNS,
    "GPUs and the GPU model": GPUS,
}
"""Commands that people type, by heading."""

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
"""Commands that people type."""

STAGES = {
    "partition": Command("kareus.partition.stage", "extract the operator graph of a block and its partitions"),
    "schedule": Command("kareus.schedule.stage", "enumerate the search space of every partition"),
    "profile": Command("kareus.profile.stage", "measure components and whole instructions"),
    "sweep": Command("kareus.sweep.stage", "measure a partition over and over under windows and cooldowns"),
    "search": Command("kareus.search.stage", "search the candidates of one partition"),
    "frontier": Command("kareus.frontiers.stage", "compose microbatch frontiers"),
    "pipeline": Command("kareus.pipeline.stage", "solve iteration frontiers"),
    "end-to-end": Command("kareus.training.end_to_end_stage", "run the fastest plan of every method"),
    "report": Command("kareus.report.workload.stage", "write the summary and the page of a workload"),
    "report-fleets": Command("kareus.report.fleet_stage", "write the summary and the page of emulated fleets"),
    "report-advice": Command(
        "kareus.report.advice_stage", "answer the question of a campaign: which layout, which plan"
    ),
    "report-campaign": Command("kareus.report.campaign.stage", "write the report on a campaign: a folder to hand on"),
}
"""Stages that only the workflow calls, as `kareus stage NAME`."""

STAGE, HELP, COMPLETION = "stage", "help", "completion"
BUILT_IN = {
    STAGE: "run one stage of the workflow, with explicit paths; `kareus help stage` lists them",
    HELP: "print this overview, or the help of a command",
    COMPLETION: "print what makes a shell complete commands: bash, zsh or fish",
}
"""Commands that the command line itself has, with their purposes."""

EVERY = COMMANDS | {f"{STAGE} {name}": stage for name, stage in STAGES.items()}
"""Commands and stages by what is typed after `kareus`, such as `select` or `stage search`."""

GO_ON = frozenset({"train", "calibrate", *(f"{STAGE} {name}" for name in ("profile", "sweep", "search"))})
"""What keeps measurements or checkpoints as it goes, so that the same command goes on where it was interrupted."""
