rule resolve_campaign:
    input:
        verified,
    output:
        campaign=f"results/campaigns/{CAMPAIGN.folder}/campaign.parquet",
        table="results/workloads.parquet",
        workloads=expand("results/{workload}/config/workload.yaml", workload=WORKLOADS),
        done=done(f"campaigns/{CAMPAIGN.folder}/campaign"),
    log:
        f"results/logs/campaigns/{CAMPAIGN.folder}.log",
    benchmark:
        f"results/logs/campaigns/{CAMPAIGN.folder}.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        name=CAMPAIGN.name,
        overrides=config["overrides"],
        content=content_hash(CAMPAIGN.members),
        code=code("campaign"),
    message:
        "Resolving the campaign"
    shell:
        "python -m kareus campaign {params.name:q} {params.overrides:q} --output results --force > {log} 2>&1"
