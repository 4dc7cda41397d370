"""Bytes that the engine moves: through HBM by its kernels, and between stages by its messages."""
