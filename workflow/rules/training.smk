rule run_end_to_end:
    input:
        config="results/{workload}/config/plan.yaml",
        segments=rules.place_partitions.output.segments,
        space=rules.enumerate_schedules.output.space,
        microbatch=rules.compose_frontiers.output.microbatch,
        iteration=rules.solve_pipeline.output.iteration,
    output:
        iterations="results/{workload}/engine/end-to-end/iterations.parquet",
        done=done("{workload}/engine/end-to-end"),
    log:
        "results/{workload}/logs/end-to-end.log",
    benchmark:
        "results/{workload}/logs/end-to-end.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    resources:
        gpu=all_gpus,
    params:
        code=code("stage end-to-end"),
    message:
        "Running the fastest plan of every method of {wildcards.workload}"
    shell:
        "python -m kareus stage end-to-end results/{wildcards.workload}"
        " --output {output.iterations} --force > {log} 2>&1"
