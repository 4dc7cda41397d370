rule select_plan:
    input:
        config=plan_config,
        microbatch=rules.compose_frontiers.output.microbatch,
        iteration=rules.solve_pipeline.output.iteration,
    output:
        plan="results/{workload}/plan/{selector}.json",
        done=done("{workload}/plan/{selector}"),
    log:
        "results/{workload}/logs/plan/{selector}.log",
    conda:
        "../../envs/kareus.yaml"
    params:
        code=code("select"),
    message:
        "Selecting {wildcards.selector} of {wildcards.workload}"
    shell:
        "python -m kareus select {wildcards.selector} results/{wildcards.workload}"
        " --output {output.plan} --force > {log} 2>&1"
