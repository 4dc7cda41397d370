rule resolve_workloads:
    output:
        table="results/workloads.parquet",
        workloads=expand("results/{workload}/config/workload.yaml", workload=WORKLOADS),
    log:
        "results/logs/resolve.log",
    benchmark:
        "results/logs/resolve.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        overrides=config["overrides"],
        content=content_hash(RESOLVED),
        code=code("resolve"),
    message:
        "Resolving workloads"
    shell:
        "python -m kareus resolve {params.overrides:q} --output results > {log} 2>&1"


rule write_config:
    output:
        "results/{workload}/config/{stage}.yaml",
    log:
        "results/{workload}/logs/config/{stage}.log",
    conda:
        "../../envs/kareus.yaml"
    params:
        text=config_text,
    message:
        "Writing the configuration of {wildcards.stage}"
    shell:
        "printf '%s' {params.text:q} > {output} 2> {log}"
