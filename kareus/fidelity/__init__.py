"""How far the GPU model can be trusted: fitting its coefficients to reference data, and checking what it predicts.

Reads CSV files of planned frontiers or of measured reductions; writes a GPU's coefficients or a table of errors.
"""
