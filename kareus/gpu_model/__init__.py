"""The GPU model: time, power and energy of operators, collectives and whole programs on a GPU.

`kareus.testbed` measures on it, `kareus.search` samples its prior, `kareus.evidence` fits and validates it.
"""
