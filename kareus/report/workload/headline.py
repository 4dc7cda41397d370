"""The head of a page: which plan to take, and what it saves; and which stage of its pipeline sets the pace."""

from dataclasses import dataclass

import polars as pl

from kareus.graph.records import Direction
from kareus.model.config import model_words
from kareus.pipeline.compare import OURS
from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.methods import method_named
from kareus.plans.answer import BASELINE, meaning
from kareus.plans.document import Plan, StagePlan
from kareus.plans.throughput import Throughput, throughput
from kareus.plans.units import common_scale, compared, less, significant
from kareus.prediction.errors import plan_error_words
from kareus.profile.programs import Execution
from kareus.report.workload.inputs import ReportInputs
from kareus.report.workload.summary import PlanRow, plan_rows
from kareus.runtime.engine_checks import engine_refusal
from kareus.software.trainers import ENGINE, ClockPace, ObeyingTrainer, software_words, trainer_of
from kareus.workload.config import Workload

ALIKE = 0.002
"""Share of a busy time by which stages may differ that wait alike."""

OF_UPDATE = {
    Direction.GRADIENT_REDUCTION: "R reduces gradients over replicas (what the last backward does not hide)",
    Direction.EMBEDDING_EXCHANGE: "E exchanges those of tied embeddings",
    Direction.UPDATE: "U is gradient norm and optimizer step",
}
"""What the letters of the update's instructions stand for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """A chosen plan, and that of `sequential` that it is compared with. Its texts have a twin in `static/page.js`."""

    row: PlanRow
    runs: Throughput
    baseline: Plan
    baseline_runs: Throughput
    baseline_name: str
    trainer: str
    """What runs the plan, as `trainer_words`."""
    limit_w: float = 0.0
    """Power limit that the plan sets; 0 where it sets none."""

    @property
    def sentence(self) -> str:
        """What the plan saves, in words."""
        row, base = self.row, self.baseline.prediction
        time = less(100 * (1 - row.time_s / base.time_s), "time")
        energy = less(100 * (1 - row.energy_j / base.energy_j), "energy")
        saved = compared(time, energy, self.baseline_name)
        return f"{plan_title(row.selector, row.method)}{self.trainer}: {saved}"

    @property
    def meaning(self) -> str:
        """What the selector means, where its name does not say it."""
        return plan_meaning(self.row.selector, self.limit_w)

    @property
    def facts(self) -> tuple[tuple[str, str, str], ...]:
        """Figures of one iteration: value, unit, and what the baseline has."""
        row, base, runs, usual = self.row, self.baseline.prediction, self.runs, self.baseline_runs
        (of_plan, before), (factor, per_token) = self._joules_per_token, self.per_token
        return (
            (significant(row.time_s), "s an iteration", significant(base.time_s)),
            (significant(row.energy_j / 1e3), "kJ an iteration", significant(base.energy_j / 1e3)),
            (f"{runs.tokens_per_s:,.0f}", "tokens/s", f"{usual.tokens_per_s:,.0f}"),
            (significant(of_plan / factor, 3), per_token, significant(before / factor, 3)),
            (f"{100 * runs.mfu:.1f} %", "MFU", f"{100 * usual.mfu:.1f} %"),
            (
                f"{row.energy_j / row.time_s / 1e3:.2f}",
                "kW, all GPUs",
                f"{base.energy_j / base.time_s / 1e3:.2f}",
            ),
        )

    @property
    def per_token(self) -> tuple[float, str]:
        """Joules and name of the unit in which energies of a token are given."""
        return common_scale(list(self._joules_per_token), "J/token")

    @property
    def _joules_per_token(self) -> tuple[float, float]:
        """Of the plan, and of the baseline."""
        base, runs, usual = self.baseline.prediction, self.runs, self.baseline_runs
        of_plan = self.row.energy_j / runs.tokens_per_s / self.row.time_s
        return of_plan, base.energy_j / usual.tokens_per_s / base.time_s


def plan_title(selector: str, method: str) -> str:
    """Return what a page calls a plan."""
    return f"Plan {selector}{'' if method == OURS else f' of {method}'}"


def plan_meaning(selector: str, limit_w: float) -> str:
    """Return a sentence on what a selector means at the power limit of a plan, if any; empty for most selectors."""
    words = meaning(selector, limit_w).strip(" ()")
    return f"{selector[0].upper()}{selector[1:]}: {words}." if words else ""


def trainer_words(workload: Workload, microbatch: pl.DataFrame, method: str) -> str:
    """Return in which trainer plans of a method run, to go on with, as `runner`; nothing where there is none."""
    trainer = runner(workload, microbatch, method)
    return f", in {trainer.title}" if trainer else ""


def runner(workload: Workload, microbatch: pl.DataFrame, method: str) -> ObeyingTrainer | None:
    """Return the trainer that plans of a method run in: the workload's or Kareus' engine; None where neither can.

    Args:
        workload: what is trained.
        microbatch: its table `MICROBATCH`.
        method: of the plans; other trainers than the engine run instructions whole.
    """
    trainer, made = trainer_of(workload.software.name), method_named(method)
    points = microbatch.filter(pl.col("method") == made.points_of)
    is_whole = (points["execution"] == Execution.SEQUENTIAL).all()
    if is_whole and (trainer.clocks is ClockPace.INSTRUCTION or not made.has_frontier):
        return trainer
    return None if engine_refusal(workload) else trainer_of(ENGINE)


def baseline_name(inputs: ReportInputs) -> str:
    """Return what the head of a page compares with."""
    return BASELINE if inputs.usual is inputs.baseline else f"{BASELINE} at full power"


def headline_of(inputs: ReportInputs, plan: Plan) -> Headline:
    """Return the headline of a report while it shows a plan."""
    (row,) = plan_rows(inputs.iteration, [plan])
    base = inputs.usual.prediction
    return Headline(
        row=row,
        runs=throughput(inputs.configured, row.time_s, row.energy_j),
        baseline=inputs.usual,
        baseline_runs=throughput(inputs.configured, base.time_s, base.energy_j),
        baseline_name=baseline_name(inputs),
        trainer=trainer_words(inputs.configured, inputs.microbatch, row.method),
        limit_w=plan.actuator.limit_w,
    )


def workload_words(workload: Workload) -> str:
    """Return a workload in words, such as `Llama 3.2 3B on 16 A100-SXM4-40GB, pipeline 2`."""
    p, schedule = workload.parallelism, workload.pipeline.schedule
    degrees = [("data", p.dp), ("pipeline", p.pp), ("context", p.cp), ("tensor", p.tp), ("expert", p.ep)]
    shown = [f"{name} {degree}" for name, degree in degrees if degree > 1]
    if schedule is not PipelineSchedule.ONE_FORWARD_ONE_BACKWARD:
        shown.append(f"schedule {schedule}")
    if p.token_shards > 1:
        shown.append("sequence parallel")
    return ", ".join([f"{model_words(workload.model.name)} on {p.gpus} {workload.gpu.name}", *shown])


def trust_words(workload: Workload, kind: str) -> str:
    """Return in one line for which trainer and GPU plans are, and how far their times and energies may be off.

    Args:
        workload: what is trained.
        kind: of the testbed.
    """
    name = software_words(workload.software.name)
    return f"{name[0].upper()}{name[1:]} on {workload.gpu.name}, {source_words(workload, kind)}."


def source_words(workload: Workload, kind: str) -> str:
    """Return of which kind the times and energies of a workload and its plans are, and how far they may be off."""
    return f"simulated; error: {plan_error_words(workload, trainer_of(ENGINE))}" if kind == "simulated" else "measured"


def bottleneck(plan: Plan, baseline: Plan) -> str:
    """Return which stage sets the pace of a plan, and why, and what the update of the weights takes, as sentences."""
    if not plan.update_s:
        return _pace(plan, baseline)
    there = {i.direction for stage in plan.stages for i in stage.instructions}
    parts = ", ".join(words for direction, words in OF_UPDATE.items() if direction in there)
    return (
        f"{_pace(plan, baseline)} The update of the weights, the narrow bars at the end, takes {plan.update_s:.3f} s "
        f"after the last backward: {parts}."
    )


def bottleneck_stage(plan: Plan, baseline: Plan) -> int:
    """Return the stage that waits least at the baseline; of those that wait alike, the one that the plan slows least.

    Busy times in the plan do not tell: it slows all other stages until they are about as busy.
    """
    return max(waiting_least(baseline), key=lambda stage: _mean_mhz(plan.stages[stage]))


def waiting_least(baseline: Plan) -> list[int]:
    """Return the stages of a baseline that are busy for longest."""
    most_s = max(map(_busy_s, baseline.stages))
    return [stage.stage for stage in baseline.stages if _busy_s(stage) >= most_s * (1 - ALIKE)]


def _pace(plan: Plan, baseline: Plan) -> str:
    if len(plan.stages) == 1:
        return "The pipeline has one stage, which is busy throughout."
    slowest = plan.stages[bottleneck_stage(plan, baseline)]
    others = [stage for stage in plan.stages if stage is not slowest]
    layers = [stage.layers for stage in plan.stages]
    reasons = []
    if slowest.layers > min(layers):
        reasons.append(f"it holds {slowest.layers} of the {sum(layers)} blocks")
    if slowest is plan.stages[-1]:
        reasons.append(f"it has the LM head beside its {slowest.layers} blocks")
    why = f": {' and '.join(reasons)}" if reasons else ""
    return (
        f"Stage {slowest.stage} is the bottleneck{why}. At the baseline it is busy for "
        f"{_busy_s(baseline.stages[slowest.stage]):.2f} of {baseline.prediction.time_s:.2f} s and waits least. The "
        f"plan runs its {len(slowest.passes)} forwards and backwards {_clock_words([slowest])}; "
        f"{_others(others)}{_slowed(slowest, others)}."
    )


def _others(stages: list[StagePlan]) -> str:
    who = "the other stages run" if len(stages) > 1 else f"stage {stages[0].stage} runs"
    return f"{who} {_clock_words(stages)}"


def _clock_words(stages: list[StagePlan]) -> str:
    """Return the range of clocks of stages, and at which they compute for longest."""
    clocks = sorted({i.frequency_mhz for stage in stages for i in stage.passes})
    longest = f", for longest at {_longest_mhz(stages)}" if len(clocks) > 1 else ""
    return f"at {' to '.join(map(str, dict.fromkeys((clocks[0], clocks[-1]))))} MHz{longest}"


def _slowed(slowest: StagePlan, others: list[StagePlan]) -> str:
    """Return why the others run at lower clocks, where all of them do."""
    if any(_longest_mhz([stage]) >= _highest_mhz(slowest) for stage in others):
        return ""
    return f", slowed down where {'they' if len(others) > 1 else 'it'} would only wait"


def _busy_s(stage: StagePlan) -> float:
    return sum(i.time_s for i in stage.passes)


def _highest_mhz(stage: StagePlan) -> int:
    return max(i.frequency_mhz for i in stage.passes)


def _mean_mhz(stage: StagePlan) -> float:
    """Mean clock over the time that the stage computes."""
    return sum(i.frequency_mhz * i.time_s for i in stage.passes) / _busy_s(stage)


def _longest_mhz(stages: list[StagePlan]) -> int:
    """Clock at which stages compute for longest; of those alike, the lowest."""
    times_s: dict[int, float] = {}
    for i in (i for stage in stages for i in stage.passes):
        times_s[i.frequency_mhz] = times_s.get(i.frequency_mhz, 0.0) + i.time_s
    return max(times_s, key=lambda mhz: (times_s[mhz], -mhz))
