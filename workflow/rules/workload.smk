rule write_config:
    input:
        verified,
    output:
        config="results/{workload}/config/{stage}.yaml",
        done=done("{workload}/config/{stage}"),
    log:
        "results/{workload}/logs/config/{stage}.log",
    conda:
        "../../envs/kareus.yaml"
    params:
        into=INTO,
        text=config_text,
    message:
        "Writing the {wildcards.stage} configuration of {wildcards.workload}"
    shell:
        "{params.into} {output.config} printf %s {params.text:q} 2> {log}"
