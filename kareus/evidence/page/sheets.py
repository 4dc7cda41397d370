"""Tables of the page of `kareus validate`."""

from collections.abc import Mapping, Sequence

from kareus.evidence.page.errors import GroupErrors
from kareus.evidence.page.worst import PartError
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
