rule write_report:
    input:
        config="results/{workload}/config/plan.yaml",
        microbatch=rules.compose_frontiers.output.microbatch,
        iteration=rules.solve_pipeline.output.iteration,
        candidates=searches,
        rounds=rounds,
        proposals=proposals,
        plans=chosen_plans,
        runs=runs,
    output:
        page="results/{workload}/report/page.html",
        summary="results/{workload}/report/summary.txt",
        figures=expand(
            "results/{{workload}}/report/figures/{figure}.{kind}",
            figure=[*PLOTS, *timeline_names(config["select"])],
            kind=DRAWN_AS,
        ),
        tables=expand(
            "results/{{workload}}/report/data/{table}.{kind}",
            table=TABLES,
            kind=WRITTEN_AS,
        ),
    log:
        "results/{workload}/logs/report.log",
    benchmark:
        "results/{workload}/logs/report.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        code=code("report"),
    message:
        "Writing the summary and the page of {wildcards.workload}"
    shell:
        "python -m kareus report --workload {wildcards.workload} --config {input.config}"
        " --microbatch {input.microbatch} --iteration {input.iteration}"
        " --candidates {input.candidates} --rounds {input.rounds} --proposals {input.proposals}"
        " --plans {input.plans} --runs {input.runs}"
        " --output results/{wildcards.workload}/report > {log} 2>&1"


rule report_fleets:
    input:
        fleet=fleets_of(rules.emulate_fleet.output.fleet),
        stragglers=fleets_of(rules.emulate_fleet.output.stragglers),
        power_caps=fleets_of(rules.emulate_fleet.output.power_caps),
        hours=fleets_of(rules.emulate_fleet.output.hours),
    output:
        page="results/{workload}/report/fleets.html",
        summary="results/{workload}/report/fleets.txt",
        figures=expand(
            "results/{{workload}}/report/figures/fleet.{kind}", kind=DRAWN_AS
        ),
        tables=expand(
            "results/{{workload}}/report/data/{table}.{kind}",
            table=FLEET_TABLES,
            kind=WRITTEN_AS,
        ),
    log:
        "results/{workload}/logs/report-fleets.log",
    conda:
        "../../envs/kareus.yaml"
    params:
        code=code("report-fleets"),
    message:
        "Writing the summary and the page of the fleets of {wildcards.workload}"
    shell:
        "python -m kareus report-fleets --workload {wildcards.workload}"
        " --fleet {input.fleet} --stragglers {input.stragglers}"
        " --power-caps {input.power_caps} --hours {input.hours}"
        " --output results/{wildcards.workload}/report > {log} 2>&1"


rule report_campaign:
    input:
        campaign=rules.resolve_campaign.output.campaign,
        reports=expand(rules.write_report.output, workload=WORKLOADS),
        fleets=expand(rules.report_fleets.output, workload=EMULATED),
        trials=trials,
    output:
        page=f"results/campaigns/{CAMPAIGN.name}/report/index.html",
        summary=f"results/campaigns/{CAMPAIGN.name}/report/summary.txt",
        workloads=directory(f"results/campaigns/{CAMPAIGN.name}/report/workloads"),
        figures=expand(
            f"results/campaigns/{CAMPAIGN.name}/report/figures/{{figure}}.{{kind}}",
            figure=campaign_figure_names(
                (m.part, m.kind) for m in CAMPAIGN.members if m.refusal is None
            ),
            kind=DRAWN_AS,
        ),
        tables=expand(
            f"results/campaigns/{CAMPAIGN.name}/report/data/{{table}}.{{kind}}",
            table=CAMPAIGN_TABLES,
            kind=WRITTEN_AS,
        ),
    log:
        f"results/logs/campaigns/{CAMPAIGN.name}.report.log",
    benchmark:
        f"results/logs/campaigns/{CAMPAIGN.name}.report.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        name=CAMPAIGN.name,
        code=code("report-campaign"),
    message:
        "Writing the report on a campaign"
    shell:
        "python -m kareus report-campaign {params.name:q} --results results > {log} 2>&1"
