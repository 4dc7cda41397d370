rule compose_frontiers:
    input:
        config="results/{workload}/config/frontier.yaml",
        segments=rules.place_partitions.output.segments,
        components=rules.profile_instructions.output.components,
        instructions=rules.profile_instructions.output.instructions,
        candidates=searches,
    output:
        microbatch="results/{workload}/frontier/microbatch.parquet",
        done=done("{workload}/frontier"),
    log:
        "results/{workload}/logs/frontier.log",
    benchmark:
        "results/{workload}/logs/frontier.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        code=code("stage frontier"),
    message:
        "Composing the microbatch frontiers of {wildcards.workload}"
    shell:
        "python -m kareus stage frontier --config {input.config} --segments {input.segments}"
        " --components {input.components} --instructions {input.instructions}"
        " --candidates {input.candidates} --microbatch {output.microbatch} --force > {log} 2>&1"
