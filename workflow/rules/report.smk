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
        page=report(
            "results/{workload}/report/page.html",
            category="Workloads",
            labels={"workload": "{workload}", "what": "page"},
            caption="../report/page.rst",
        ),
        summary=report(
            "results/{workload}/report/summary.txt",
            category="Workloads",
            labels={"workload": "{workload}", "what": "summary"},
            caption="../report/summary.rst",
        ),
        plots=[
            report(
                f"results/{{workload}}/report/figures/{plot}.svg",
                category="Workloads",
                labels={"workload": "{workload}", "what": plot},
                caption=f"../report/{plot}.rst",
            )
            for plot in PLOTS
        ],
        timelines=report(
            directory("results/{workload}/report/timelines"),
            patterns=["{plan}.svg"],
            category="Workloads",
            labels={"workload": "{workload}", "what": "timeline of {plan}"},
            caption="../report/timeline.rst",
        ),
        prints=expand(
            "results/{{workload}}/report/figures/{figure}.{kind}",
            figure=PLOTS,
            kind=("pdf", "png"),
        ),
        plans=directory("results/{workload}/report/plans"),
        tables=expand(
            "results/{{workload}}/report/data/{table}.{kind}",
            table=TABLES,
            kind=WRITTEN_AS,
        ),
        manifest="results/{workload}/report/manifest.json",
        done=done("{workload}/report"),
    log:
        "results/{workload}/logs/report.log",
    benchmark:
        "results/{workload}/logs/report.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        code=code("stage report"),
    message:
        "Writing the summary and the page of {wildcards.workload}"
    shell:
        "python -m kareus stage report --title {wildcards.workload} --config {input.config}"
        " --microbatch {input.microbatch} --iteration {input.iteration}"
        " --candidates {input.candidates} --rounds {input.rounds} --proposals {input.proposals}"
        " --plans {input.plans} --runs {input.runs}"
        " --output results/{wildcards.workload}/report --force > {log} 2>&1"


rule report_fleets:
    input:
        config="results/{workload}/config/plan.yaml",
        fleet=fleets_of(rules.emulate_fleet.output.fleet),
        stragglers=fleets_of(rules.emulate_fleet.output.stragglers),
        power_caps=fleets_of(rules.emulate_fleet.output.power_caps),
        hours=fleets_of(rules.emulate_fleet.output.hours),
        microbatch=rules.compose_frontiers.output.microbatch,
    output:
        page=report(
            "results/{workload}/report/fleets.html",
            category="Fleets",
            labels={"workload": "{workload}", "what": "page"},
            caption="../report/fleets.rst",
        ),
        summary="results/{workload}/report/fleets.txt",
        figure=report(
            "results/{workload}/report/figures/fleet.svg",
            category="Fleets",
            labels={"workload": "{workload}", "what": "frontiers"},
            caption="../report/fleets.rst",
        ),
        prints=expand(
            "results/{{workload}}/report/figures/fleet.{kind}", kind=("pdf", "png")
        ),
        tables=expand(
            "results/{{workload}}/report/data/{table}.{kind}",
            table=FLEET_TABLES,
            kind=WRITTEN_AS,
        ),
        manifest="results/{workload}/report/fleets.manifest.json",
        done=done("{workload}/report-fleets"),
    log:
        "results/{workload}/logs/report-fleets.log",
    conda:
        "../../envs/kareus.yaml"
    params:
        code=code("stage report-fleets"),
    message:
        "Writing the summary and the page of the fleets of {wildcards.workload}"
    shell:
        "python -m kareus stage report-fleets --title {wildcards.workload}"
        " --fleet {input.fleet} --stragglers {input.stragglers}"
        " --power-caps {input.power_caps} --hours {input.hours}"
        " --microbatch {input.microbatch} --config {input.config}"
        " --output results/{wildcards.workload}/report --force > {log} 2>&1"


rule report_campaign:
    input:
        campaign=rules.resolve_campaign.output.campaign,
        reports=expand(rules.write_report.output.page, workload=WORKLOADS),
        fleets=expand(rules.report_fleets.output.page, workload=EMULATED),
        trials=trials,
    output:
        page=report(
            f"results/campaigns/{CAMPAIGN.folder}/report/index.html",
            category="Campaign",
            labels={"what": "page"},
            caption="../report/campaign.rst",
        ),
        summary=report(
            f"results/campaigns/{CAMPAIGN.folder}/report/summary.txt",
            category="Campaign",
            labels={"what": "summary"},
            caption="../report/campaign.rst",
        ),
        workloads=directory(f"results/campaigns/{CAMPAIGN.folder}/report/workloads"),
        figures=[
            report(
                f"results/campaigns/{CAMPAIGN.folder}/report/figures/{figure}.svg",
                category="Campaign",
                labels={"what": figure},
                caption="../report/campaign_figure.rst",
            )
            for figure in CAMPAIGN_FIGURES
        ],
        prints=expand(
            f"results/campaigns/{CAMPAIGN.folder}/report/figures/{{figure}}.{{kind}}",
            figure=CAMPAIGN_FIGURES,
            kind=("pdf", "png"),
        ),
        tables=expand(
            f"results/campaigns/{CAMPAIGN.folder}/report/data/{{table}}.{{kind}}",
            table=CAMPAIGN_TABLES,
            kind=WRITTEN_AS,
        ),
        manifest=f"results/campaigns/{CAMPAIGN.folder}/report/manifest.json",
        done=done(f"campaigns/{CAMPAIGN.folder}/report"),
    log:
        f"results/logs/campaigns/{CAMPAIGN.folder}.report.log",
    benchmark:
        f"results/logs/campaigns/{CAMPAIGN.folder}.report.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        folder=CAMPAIGN.folder,
        code=code("stage report-campaign"),
    message:
        "Writing the report on the campaign"
    shell:
        "python -m kareus stage report-campaign {params.folder:q} --results results > {log} 2>&1"


rule answer_question:
    input:
        verified,
    output:
        page=report(
            f"results/campaigns/{CAMPAIGN.folder}/advise/page.html",
            category="Campaign",
            labels={"what": "advice"},
            caption="../report/advice.rst",
        ),
        summary=f"results/campaigns/{CAMPAIGN.folder}/advise/summary.txt",
        answer=f"results/campaigns/{CAMPAIGN.folder}/advise/advice.json",
        tables=expand(
            f"results/campaigns/{CAMPAIGN.folder}/advise/{{table}}.parquet",
            table=ADVICE_TABLES,
        ),
        downloads=expand(
            f"results/campaigns/{CAMPAIGN.folder}/advise/data/{{table}}.{{kind}}",
            table=ADVICE_TABLES,
            kind=WRITTEN_AS,
        ),
        manifest=f"results/campaigns/{CAMPAIGN.folder}/advise/manifest.json",
        done=done(f"campaigns/{CAMPAIGN.folder}/advise"),
    log:
        f"results/logs/campaigns/{CAMPAIGN.folder}.advise.log",
    benchmark:
        f"results/logs/campaigns/{CAMPAIGN.folder}.advise.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        question=QUESTION.texts if QUESTION else [],
        content=QUESTION.content_hash if QUESTION else "",
        folder=CAMPAIGN.folder,
        code=code("stage report-advice"),
    message:
        "Finding the layout that the campaign asks for"
    shell:
        "python -m kareus stage report-advice {params.question:q}"
        " --output results/campaigns/{params.folder:q}/advise --force > {log} 2>&1"
