rule extract_partitions:
    input:
        config="results/{workload}/config/partition.yaml",
    output:
        segments="results/{workload}/partition/segments.parquet",
        partitions="results/{workload}/partition/partitions.parquet",
    log:
        "results/{workload}/logs/partition.log",
    benchmark:
        "results/{workload}/logs/partition.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        code=code("partition"),
    message:
        "Extracting the partitions of {wildcards.workload}"
    shell:
        "python -m kareus partition --config {input.config}"
        " --segments {output.segments} --partitions {output.partitions} > {log} 2>&1"
