rule profile_instructions:
    input:
        config="results/{workload}/config/profile.yaml",
        segments=rules.place_partitions.output.segments,
    output:
        components="results/{workload}/profile/components.parquet",
        instructions="results/{workload}/profile/instructions.parquet",
        done=done("{workload}/profile/instructions"),
    log:
        text="results/{workload}/logs/profile.log",
        progress="results/{workload}/logs/profile.progress.json",
    benchmark:
        "results/{workload}/logs/profile.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    resources:
        gpu=gpus,
    params:
        code=code("stage profile"),
    message:
        "Profiling components and whole instructions of {wildcards.workload}"
    shell:
        "python -m kareus stage profile --config {input.config} --segments {input.segments}"
        " --store results/measurements"
        " --components {output.components} --instructions {output.instructions}"
        " --progress {log.progress} --force > {log.text} 2>&1"
