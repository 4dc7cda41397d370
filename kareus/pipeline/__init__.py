"""Instruction DAGs and the iteration frontier of every method.

An iteration is the forwards and backwards of one pipeline, what it sends between its stages and, with
`iteration.include_update`, the update of the weights (`kareus.update`). Without it replicas add energy and no time.

Reads microbatch frontiers; writes `results/<workload>/pipeline/{instructions,iteration}.parquet`.
"""
