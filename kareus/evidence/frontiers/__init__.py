"""Planned frontiers and measured reductions: rows, predictions, errors, and the fit of a GPU to them."""
