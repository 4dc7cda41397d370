"""Campaigns: workloads, emulated fleets and sweeps of the profiler that are planned together.

Reads `config/campaign/`; writes `results/campaigns/<campaign>/campaign.parquet` and, of its workloads, what
`kareus.workload` writes.
"""
