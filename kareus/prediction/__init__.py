"""Predictions of a training iteration without measuring, their parts and errors, and measured iterations.

Reads workloads, and CSV files of measured iterations; `data/` has the errors of predictions by GPU and software.
"""
