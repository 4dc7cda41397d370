"""Tables of the page of `kareus validate`; errors that others publish, and what not to trust."""

from collections.abc import Mapping, Sequence

from kareus.evidence.page_errors import GroupErrors, PartError
from kareus.report.sheets import DASH, Sheet, SheetRow, heads, percent

NOTE = (
    "Left out: errors on shapes of kernels, or models of iterations, that were left out of the fit, where that was "
    "estimated; errors of all rows are in sample then. Without a model: one constant for each group (FLOP/s, bandwidth "
    "of links, MFU or power), or two (FLOP/s and bandwidth of HBM, whichever takes longer)."
)


def error_sheet(quantity: str, groups: Sequence[GroupErrors]) -> Sheet:
    """Return the errors of one quantity by group, beside those of baselines without a model."""
    baselines = max(len(group.trivial) for group in groups)
    return Sheet(
        caption=f"Errors of {quantity}",
        heads=heads(
            [
                ("", ("of", "rows")),
                ("mean absolute error", ("all rows", "left out")),
                ("", ("median error",)),
                ("without a model", ("one constant", "two")[:baselines]),
            ]
        ),
        rows=tuple(_error_row(group, baselines) for group in groups),
        note=NOTE if baselines > 1 else "",
    )


def _error_row(group: GroupErrors, baselines: int) -> SheetRow:
    trivial = [percent(value) for _, value in group.trivial]
    return SheetRow(
        cells=(
            group.label,
            f"{len(group.errors_pct):,}",
            percent(group.mape_pct),
            percent(group.left_out_pct),
            percent(group.quantiles_pct[2]),
            *(trivial + [DASH] * baselines)[:baselines],
        )
    )


def peer_sheet(peers: Sequence[tuple[str, str, str, str]]) -> Sheet:
    """Return errors that others publish."""
    return Sheet(
        caption="Mean absolute errors of other models, as their authors publish them, and of regressors without laws",
        heads=heads([("", ("who", "on", "error", "beside ours"))]),
        rows=tuple(SheetRow(cells=peer) for peer in peers),
        texts=4,
    )


def trust_sheet(words: Mapping[str, str]) -> Sheet:
    """Return what is known of the errors of each GPU, in words."""
    rows = tuple(SheetRow(cells=(gpu, errors), note=errors) for gpu, errors in words.items())
    return Sheet(caption="What is known of each GPU", heads=heads([("", ("GPU", "errors"))]), rows=rows, texts=2)


def distrust_sheet(doubts: Sequence[tuple[str, str]]) -> Sheet:
    """Return what not to trust, and why."""
    rows = tuple(SheetRow(cells=(what, why), note=why) for what, why in doubts)
    return Sheet(caption="Do not rely on", heads=heads([("", ("what", "why"))]), rows=rows, texts=2)


def worst_sheet(parts: Sequence[PartError]) -> Sheet:
    """Return the parts of the data whose times are predicted worst."""
    return Sheet(
        caption="Where errors of time are largest",
        heads=heads([("", ("of", "part", "rows", "mean absolute error", "median error"))]),
        rows=tuple(
            SheetRow(cells=(p.group, p.part, f"{p.rows:,}", percent(p.mape_pct), percent(p.median_pct))) for p in parts
        ),
        texts=2,
    )


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
