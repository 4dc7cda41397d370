"""The operator graph of a model as plain records, and the orders in which its operators run.

Extraction writes it (`kareus.partition`), every later stage reads it. Imports no torch.
"""
