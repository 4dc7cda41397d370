"""Searching a partition's candidates for its time-energy frontier, measuring as few as possible.

Reads partitions and search spaces; writes `results/<workload>/search/<partition>/*.parquet`, over the
durable store in `results/measurements/`.
"""
