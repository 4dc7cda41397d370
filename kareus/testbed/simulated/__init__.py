"""A GPU that exists only as a model: laws of time and energy, overlap, throttling, heat and instruments.

First version: its coefficients are starting values, not yet fitted against reference data with a
published error.
"""
