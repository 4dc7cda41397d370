"""Orders of the instructions of a pipeline: one module for each schedule."""
