"""What is planned together: campaigns of workloads, emulated fleets and sweeps of the profiler.

Reads `config/campaign/`; writes `results/campaigns/<campaign>/campaign.parquet` and, of its workloads, what
`kareus.workload` writes.
"""
