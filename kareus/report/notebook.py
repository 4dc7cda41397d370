"""Views of a record in notebooks: three lines of text and a figure, both as pages have them."""

import base64
from functools import singledispatch
from html import escape
from typing import TYPE_CHECKING, Any

from kareus.adviser.answers import Advice
from kareus.adviser.lines import chips, error_text, headline, layout_text, source_label
from kareus.gpu_model.trust import known_uncertainty
from kareus.pipeline.compare import OURS
from kareus.plans.answer import fastest_answer, model_error_line
from kareus.plans.document import Plan
from kareus.plans.units import scaled
from kareus.plans.workload_frontier import WorkloadFrontier
from kareus.software.trainers import ENGINE, trainers

if TYPE_CHECKING:
    from kareus.report.charts import Figure

SHOWN = "max-width: 960px; width: 100%"
"""Width of a figure in a cell."""


@singledispatch
def lines(record: Any) -> list[str]:
    """Return three lines: what a record is, what it takes, how good that is."""
    raise TypeError(f"{type(record).__name__}: is not shown")


@singledispatch
def figure(record: Any) -> "tuple[Figure, str]":
    """Return the figure of a record, and its subject."""
    raise TypeError(f"{type(record).__name__}: is not shown")


def html(record: Any) -> str:
    """Return the figure of a record, as an image of its own, above its lines."""
    from kareus.report.drawing import described, svg_of  # noqa: PLC0415 - a terminal prints lines alone

    drawn, subject = figure(record)
    svg = described(svg_of(drawn, subject), drawn, subject)
    image = base64.b64encode(svg.encode()).decode()
    text = "<br>".join(map(escape, lines(record)))
    alternative = escape(f"{drawn.title} ({subject})", quote=True)
    return f'<div><img style="{SHOWN}" alt="{alternative}" src="data:image/svg+xml;base64,{image}"><p>{text}</p></div>'


@lines.register(Plan)
def _(plan: Plan) -> list[str]:
    cost = plan.prediction
    clocks = sorted({instruction.frequency_mhz for _, instruction in plan.keyed})
    return [
        f"{plan.workload}: plan {plan.selector} of {plan.method} [{plan.testbed.label}]",
        f"{scaled(cost.time_s, 's', digits=4)} and {scaled(cost.energy_j, 'J', digits=4)} an iteration on {plan.gpus} "
        f"GPUs; at most {100 * cost.gap:.2f} % above the least energy in that time",
        f"{plan.instructions} instructions on {len(plan.stages)} stages, at {clocks[0]} to {clocks[-1]} MHz; "
        f"{plan.changes}",
    ]


@figure.register(Plan)
def _(plan: Plan) -> "tuple[Figure, str]":
    from kareus.report.workload.timeline import plan_figure  # noqa: PLC0415 - as in `html`

    return plan_figure(plan), f"{plan.workload}, {plan.testbed.label}"


@lines.register(WorkloadFrontier)
def _(frontier: WorkloadFrontier) -> list[str]:
    points, plans = frontier.points, frontier.frontiers.plans(OURS)
    ends = [
        f"{row['time_s']:.4g} s and {row['energy_j'] / 1e3:.4g} kJ"
        for row in (plans.row(0, named=True), plans.row(-1, named=True))
    ]
    return [
        f"{frontier.name}: {len(points)} plans by {', '.join(frontier.methods)} [{frontier.frontiers.testbed.label}]",
        fastest_answer(points, OURS).sentence(trainers()[ENGINE].title),
        f"{OURS} reaches from {' to '.join(ends)}",
    ]


@figure.register(WorkloadFrontier)
def _(frontier: WorkloadFrontier) -> "tuple[Figure, str]":
    from kareus.report.workload.frontiers import iteration_figure  # noqa: PLC0415 - as in `html`
    from kareus.report.workload.summary import plan_rows  # noqa: PLC0415 - as in `html`

    testbed = frontier.frontiers.testbed
    uncertainty = known_uncertainty(frontier.workload.gpu) if testbed.kind == "simulated" else None
    rows = plan_rows(frontier.points, [frontier.plan()])
    return iteration_figure(frontier.points, rows, uncertainty), f"{frontier.name}, {testbed.label}"


@lines.register(Advice)
def _(advice: Advice) -> list[str]:
    return [headline(advice), layout_text(advice), model_error_line(chips(advice), error_text(advice))]


@figure.register(Advice)
def _(advice: Advice) -> "tuple[Figure, str]":
    from kareus.report.advice_figure import frontier_figure  # noqa: PLC0415 - as in `html`

    return frontier_figure(advice, advice.size), f"{advice.question.base.model.name}, {source_label(advice)}"
