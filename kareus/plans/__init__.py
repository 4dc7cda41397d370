"""Choosing a point of an iteration frontier, and the plan file that says how to run it.

Reads iteration and microbatch frontiers; writes `results/<workload>/plan/<selector>.json`.
"""
