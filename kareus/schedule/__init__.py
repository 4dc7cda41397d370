"""Execution schedules (frequency, SM allocation, launch operator) and the search space of a partition.

Reads the partitions; writes `results/<workload>/schedule/space.parquet`.
"""
