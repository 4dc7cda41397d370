rule enumerate_schedules:
    input:
        config="results/{workload}/config/schedule.yaml",
        partitions=rules.place_partitions.output.partitions,
    output:
        space="results/{workload}/schedule/space.parquet",
        done=done("{workload}/schedule"),
    log:
        "results/{workload}/logs/schedule.log",
    benchmark:
        "results/{workload}/logs/schedule.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        code=code("stage schedule"),
    message:
        "Enumerating the execution schedules of {wildcards.workload}"
    shell:
        "python -m kareus stage schedule --config {input.config} --partitions {input.partitions}"
        " --space {output.space} --force > {log} 2>&1"
