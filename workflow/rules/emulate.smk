rule emulate_fleet:
    input:
        microbatch=rules.compose_frontiers.output.microbatch,
        series=fleet_series,
    output:
        fleet="results/{workload}/emulate/{fleet}/fleet.parquet",
        stragglers="results/{workload}/emulate/{fleet}/stragglers.parquet",
        power_caps="results/{workload}/emulate/{fleet}/power_caps.parquet",
        hours="results/{workload}/emulate/{fleet}/hours.parquet",
        done=done("{workload}/emulate/{fleet}"),
    log:
        "results/{workload}/logs/emulate/{fleet}.log",
    benchmark:
        "results/{workload}/logs/emulate/{fleet}.benchmark.tsv"
    conda:
        "../../envs/kareus.yaml"
    params:
        overrides=fleet_overrides,
        content=fleet_content,
        code=code("emulate"),
    message:
        "Emulating {wildcards.fleet} of {wildcards.workload}"
    shell:
        "python -m kareus emulate {params.overrides:q} --results results > {log} 2>&1"
