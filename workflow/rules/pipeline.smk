rule solve_pipeline:
    input:
        config="results/{workload}/config/pipeline.yaml",
        microbatch=rules.compose_frontiers.output.microbatch,
    output:
        instructions="results/{workload}/pipeline/instructions.parquet",
        iteration="results/{workload}/pipeline/iteration.parquet",
        done=done("{workload}/pipeline"),
    log:
        "results/{workload}/logs/pipeline.log",
    benchmark:
        "results/{workload}/logs/pipeline.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        code=code("stage pipeline"),
    message:
        "Solving the iteration frontiers of {wildcards.workload}"
    shell:
        "python -m kareus stage pipeline --config {input.config} --microbatch {input.microbatch}"
        " --instructions {output.instructions} --iteration {output.iteration} --force > {log} 2>&1"
