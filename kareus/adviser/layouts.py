"""Layouts: the ways to run one training on so many GPUs, and the constraints that narrow them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import TypeVar

from kareus.artifacts.records import ADDED
from kareus.gpu_model.coefficients import LaunchesAhead
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Parallelism, Sharding
from kareus.pipeline.config import CHUNKS_OF_V, PipelineSchedule
from kareus.software.record import driven, spans_nodes
from kareus.workload.config import Workload
from kareus.workload.divisibility import divisors
from kareus.workload.propose import expert_degrees
from kareus.workload.split import blocks_words

_Value = TypeVar("_Value")

MOST_MICROBATCH = 16
"""Largest microbatch that is tried unless a constraint names others."""
MOST_TENSOR = 16
"""Most GPUs of tensor parallelism that are tried unless a constraint names others: parts of a product become small."""
MOST_CHUNKS = 8
"""Most chunks of a stage that are tried unless a constraint names others."""
RECOMPUTATIONS = (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL)
"""Recomputations that are tried unless a constraint names others; `stage` needs more memory than `full` and no less
time."""
SHARDINGS = (Sharding.NONE, Sharding.OPTIMIZER, Sharding.FULL)
"""Shardings that are tried unless a constraint names others."""
SCHEDULES = (
    PipelineSchedule.ONE_FORWARD_ONE_BACKWARD,
    PipelineSchedule.INTERLEAVED,
    PipelineSchedule.ZERO_BUBBLE_H1,
)
"""Schedules that are tried unless a constraint names others, of experts the first two; GPipe has the bubble of 1F1B and
needs more memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to run a training: how it is laid out over GPUs, and how its batch is cut."""

    dp: int
    pp: int
    tp: int
    cp: int
    schedule: PipelineSchedule
    chunks: int
    microbatch_size: int
    num_microbatches: int
    recomputation: Recomputation
    sharding: Sharding
    sequence_parallel: bool
    ep: int = field(default=1, metadata=ADDED)
    shards: int | None = field(default=None, metadata=ADDED)
    """Replicas that share out model states among themselves; all of them if None."""
    layers_per_stage: tuple[int, ...] | None = field(default=None, metadata=ADDED)
    """Blocks on each stage, or on each chunk, where they were searched; as usual if None."""

    @property
    def gpus(self) -> int:
        """All GPUs of the job."""
        return self.dp * self.pp * self.tp * self.cp

    @property
    def sequences(self) -> int:
        """Sequences of an iteration."""
        return self.dp * self.microbatch_size * self.num_microbatches

    @property
    def degrees_words(self) -> str:
        """The degrees of parallelism above 1 in words, such as `tp 4, pp 2`."""
        degrees = (("tp", self.tp), ("cp", self.cp), ("pp", self.pp), ("dp", self.dp), ("ep", self.ep))
        return ", ".join(f"{name} {degree}" for name, degree in degrees if degree > 1) or "one GPU"

    @property
    def words(self) -> str:
        """The layout in words, those of its parts left out that do nothing."""
        parts = [
            self.degrees_words,
            *(["sequence parallel"] if self.sequence_parallel else []),
            *([self.schedule_words] if self.pp > 1 else []),
            *([f"blocks {blocks_words(self.layers_per_stage)}"] if self.layers_per_stage else []),
            f"microbatches of {self.microbatch_size}",
            f"recomputation {self.recomputation}",
            *([self._sharding_words] if self.sharding is not Sharding.NONE else []),
        ]
        return ", ".join(parts)

    @property
    def short_words(self) -> str:
        """The degrees, and whether weights are shared out, which a trainer does by other code (FSDP)."""
        return ", ".join([self.degrees_words, *([self._sharding_words] if self.sharding is Sharding.FULL else [])])

    @property
    def _sharding_words(self) -> str:
        return f"sharding {self.sharding}" + (f" over {self.shards}" if self.shards else "")

    @property
    def schedule_words(self) -> str:
        """The pipeline schedule, with its chunks."""
        return f"{self.schedule} x{self.chunks}" if self.chunks > 1 else str(self.schedule)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Hydra overrides that give this layout to a workload."""
        chunks = [f"pipeline.chunks={self.chunks}"] if self.chunks > 1 else []
        experts = [f"parallelism.ep={self.ep}"] if self.ep > 1 else []
        return (
            f"parallelism.dp={self.dp}",
            f"parallelism.pp={self.pp}",
            f"parallelism.tp={self.tp}",
            f"parallelism.cp={self.cp}",
            *experts,
            f"parallelism.sharding={self.sharding}",
            *([f"parallelism.shards={self.shards}"] if self.shards else []),
            f"parallelism.sequence_parallel={str(self.sequence_parallel).lower()}",
            f"pipeline={self.schedule}",
            *chunks,
            *([f"parallelism.layers_per_stage={list(self.layers_per_stage)}"] if self.layers_per_stage else []),
            f"microbatch_size={self.microbatch_size}",
            f"num_microbatches={self.num_microbatches}",
            f"recomputation={self.recomputation}",
        )

    def workload(self, base: Workload) -> Workload:
        """Return `base` in this layout; its layers are not split over stages yet, unless it says how.

        Raises:
            ConfigError: a number is beyond its range.
        """
        return replace(
            base,
            gpu=base.gpu if _is_of(base, self.gpus, self.pp) else driven(base.gpu, base.software, self.gpus, self.pp),
            parallelism=Parallelism(
                dp=self.dp,
                pp=self.pp,
                tp=self.tp,
                cp=self.cp,
                layers_per_stage=self.layers_per_stage,
                sharding=self.sharding,
                shards=self.shards,
                sequence_parallel=self.sequence_parallel,
                ep=self.ep,
            ),
            pipeline=replace(base.pipeline, schedule=self.schedule, chunks=self.chunks),
            microbatch_size=self.microbatch_size,
            num_microbatches=self.num_microbatches,
            recomputation=self.recomputation,
        )


