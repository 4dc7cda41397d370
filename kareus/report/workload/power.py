"""Power of all GPUs of a plan together, over one iteration."""

import polars as pl

from kareus.plans.document import Plan

RESOLUTION = 9
"""Decimals of a second within which an end is a start: sums of the same times in another order."""


def power_over_time(plan: Plan, blocking_power_w: float) -> pl.DataFrame:
    """Power of the whole pipeline over one iteration, as it holds from each change to the next.

    A GPU draws the mean power of its instruction while that runs and blocking power while it waits; the integral is the
    plan's energy, which charges instructions and waiting alike.

    Args:
        plan: a plan with its energies.
        blocking_power_w: of one GPU.

    Returns:
        `time_s`, from 0 to the end of the iteration, and `power_w`; the last row repeats the power before it.
    """
    gpus = plan.gpus // len(plan.stages)  # all stages have as many
    changes = [(0.0, blocking_power_w * plan.gpus)]
    for stage in plan.stages:
        for i in stage.instructions:
            above_w = gpus * (i.energy_j / i.time_s - blocking_power_w)
            changes += [(i.start_s, above_w), (i.start_s + i.time_s, -above_w)]
    changes.append((plan.prediction.time_s, 0.0))
    frame = pl.DataFrame(changes, schema={"time_s": pl.Float64, "power_w": pl.Float64}, orient="row")
    steps = (
        frame.group_by(pl.col("time_s").round(RESOLUTION))
        .agg(pl.sum("power_w"))
        .sort("time_s")
        .with_columns(pl.col("power_w").cum_sum())
    )
    return steps.with_columns(
        power_w=pl.when(pl.int_range(pl.len()) == pl.len() - 1).then(pl.col("power_w").shift(1)).otherwise("power_w")
    )
