"""Where programs run: one protocol, with the simulated GPU (and later real GPUs) behind it."""
