"""Instruction DAGs and the iteration frontier of every method.

Reads microbatch frontiers; writes `results/<workload>/pipeline/{instructions,iteration}.parquet`.
"""
