"""Instruction DAGs and the iteration frontier of every method.

An iteration is the forwards and backwards of one pipeline and what it sends between its stages: neither the gradient
synchronisation of data-parallel replicas nor the optimizer step is part of it, so replicas add energy and no time.

Reads microbatch frontiers; writes `results/<workload>/pipeline/{instructions,iteration}.parquet`.
"""
