rule resolve_campaign:
    output:
        campaign=f"results/campaigns/{CAMPAIGN.name}/campaign.parquet",
        table="results/workloads.parquet",
        workloads=expand("results/{workload}/config/workload.yaml", workload=WORKLOADS),
    log:
        f"results/logs/campaigns/{CAMPAIGN.name}.log",
    benchmark:
        f"results/logs/campaigns/{CAMPAIGN.name}.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        name=CAMPAIGN.name,
        overrides=config["overrides"],
        content=content_hash(CAMPAIGN.members),
        code=code("campaign"),
    message:
        "Resolving a campaign"
    shell:
        "python -m kareus campaign {params.name:q} {params.overrides:q} --output results > {log} 2>&1"
