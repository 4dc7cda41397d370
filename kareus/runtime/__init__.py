"""Runs the instructions of a plan: partitioned overlap of two nanobatches in the order of a pipeline."""
