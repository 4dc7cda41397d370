"""Plan campaigns: from a configuration to plans, summaries and pages. One rule file for each stage."""

from snakemake.utils import min_version

min_version("9.20")


configfile: "config/workflow.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/verify.smk"
include: "workflow/rules/campaign.smk"
include: "workflow/rules/workload.smk"
include: "workflow/rules/partition.smk"
include: "workflow/rules/schedule.smk"
include: "workflow/rules/profile.smk"
include: "workflow/rules/sweep.smk"
include: "workflow/rules/search.smk"
include: "workflow/rules/frontiers.smk"
include: "workflow/rules/pipeline.smk"
include: "workflow/rules/plans.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/emulate.smk"
include: "workflow/rules/report.smk"


end_with(run_answer)


onstart:
    if workflow.resource_settings.cores == 0:
        raise WorkflowError("--cores 0: no job can run; give 1 or more, or all.")
    # Unlike Snakemake's own lock, which the profile turns off, it is gone when its holder is killed.
    try:
        lock_until_exit(RUN_LOCK)
    except KareusError as error:
        raise WorkflowError(str(error)) from None
    shutil.rmtree(BACKUPS, ignore_errors=True)
    set_measurements_aside()
    if workflow.local_exec:  # jobs of a cluster run on other nodes
        # Cores and GPUs limit what runs here. With a limit on jobs a second as well (by default 100/1s), every job that
        # ends starts a timer that wakes the scheduler every second from then on: hundreds a second in a long run.
        workflow.scheduler.job_rate_limiter = None
        if sys.platform == "linux":
            start_fork_server()


onsuccess:
    list_outputs()


onerror:
    # What failed may have found damage that left no trace in the file's attributes.
    SOUND.unlink(missing_ok=True)


localrules:
    resolve_campaign,
    write_config,
    write_graph_config,
    place_partitions,
    all,
    plans,
    frontiers,
    end_to_end,


rule all:
    default_target: True
    input:
        [outputs(rule, **job) for rule, every in JOBS.items() for job in every],
    message:
        "Everything of the campaign"


rule plans:
    input:
        expand(
            "results/{workload}/plan/{selector}.json",
            workload=WORKLOADS,
            selector=config["select"],
        ),


rule end_to_end:
    input:
        expand(
            "results/{workload}/engine/end-to-end/iterations.parquet",
            workload=WORKLOADS,
        ),


rule frontiers:
    input:
        expand("results/{workload}/pipeline/iteration.parquet", workload=WORKLOADS),
