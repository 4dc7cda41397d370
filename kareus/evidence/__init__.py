"""Evidence for the numbers that ship: fits to measurements, and exams. No other room imports this one.

Reads CSV files of planned frontiers, reductions, kernels, iterations and node powers, of which `data/` ships some;
writes coefficients of GPUs, a table of errors, or a page.
"""