def layout_of(workload: Workload) -> Layout:
    """Return the layout of a workload, its blocks on stages as usual."""
    degrees = workload.parallelism
    return Layout(
        dp=degrees.dp,
        pp=degrees.pp,
        tp=degrees.tp,
        cp=degrees.cp,
        ep=degrees.ep,
        schedule=workload.pipeline.schedule,
        chunks=workload.chunks,
        microbatch_size=workload.microbatch_size,
        num_microbatches=workload.num_microbatches,
        recomputation=workload.recomputation,
        sharding=degrees.sharding,
        shards=degrees.shards,
        sequence_parallel=degrees.sequence_parallel,
    )


def _is_of(base: Workload, gpus: int, pp: int) -> bool:
    """Whether a workload's GPU is one of such a job: driving it again checks all its numbers for nothing."""
    if base.software.launches_ahead is LaunchesAhead.STEP:
        return True
    host_rank_s = base.software.host_rank_s if spans_nodes(base.gpu, gpus, pp) else 0.0
    return base.gpu.job_gpus == gpus and base.gpu.coefficients.host_rank_s == host_rank_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Values that parts of a layout may have; an empty tuple leaves a part open."""

    dp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    tp: tuple[int, ...] = ()
    cp: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()
    microbatch_size: tuple[int, ...] = ()
    recomputation: tuple[Recomputation, ...] = ()
    sharding: tuple[Sharding, ...] = ()
    sequence_parallel: tuple[bool, ...] = ()
    ep: tuple[int, ...] = ()
    shards: tuple[int, ...] = ()
    schedule: tuple[PipelineSchedule, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """Those that are given as they are typed, such as `pp=2,4`."""
        given = ((each.name, getattr(self, each.name)) for each in fields(self))
        return tuple(f"{name}={','.join(str(value).lower() for value in values)}" for name, values in given if values)

    def allow(self, layout: Layout) -> bool:
        """Whether a layout has the allowed values."""
        values = {field.name: getattr(layout, field.name) for field in fields(self)}
        values["shards"] = layout.shards or layout.dp
        return all(value in (getattr(self, name) or (value,)) for name, value in values.items())


def constraints_of(layout: Layout) -> Constraints:
    """Return the constraints that leave one layout, whatever blocks are on its stages."""
    values = {each.name: (getattr(layout, each.name),) for each in fields(Constraints)}
    shards = () if layout.sharding is Sharding.NONE else (layout.shards or layout.dp,)
    return replace(Constraints(**values), shards=shards)


def layouts_of(base: Workload, gpus: int, global_batch: int, constraints: Constraints) -> Iterator[Layout]:
    """Yield every layout of a training on `gpus` GPUs, whether it can run or not.

    Degrees multiply to the GPUs; microbatches, their number and the replicas to the batch. What would do nothing is
    not yielded twice: sharding without replicas, sequence parallelism without tensor parallelism, schedules without a
    pipeline.

    Args:
        base: model and GPU.
        gpus: of the whole job.
        global_batch: sequences of an iteration.
        constraints: allowed values.
    """
    linked = base.gpu.linked_gpus(gpus)
    for tp in _allowed(constraints.tp, [d for d in divisors(gpus) if d <= min(linked, MOST_TENSOR)]):
        for cp in _allowed(constraints.cp, [d for d in divisors(gpus) if tp * d <= linked]):
            for pp in _allowed(constraints.pp, [d for d in divisors(gpus) if d <= base.model.num_layers]):
                dp, rest = divmod(gpus, tp * cp * pp)
                if rest or not dp or global_batch % dp or (constraints.dp and dp not in constraints.dp):
                    continue
                yield from _of_degrees(base, (dp, pp, tp, cp), global_batch // dp, constraints)


def _of_degrees(
    base: Workload, degrees: tuple[int, int, int, int], sequences: int, constraints: Constraints
) -> Iterator[Layout]:
    """Yield the layouts of these dp, pp, tp and cp, whose replicas have `sequences` sequences each."""
    dp, pp, tp, cp = degrees
    usual_switches = (True,) if base.model.experts else (True, False)
    allowed = _allowed(constraints.sharding, SHARDINGS) if dp > 1 else (Sharding.NONE,)
    shardings = [(kind, shards) for kind in allowed for shards in _sharing(base, degrees, kind, constraints.shards)]
    switches = _allowed(constraints.sequence_parallel, usual_switches) if tp > 1 else (False,)
    over_experts = _allowed(constraints.ep, expert_degrees(base, dp * tp * cp))
    sizes = _allowed(constraints.microbatch_size, [d for d in divisors(sequences) if d <= MOST_MICROBATCH])
    pipelines = list(_pipelines(base, pp, constraints))
    for size in sizes:
        if sequences % size:
            continue
        for recomputation in _allowed(constraints.recomputation, RECOMPUTATIONS):
            for schedule, chunks in pipelines:
                for sharding, shards in shardings:
                    for shares_tokens, ep in product(switches, over_experts):
                        yield Layout(
                            dp=dp,
                            pp=pp,
                            tp=tp,
                            cp=cp,
                            schedule=schedule,
                            chunks=chunks,
                            microbatch_size=size,
                            num_microbatches=sequences // size,
                            recomputation=recomputation,
                            sharding=sharding,
                            shards=shards,
                            sequence_parallel=shares_tokens,
                            ep=ep,
                        )


def _sharing(
    base: Workload, degrees: tuple[int, int, int, int], sharding: Sharding, allowed: Sequence[int]
) -> Iterator[int | None]:
    """Yield among how many replicas model states are shared out: all, and whole weights also within a node (HSDP).

    Where numbers of replicas are asked for these alone are, each by one name: None is all replicas.
    """
    dp, _, tp, cp = degrees
    if allowed:
        fitting = [] if sharding is Sharding.NONE else [n for n in allowed if 1 < n <= dp and dp % n == 0]
        yield from (None if n == dp else n for n in fitting)
        return
    yield None
    of_node = base.gpu.gpus_per_node // (tp * cp)
    if sharding is Sharding.FULL and 1 < of_node < dp and dp % of_node == 0:
        yield of_node


def _pipelines(base: Workload, pp: int, constraints: Constraints) -> Iterator[tuple[PipelineSchedule, int]]:
    """Yield pipeline schedules of `pp` stages with their chunks."""
    allowed = _allowed(constraints.schedule, SCHEDULES[:2] if base.model.experts else SCHEDULES)
    if pp == 1:
        if not constraints.chunks or 1 in constraints.chunks:
            yield PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, 1
        return
    for schedule in allowed:
        if schedule.folds:
            enough = base.model.num_layers >= CHUNKS_OF_V * pp
            if enough and CHUNKS_OF_V in (constraints.chunks or (CHUNKS_OF_V,)):
                yield schedule, CHUNKS_OF_V
            continue
        if schedule is not PipelineSchedule.INTERLEAVED:
            if not constraints.chunks or 1 in constraints.chunks:
                yield schedule, 1
            continue
        usual = [c for c in divisors(base.model.num_layers) if 1 < c <= MOST_CHUNKS and c * pp <= base.model.num_layers]
        yield from ((schedule, chunks) for chunks in _allowed(constraints.chunks, usual) if chunks > 1)


def _allowed(given: Sequence[_Value], usual: Sequence[_Value]) -> Sequence[_Value]:
    return given or usual


def counted(reasons: Mapping[str, int]) -> str:
    """Return counts by reason in words, the most frequent first."""
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1]))
