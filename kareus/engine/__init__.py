"""Runs a plan: partitioned overlap of two nanobatches, stage by stage, and the training around it."""
