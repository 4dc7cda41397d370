rule write_config:
    output:
        "results/{workload}/config/{stage}.yaml",
    log:
        "results/{workload}/logs/config/{stage}.log",
    conda:
        "../../envs/kareus.yaml"
    params:
        text=config_text,
    message:
        "Writing the configuration of {wildcards.stage}"
    shell:
        "printf '%s' {params.text:q} > {output} 2> {log}"
