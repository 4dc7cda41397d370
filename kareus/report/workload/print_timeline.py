"""The pipeline of a plan for papers: one lane for each stage, as the page draws it."""

from typing import TYPE_CHECKING

from kareus.graph.records import Direction
from kareus.plans.document import PlannedInstruction
from kareus.report.paper import place
from kareus.report.workload.timeline import Timeline, chunks, power_w

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LETTERS = {
    Direction.FORWARD: "F",
    Direction.BACKWARD: "B",
    Direction.INPUT_GRADIENT: "B",
    Direction.WEIGHT_GRADIENT: "W",
}
"""Names of instructions; B is a whole backward or, where it is split, that of inputs."""
WIDTH_IN, LANE_IN = 7.0, 0.36
SCALE_SHARE = 0.075
"""Share of the width for the scale of powers."""
HATCH = "////////"
LEAST_SHARE = 0.022
"""Least share of the iteration of an instruction whose name fits."""
DARK_BELOW = 0.55
"""Share of the colour scale below which text is white."""


def draw_timeline(timeline: Timeline, canvas: "Figure") -> None:
    """Draw the timeline on an empty canvas, and size it."""
    import numpy as np  # noqa: PLC0415 - as in drawing.py
    from matplotlib.cm import ScalarMappable  # noqa: PLC0415
    from matplotlib.colors import Normalize  # noqa: PLC0415

    plan, stages = timeline.plan, timeline.plan.stages
    (axes,) = place(canvas, (WIDTH_IN, LANE_IN * len(stages) + 0.65))
    box = axes.get_position()
    axes.set_position((box.x0, box.y0, box.width - SCALE_SHARE, box.height))
    low, high = timeline.powers_w
    scale = ScalarMappable(Normalize(low, high), "viridis")
    for lane, stage in enumerate(stages):
        axes.broken_barh(
            [(0, plan.prediction.time_s)],
            (lane - 0.42, 0.84),
            facecolor="none",
            edgecolor="#b0b6be",
            hatch=HATCH,
            lw=0,
        )
        axes.broken_barh(
            [(i.start_s, i.time_s) for i in stage.instructions],
            (lane - 0.42, 0.84),
            facecolor=scale.to_rgba(np.array([power_w(i) for i in stage.instructions])),
            edgecolor="white",
            lw=0.4,
        )
        for i in stage.instructions:
            if i.time_s >= LEAST_SHARE * plan.prediction.time_s:
                dark = power_w(i) < low + DARK_BELOW * (high - low)
                axes.annotate(
                    _name(i, is_chunked=chunks(plan) > 1),
                    (i.start_s + i.time_s / 2, lane),
                    color="white" if dark else "black",
                    ha="center",
                    va="center",
                    fontsize=5,
                )
    axes.set(
        xlim=(0, plan.prediction.time_s),
        ylim=(len(stages) - 0.5, -0.5),
        xlabel="time (s); in a bar: microbatch, MHz; hatched: waiting",
        yticks=range(len(stages)),
        yticklabels=[f"stage {stage.stage}" for stage in stages],
    )
    axes.grid(visible=False)
    beside = canvas.add_axes((box.x1 - SCALE_SHARE + 0.01, box.y0, 0.012, box.height))
    canvas.colorbar(scale, cax=beside, label="GPU power (W)")


def _name(i: PlannedInstruction, *, is_chunked: bool) -> str:
    chunk = f".{i.chunk}" if is_chunked else ""
    return f"{LETTERS[i.direction]}{i.microbatch}{chunk}\n{i.frequency_mhz}"
