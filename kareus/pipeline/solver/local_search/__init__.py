"""Local search: make the plans that rounding leaves cheaper, within the same deadlines.

`search.search` is the entry point, `descent.descend` the acceptance rule. A neighbourhood is a module:

- `exchanges`: one instruction gets faster or slower by a point. Pipelines of up to 187 instructions.
- `trades`: in all microbatches, one kind of instruction gets faster and another one slower. Up to 64 instructions.
- `splices`: one plan up to some moment, another one from there on. More than 64 instructions, where gaps are wide.
"""
