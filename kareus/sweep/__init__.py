"""Sweeps of the profiler: how its window and cooldown decide how exact a measured energy is.

Writes `results/sweeps/<sweep>/`.
"""
