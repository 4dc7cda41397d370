rule search_partition:
    input:
        config="results/{workload}/config/search.yaml",
        partitions=rules.place_partitions.output.partitions,
        space=rules.enumerate_schedules.output.space,
    output:
        candidates="results/{workload}/search/{partition}/candidates.parquet",
        rounds="results/{workload}/search/{partition}/rounds.parquet",
        proposals="results/{workload}/search/{partition}/proposals.parquet",
        done=done("{workload}/search/{partition}"),
    log:
        text="results/{workload}/logs/search/{partition}.log",
        progress="results/{workload}/logs/search/{partition}.progress.json",
    benchmark:
        "results/{workload}/logs/search/{partition}.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    resources:
        gpu=gpus,
    params:
        code=code("stage search"),
    message:
        "Searching {wildcards.partition} of {wildcards.workload}"
    shell:
        "python -m kareus stage search --config {input.config}"
        " --partitions {input.partitions} --space {input.space} --partition {wildcards.partition}"
        " --store results/measurements"
        " --candidates {output.candidates} --rounds {output.rounds}"
        " --proposals {output.proposals}"
        " --progress {log.progress} --force > {log.text} 2>&1"
