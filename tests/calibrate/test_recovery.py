"""Recovering a hidden simulated GPU: kernels that a calibration did not measure are predicted within 3 %."""
