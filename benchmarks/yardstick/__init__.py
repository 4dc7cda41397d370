"""The yardstick of search strategies: simulated truths, runs over them, and scores.

`python benchmarks/search.py` is its entry; nothing in `kareus` knows of it.
"""
