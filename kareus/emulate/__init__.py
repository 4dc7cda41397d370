"""From one pipeline to a fleet: data-parallel replicas, gradient reduction, stragglers, power caps, hours of prices.

Reads the microbatch frontiers of one pipeline; writes `results/<workload>/emulate/<fleet>/*.parquet`.
"""
