"""What is trained, and on what: from Hydra groups to one resolved, feasible workload.

Reads `config/`; writes `results/<workload>/config/*.yaml` and `results/workloads.parquet`.
"""
