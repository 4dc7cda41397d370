"""Thermally stable measurement of programs, and of everything in an instruction that is not searched.

Reads the segments of the operator graph; writes `results/<workload>/profile/*.parquet`, over the durable
store in `results/measurements/`.
"""
