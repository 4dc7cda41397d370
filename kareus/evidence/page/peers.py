"""Errors that others publish, beside our own figures on the page, and what not to trust."""

PEERS = (
    ("vTrain", "training iterations, A100 80GB, one node", "8.37 %", "rows that are not public here"),
    ("vTrain", "training iterations, 64 to 512 GPUs", "14.73 %", "rows that are not public here"),
    ("Charon", "training iterations, its own cluster", "below 3.74 %", "other rows"),
    ("Primus projection (AMD)", "training iterations, GPUs of AMD", "within 10 %", "other rows"),
    ("a model that runs on CPUs alone", "training iterations, A100", "4.98 %", "other rows"),
    ("EnergAIzer", "power, H100", "7 %", "other rows"),
    ("gradient-boosted trees", "GEMM, shapes left out: time", "4 to 6 %",
     "the same rows as ours"),
    ("gradient-boosted trees", "GEMM, shapes left out: power", "5 to 9 %", "the same rows as ours"),
    ("gradient-boosted trees", "attention, shapes left out: time", "2 to 5 %", "the same rows as ours"),
    ("gradient-boosted trees", "attention, shapes left out: power", "3 to 14 %", "the same rows as ours"),
)  # fmt: skip
"""Who, on what, mean absolute error as published, and how it compares with ours."""

DISTRUST = (
    (
        "Power of short kernels",
        "A reading of a meter shows what ran before a short kernel: such rows are not compared.",
    ),
    (
        "Power of attention on H200",
        "Similar shapes of attention draw 440 or 680 W in the data, with no rule in the shape.",
    ),
    ("Heads of 512 values", "FlashAttention has no kernel for them, so that other software ran."),
    (
        "Energies of A100 80GB and H100",
        "Their power was not read: those of the A100 80GB are prior values, those of the H100 the H200's, with "
        "more power of the clock.",
    ),
    ("HBM's energy", "It ends below what measurements of bandwidth alone give (110 to 130 pJ a byte)."),
    ("Overlap on all GPUs but the A100 40GB", "Coefficients of overlap, host and heat are those of the A100 40GB."),
    ("H100 96GB", "It has the H100's coefficients and no measurements of its own."),
    ("How vtrain-single composes iterations", "Its times are sums of traces and not runs."),
    ("Traffic of NeMo", "It is more than its kernels move: something of Hopper's products under load is missing."),
    ("Differences below 8 % between NeMo trainings", "Equal configurations differ by that much between releases."),
    ("Differences below 7 % of power", "GPUs of one kind differ by that much."),
)
"""What predictions are not to be trusted for, and why (docs/evidence/fidelity-2026-11.md has the figures)."""
