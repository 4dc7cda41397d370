"""A GPU that exists only as a model: laws of time and energy, overlap, throttling, heat and instruments.

Coefficients marked `[fit]` in `config/gpu/` come from frontiers planned on real A100s; what error the model makes on
workloads that it was not fitted to has not been measured yet.
"""
