"""Power of all GPUs of a plan together, over one iteration."""

import polars as pl

from kareus.gpu_model.gpu import Gpu
from kareus.plans.document import Plan

RESOLUTION = 9
"""Decimals of a second within which an end is a start: sums of the same times in another order."""


def power_over_time(plan: Plan, gpu: Gpu) -> pl.DataFrame:
    """Power of the whole pipeline over one iteration, as it holds from each change to the next.

    A GPU draws the mean power of its instruction while that runs, and that of waiting at its clock while it waits; the
    integral is the plan's energy, which charges instructions and waiting alike.

    Args:
        plan: a plan with its energies.
        gpu: that runs it.

    Returns:
        `time_s`, from 0 to the end of the iteration, and `power_w`; the last row repeats the power before it.
    """
    gpus = plan.gpus // len(plan.stages)  # all stages have as many
    end_s, changes = plan.prediction.time_s, [(0.0, 0.0)]
    for stage in plan.stages:
        spans = [(i.start_s, i.start_s + i.time_s, i.energy_j / i.time_s) for i in stage.instructions]
        spans += [(wait.from_s, wait.to_s, wait.power_w) for wait in stage.waits(end_s, gpu)]
        for from_s, to_s, power_w in spans:
            changes += [(from_s, gpus * power_w), (to_s, -gpus * power_w)]
    changes.append((end_s, 0.0))
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
