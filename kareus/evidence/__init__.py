"""How far predictions can be trusted: fits and exams of the numbers that ship. No other room imports this one.

Reads CSV files of planned frontiers, reductions, kernels, iterations and node powers, of which `data/` ships some;
writes coefficients of GPUs, a table of errors, or a page.
"""
