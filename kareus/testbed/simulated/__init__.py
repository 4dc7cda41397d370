"""A GPU that exists only as a model: laws of time and energy, overlap, throttling, heat and instruments.

Coefficients marked `[fit ...]` in `config/gpu/` come from frontiers planned on real A100s and from measured reductions;
`docs/research/fidelity.md` says what error the model makes, also on workloads that were left out of the fit.
"""
