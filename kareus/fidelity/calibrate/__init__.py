"""Calibrating the GPU model to one GPU: what to measure, measuring it, fitting coefficients, writing the GPU's file."""
