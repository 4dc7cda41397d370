"""Composing partitions into microbatch frontiers.

Reads searches and profiles; writes `results/<workload>/frontier/microbatch.parquet`.
"""
