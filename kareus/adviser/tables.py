"""Tables of the adviser: all layouts, and the frontier over them."""

from typing import Any

import polars as pl

from kareus.adviser.answers import Advice, LayoutAnswer, plans_of
from kareus.adviser.choosing import plan_asked
from kareus.adviser.layouts import Layout
from kareus.adviser.predictions import LayoutCost
from kareus.artifacts.tables import Column, TableSchema
from kareus.workload.model_flops import mfu, tokens_per_iteration

_GPUS = Column("gpus", pl.Int64, "GPUs of the whole job", positive=True)
_LAYOUT = (
    Column("dp", pl.Int64, "data-parallel replicas", positive=True),
    Column("pp", pl.Int64, "pipeline stages", positive=True),
    Column("tp", pl.Int64, "GPUs of a tensor-parallel group", positive=True),
    Column("cp", pl.Int64, "GPUs of a context-parallel group", positive=True),
    Column("ep", pl.Int64, "GPUs that share out experts", positive=True),
    Column("schedule", pl.String, "pipeline schedule"),
    Column("chunks", pl.Int64, "chunks of each stage", positive=True),
    Column("microbatch_size", pl.Int64, "sequences of a microbatch", positive=True),
    Column("num_microbatches", pl.Int64, "microbatches of one pipeline in one iteration", positive=True),
    Column("recomputation", pl.String, "what a backward recomputes"),
    Column("sharding", pl.String, "what replicas share out"),
    Column("sequence_parallel", pl.Boolean, "whether tensor-parallel groups share tokens between products"),
    Column("shards", pl.Int64, "replicas that share out model states among themselves", positive=True),
    Column("layers_per_stage", pl.List(pl.Int64), "blocks on each stage, or chunk, if searched; empty if as usual"),
)

ADVISED_LAYOUTS = TableSchema(
    name="advised_layouts",
    version=5,
    meaning="Layouts of a training on so many GPUs: those that can run, and those that are refused.",
    columns=(
        _GPUS,
        Column("layout", pl.Int64, "number, by rising time of the fastest plan; 0 of refused ones"),
        *_LAYOUT,
        Column("depth", pl.String, "how far it was followed: `refused`, `bounded`, `predicted` or `planned`"),
        Column("refusal", pl.String, "why it cannot run", nullable=True),
        Column("memory_gib", pl.Float64, "estimated peak of the fullest GPU", nullable=True),
        Column("bound_s", pl.Float64, "time of an iteration that no plan undercuts", nullable=True),
        Column("bound_j", pl.Float64, "energy of an iteration that no plan undercuts, all GPUs", nullable=True),
        Column(
            "time_s",
            pl.Float64,
            "time of its plan by the selector of the answer, as on the page; null where no plan keeps the limits",
            nullable=True,
        ),
        Column("energy_j", pl.Float64, "energy of that plan, all GPUs", nullable=True),
        Column("power_w", pl.Float64, "mean power of that plan, all GPUs", nullable=True),
        Column("fastest_time_s", pl.Float64, "time of its fastest known plan, whatever the limits", nullable=True),
        Column("fastest_energy_j", pl.Float64, "energy of that plan, all GPUs", nullable=True),
        Column("least_power_w", pl.Float64, "least mean power of its known plans, all GPUs", nullable=True),
        Column("least_energy_j", pl.Float64, "energy of its most frugal known plan, all GPUs", nullable=True),
        Column("least_energy_time_s", pl.Float64, "time of that plan", nullable=True),
        Column(
            "sequential_s",
            pl.Float64,
            "time as the software runs it by itself, at full clock; null where a bound rules it out of the first",
            nullable=True,
        ),
        Column("sequential_j", pl.Float64, "energy of that, all GPUs", nullable=True),
        Column("tokens_per_s", pl.Float64, "tokens a second of the plan of `time_s`", nullable=True),
        Column("joules_per_token", pl.Float64, "energy of that plan for each token", nullable=True),
        Column("mfu", pl.Float64, "model FLOPs utilisation of that plan", nullable=True),
        Column(
            "bubble_share", pl.Float64, "share of the sequential iteration that GPUs wait for others", nullable=True
        ),
        Column("exposed_share", pl.Float64, "share of it that collectives of blocks add", nullable=True),
        Column(
            "is_tied",
            pl.Boolean,
            "whether it would be on the frontier within the margin of ties",
        ),
        Column("is_job", pl.Boolean, "whether it is the layout of the job whose files were given"),
        Column(
            "measure_first",
            pl.Int64,
            "place from 1 among the layouts to measure before a long training; null of others",
            nullable=True,
        ),
    ),
    key=("gpus", *(column.name for column in _LAYOUT)),
)
ADVISED_PLANS = TableSchema(
    name="advised_plans",
    version=2,
    meaning="Plans of all layouts that no other plan on as many GPUs dominates, and the one that was asked for.",
    columns=(
        _GPUS,
        Column("layout", pl.Int64, "number of its layout in `advised_layouts`"),
        Column("plan", pl.Int64, "number from 0, by rising time"),
        Column("time_s", pl.Float64, "time of an iteration", positive=True),
        Column("energy_j", pl.Float64, "energy of an iteration, all GPUs", positive=True),
        Column("tokens_per_s", pl.Float64, "tokens a second, all GPUs", positive=True),
        Column("joules_per_token", pl.Float64, "energy of a token", positive=True),
        Column("power_w", pl.Float64, "mean power of all GPUs", positive=True),
        Column("is_chosen", pl.Boolean, "whether it is the plan that was asked for"),
        Column(
            "is_on_frontier", pl.Boolean, "whether no other plan dominates it; a limit may ask for one of the others"
        ),
    ),
    key=("gpus", "plan"),
)


