"""Local search: make the plans that rounding leaves cheaper, within the same deadlines.

`search.search` is the entry point: it knows when each neighbourhood applies, and how many moves it gets.
`descent.descend` is the acceptance rule, the same for all. A neighbourhood is a module that only lists moves:

- `exchanges`: one instruction gets a point faster or slower. Pipelines of up to 187 instructions.
- `trades`: in all microbatches, one kind of instruction gets faster and another one slower. Up to 64 instructions.
- `splices`: one plan up to some moment, another one from there on. More than 64 instructions, where gaps are wide.

Without exchanges the mean gap to the lower bound is 0.008 to 0.014 points of percent wider, without splices 0.005 to
0.009 points, without trades 0.001 points, but that of single plans up to 0.03 (`benchmarks/local_search.py`).
"""
