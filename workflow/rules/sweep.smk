rule sweep_profiler:
    input:
        partitions=rules.place_partitions.output.partitions,
    output:
        trials="results/{workload}/profile/{sweep}/trials.parquet",
        done=done("{workload}/profile/{sweep}/trials"),
    log:
        "results/{workload}/logs/profile/{sweep}.log",
    benchmark:
        "results/{workload}/logs/profile/{sweep}.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    resources:
        gpu=gpus,
    params:
        overrides=sweep_overrides,
        content=sweep_content,
        code=code("stage sweep"),
    message:
        "Sweeping the profiler's {wildcards.sweep} over {wildcards.workload}"
    shell:
        "python -m kareus stage sweep {params.overrides:q} --partitions {input.partitions}"
        " --store results/measurements --trials {output.trials} --force > {log} 2>&1"
