"""Two plans beside each other: what each stage does with the time of an iteration, and where the difference comes from.

An iteration is, on every stage, the sum of its instructions and its waits; the energy of all GPUs is that of these. So
the differences of the parts add up to those of the iterations.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from kareus.errors import ConfigError
from kareus.gpu_model.gpu import Gpu
from kareus.graph.records import Direction
from kareus.plans.document import Plan, PlannedInstruction, StagePlan, Wait
from kareus.workload.config import Workload
from kareus.workload.model_flops import tokens_per_iteration

WAITS = ("waiting at the start", "waiting in between", "waiting at the end")
"""Parts of an iteration in which a stage runs nothing: the pipeline fills, is held up, drains."""
PARTS: tuple[str, ...] = (*(str(direction) for direction in Direction), *WAITS)
"""Parts of an iteration, in order."""
CHANGES = ("as before", "at another clock", "another way", "another way and at another clock")
"""What a plan may change about an instruction: nothing, its clock, how it runs (execution, SM counts, launches)."""
SAME_S = 1e-9
"""Gaps between instructions below this are none."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a part of an iteration takes on one stage."""

    time_s: float = 0.0
    energy_j: float = 0.0
    """Of all GPUs of the stage."""

    def __add__(self, other: "Share") -> "Share":
        """Both parts together."""
        return Share(self.time_s + other.time_s, self.energy_j + other.energy_j)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShares:
    """One stage of a plan, by parts of an iteration."""

    stage: int
    layers: int
    parts: Mapping[str, Share]
    """Those of `PARTS` that the stage has; their times add up to the iteration."""
    clocks_mhz: tuple[int, float, int]
    """Least clock, mean over the time of its instructions, largest clock."""
    clock_changes: int

    @property
    def working_s(self) -> float:
        """Time in which its GPUs run instructions."""
        return sum(share.time_s for name, share in self.parts.items() if name not in WAITS)

    @property
    def waiting_s(self) -> float:
        """Time in which they wait."""
        return sum(share.time_s for name, share in self.parts.items() if name in WAITS)

    @property
    def energy_j(self) -> float:
        """Energy of an iteration."""
        return sum(share.energy_j for share in self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Instructions about which the second plan changes the same."""

    count: int
    energy_j: float
    """What the second plan takes more, on all GPUs; negative where it takes less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two plans that train on as many tokens.

    Example:
        >>> import kareus
        >>> workload, name = kareus.resolve(["num_microbatches=2"])
        >>> pair = [kareus.plan(workload, name, method=method) for method in ("sequential", "kareus")]
        >>> both = compare((pair[0], workload), (pair[1], workload))
        >>> sum(both.difference(part).energy_j for part in both.parts) < 0
        True
    """

    plans: tuple[Plan, Plan]
    stages: tuple[tuple[StageShares, ...], tuple[StageShares, ...]]
    changed: Mapping[str, Changed] | None
    """Instructions by what the second plan changes; None where the plans have other instructions."""

    @property
    def busiest(self) -> tuple[StageShares, StageShares]:
        """Of each plan the stage that works longest, which sets its pace."""
        first, second = (max(stages, key=lambda stage: stage.working_s) for stages in self.stages)
        return first, second

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts of an iteration that either has, in order."""
        return tuple(part for part in PARTS if any(part in s.parts for stages in self.stages for s in stages))

    def share(self, number: int, part: str) -> Share:
        """Return the time of a part on the busiest stage of plan 0 or 1, and its energy on all GPUs."""
        time_s = self.busiest[number].parts.get(part, Share()).time_s
        return Share(time_s, sum(stage.parts.get(part, Share()).energy_j for stage in self.stages[number]))

    def difference(self, part: str) -> Share:
        """Return what the second plan takes more of a part than the first."""
        first, second = self.share(0, part), self.share(1, part)
        return Share(second.time_s - first.time_s, second.energy_j - first.energy_j)


def compare(first: tuple[Plan, Workload], second: tuple[Plan, Workload]) -> Comparison:
    """Return two plans beside each other, each given with the workload that it is for.

    Raises:
        ConfigError: they train different models, or an iteration of one trains on more tokens than one of the other.
    """
    if first[1].model != second[1].model:
        first_model, second_model = (workload.model.name for _, workload in (first, second))
        which = (
            f"{second_model}, not {first_model}"
            if first_model != second_model
            else f"another {first_model}: shapes differ"
        )
        raise ConfigError(f"{second[0].workload}: trains {which}; compare plans for one model.")
    tokens = [tokens_per_iteration(workload) for _, workload in (first, second)]
    if tokens[0] != tokens[1]:
        raise ConfigError(
            f"{second[0].workload}: an iteration trains on {tokens[1]:,} tokens, one of {first[0].workload} on "
            f"{tokens[0]:,}; compare plans with equal batches (num_microbatches, microbatch_size, parallelism.dp)."
        )
    (before, of_before), (after, of_after) = first, second
    return Comparison(
        plans=(before, after),
        stages=(stage_shares(before, of_before.gpu), stage_shares(after, of_after.gpu)),
        changed=_changed(before, after),
    )


def stage_shares(plan: Plan, gpu: Gpu) -> tuple[StageShares, ...]:
    """Return the stages of a plan by parts of an iteration.

    Args:
        plan: the plan.
        gpu: that runs it, whose waiting takes power at the clock at which a stage waits.
    """
    gpus, end_s = plan.gpus // len(plan.stages), plan.prediction.time_s
    return tuple(_stage(stage, gpus, end_s, gpu) for stage in plan.stages)


def _stage(stage: StagePlan, gpus: int, end_s: float, gpu: Gpu) -> StageShares:
    shares: dict[str, Share] = defaultdict(Share)
    for i in stage.instructions:
        shares[str(i.direction)] += Share(i.time_s, gpus * i.energy_j)
    for wait in stage.waits(end_s, gpu):
        shares[_wait(wait, end_s)] += Share(wait.to_s - wait.from_s, gpus * wait.energy_j)
    clocks = [i.frequency_mhz for i in stage.instructions]
    working_s = sum(i.time_s for i in stage.instructions)
    mean_mhz = sum(i.frequency_mhz * i.time_s for i in stage.instructions) / working_s
    return StageShares(
        stage=stage.stage,
        layers=stage.layers,
        parts={part: shares[part] for part in PARTS if part in shares and shares[part].time_s > SAME_S},
        clocks_mhz=(min(clocks), mean_mhz, max(clocks)),
        clock_changes=stage.clock_changes,
    )


def _wait(wait: Wait, end_s: float) -> str:
    """Return which part a wait is."""
    start, between, end = WAITS
    return start if wait.from_s <= 0 else end if wait.to_s >= end_s else between


def _changed(before: Plan, after: Plan) -> Mapping[str, Changed] | None:
    """Return instructions by what `after` changes, where both plans have the same ones."""
    firsts, seconds = dict(before.keyed), dict(after.keyed)
    same_layers = [stage.layers for stage in before.stages] == [stage.layers for stage in after.stages]
    if before.workload_hash != after.workload_hash or firsts.keys() != seconds.keys() or not same_layers:
        return None
    gpus = before.gpus // len(before.stages)
    differences: dict[str, list[float]] = defaultdict(list)
    for key, first in firsts.items():
        differences[_change(first, seconds[key])].append(gpus * (seconds[key].energy_j - first.energy_j))
    return {
        change: Changed(count=len(differences[change]), energy_j=sum(differences[change]))
        for change in CHANGES
        if change in differences
    }


def _change(first: PlannedInstruction, second: PlannedInstruction) -> str:
    is_same_clock = first.frequency_mhz == second.frequency_mhz
    is_same_way = (first.execution, first.partitions) == (second.execution, second.partitions)
    return CHANGES[2 * (not is_same_way) + (not is_same_clock)]
