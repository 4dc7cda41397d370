"""Measured kernels: reading public measurements of single kernels, predicting them, scoring and fitting to them."""
