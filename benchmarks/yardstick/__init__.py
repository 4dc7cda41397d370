"""The yardstick of search strategies: simulated truths, runs over them, peers, scores and a figure.

`python benchmarks/search.py` is its entry; nothing in `kareus` knows of it.
"""
