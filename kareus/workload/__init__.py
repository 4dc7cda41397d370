"""Workloads: from Hydra groups to resolved, feasible configurations of what is trained and on which GPUs.

Reads `config/`; writes `results/<workload>/config/*.yaml` and `results/workloads.parquet`.
"""
