"""Testbeds that run programs: one protocol, implemented by the simulated GPU and by real GPUs."""
