rule write_graph_config:
    input:
        verified,
    output:
        config="results/graphs/{graph}/config.yaml",
        done=done("graphs/{graph}/config"),
    log:
        "results/graphs/{graph}/config.log",
    conda:
        "../../envs/kareus.yaml"
    params:
        into=INTO,
        text=graph_config_text,
    message:
        "Writing the configuration of the graph {wildcards.graph}"
    shell:
        "{params.into} {output.config} printf %s {params.text:q} 2> {log}"


rule extract_partitions:
    input:
        config=rules.write_graph_config.output.config,
    output:
        segments="results/graphs/{graph}/segments.parquet",
        partitions="results/graphs/{graph}/partitions.parquet",
        done=done("graphs/{graph}/partition"),
    log:
        "results/graphs/{graph}/partition.log",
    benchmark:
        "results/graphs/{graph}/partition.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        code=code("stage partition"),
    message:
        "Extracting the partitions of the operator graph {wildcards.graph}"
    shell:
        "python -m kareus stage partition --config {input.config}"
        " --segments {output.segments} --partitions {output.partitions} --force > {log} 2>&1"


rule place_partitions:
    input:
        graph_files,
    output:
        segments="results/{workload}/partition/segments.parquet",
        partitions="results/{workload}/partition/partitions.parquet",
        done=done("{workload}/partition"),
    log:
        "results/{workload}/logs/partition.log",
    conda:
        "../../envs/kareus.yaml"
    params:
        place=PLACE,
    message:
        "Placing the partitions of {wildcards.workload}"
    shell:
        "{params.place} results/{wildcards.workload}/partition {input} > {log} 2>&1"
