"""Fleets of equal pipelines: data-parallel replicas, gradient reduction, stragglers, power caps, hours of prices.

Reads the microbatch frontiers of one pipeline or, where pipelines wait for one another, of all as replicas. Writes
`results/<workload>/emulate/<fleet>/*.parquet`.
"""