def layouts_frame(advice: Advice) -> pl.DataFrame:
    """Return the table `ADVISED_LAYOUTS`."""
    rows: list[dict[str, Any]] = []
    selector = advice.selector
    places = {(advice.chosen_gpus, one.number): place for place, one in enumerate(advice.measure_first, 1)}
    for size in advice.sizes:
        for answer in size.layouts:
            asked = plan_asked(advice.question, selector, answer) if answer.plans else None
            row = _layout_row(size.gpus, answer, asked)
            is_job = answer.candidate.layout == advice.question.job
            rows.append(row | {"is_job": is_job, "measure_first": places.get((size.gpus, answer.number))})
        for refusal in size.refusals:
            row = dict.fromkeys(ADVISED_LAYOUTS.polars.names())
            row |= _cells_of(refusal.layout) | {
                "gpus": size.gpus,
                "layout": 0,
                "depth": "refused",
                "refusal": refusal.message,
                "is_tied": False,
                "is_job": refusal.layout == advice.question.job,
            }
            rows.append(row | {"memory_gib": refusal.memory.total_gib if refusal.memory else None})
    return ADVISED_LAYOUTS.frame(rows)


def _layout_row(gpus: int, answer: LayoutAnswer, asked: LayoutCost | None) -> dict[str, Any]:
    candidate = answer.candidate
    tokens = tokens_per_iteration(candidate.workload)
    row: dict[str, Any] = dict.fromkeys(ADVISED_LAYOUTS.polars.names())
    row |= _cells_of(candidate.layout) | {
        "gpus": gpus,
        "layout": answer.number,
        "depth": str(answer.depth),
        "memory_gib": candidate.memory.total_gib,
        "bound_s": answer.bound_s,
        "bound_j": answer.bound_j,
        "bubble_share": answer.bubble_share,
        "exposed_share": answer.exposed_share,
        "is_tied": answer.is_tied,
    }
    if answer.sequential is not None:
        row |= {"sequential_s": answer.sequential.time_s, "sequential_j": answer.sequential.energy_j}
    if asked is not None:
        row |= {
            "time_s": asked.time_s,
            "energy_j": asked.energy_j,
            "power_w": asked.power_w,
            "tokens_per_s": tokens / asked.time_s,
            "joules_per_token": asked.energy_j / tokens,
            "mfu": mfu(candidate.workload, asked.time_s),
        }
    if answer.plans:
        fastest, last = answer.fastest, answer.plans[-1]
        row |= {"fastest_time_s": fastest.time_s, "fastest_energy_j": fastest.energy_j}
        row |= {"least_energy_j": last.energy_j, "least_energy_time_s": last.time_s}
        row |= {"least_power_w": min(plan.cost.power_w for plan in plans_of([answer]))}
    return row


def _cells_of(layout: Layout) -> dict[str, Any]:
    values = {column.name: getattr(layout, column.name) for column in _LAYOUT}
    return values | {"shards": layout.shards or layout.dp, "layers_per_stage": list(layout.layers_per_stage or ())}


def plans_frame(advice: Advice) -> pl.DataFrame:
    """Return the table `ADVISED_PLANS`."""
    rows = []
    for size in advice.sizes:
        on_frontier = {(choice.layout.number, choice.cost) for choice in size.frontier}
        others = [advice.chosen] if size.gpus == advice.chosen_gpus else []
        choices = [*size.frontier, *(one for one in others if (one.layout.number, one.cost) not in on_frontier)]
        for number, choice in enumerate(sorted(choices, key=lambda choice: choice.cost.time_s)):
            tokens = tokens_per_iteration(choice.layout.candidate.workload)
            rows.append(
                {
                    "gpus": size.gpus,
                    "layout": choice.layout.number,
                    "plan": number,
                    "time_s": choice.cost.time_s,
                    "energy_j": choice.cost.energy_j,
                    "tokens_per_s": tokens / choice.cost.time_s,
                    "joules_per_token": choice.cost.energy_j / tokens,
                    "power_w": choice.cost.power_w,
                    "is_chosen": choice == advice.chosen,
                    "is_on_frontier": (choice.layout.number, choice.cost) in on_frontier,
                }
            )
    return ADVISED_PLANS.frame(rows)
