"""Remedies for a workload that does not fit: the GPU that is too full, what fills it, and the cheapest changes.

A change is one choice of the layout: what is recomputed, what replicas share out, how the batch is cut, one more step
of a degree of parallelism; or one option of the training, which Kareus' engine has none of. The batch of an iteration
stays what it is, and so does the number of GPUs where a degree can take its GPUs from the replicas. Where no change is
enough, two or three are put together. What is only tight stands behind what fits, and never in its place.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from kareus.errors import ConfigError
from kareus.graph.number_formats import BF16_BYTES
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.training_options import RecomputedModule, StateFormat
from kareus.pipeline.config import PipelineSchedule
from kareus.prediction.workload_prediction import Prediction, predict
from kareus.workload.compose import ENGINE
from kareus.workload.config import Workload, run_by
from kareus.workload.divisibility import divisors
from kareus.workload.memory import MemoryEstimate, MemoryFit, estimate_memory, fit_of
from kareus.workload.resolve import checked_but_for_memory

MOST_CHANGES = 3
"""Changes that are put together."""
MOST_PREDICTED, LEAST_PREDICTED = 32, 4
"""Changes whose cost is predicted, at about 0.1 s each."""
MOST_INSTRUCTIONS = 10_000
"""Instructions of all of them, from which on no more than the least number is predicted."""
MOST_SHOWN = 4
LARGEST_PARTS = 4
TIMES = (2, 4, 8, 16)
"""So much more of a degree is tried where it takes more GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change that makes a workload fit, and what it costs."""

    overrides: tuple[str, ...]
    """What to add to those of the workload."""
    steps: int
    """Changes that it is put together from."""
    gpus: int
    """GPUs of the job with it."""
    memory: MemoryEstimate
    fit: MemoryFit
    """Never refused."""
    time_percent: float
    """Time of an iteration, over that of the workload if it fitted, less 100 %."""
    energy_percent: float
    """The same of energy, of all GPUs."""

    @property
    def is_tight(self) -> bool:
        """Whether it may fit or not, by less than the estimate may be off."""
        return self.fit is MemoryFit.TIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A workload that does not fit its GPU."""

    workload: Workload
    memory: MemoryEstimate
    remedies: tuple[Remedy, ...]
    """Those that fit, then those that are tight, each by rising number of GPUs and time. None takes more of GPUs,
    changes, time or energy than another that fits as well, and no less of the others."""

    @property
    def ranks(self) -> range:
        """Ranks of the stage that is too full; all of them need the same."""
        first = self.workload.parallelism.rank(self.memory.stage)
        return range(first, first + self.workload.parallelism.gpus_per_stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changed:
    """A workload after some changes."""

    overrides: tuple[str, ...]
    steps: int
    workload: Workload
    memory: MemoryEstimate
    fit: MemoryFit

    @property
    def likely_cost(self) -> tuple[float, ...]:
        """What fits, few GPUs, few changes and little memory left unused come first."""
        gpus, is_tight = self.workload.parallelism.gpus, self.fit is MemoryFit.TIGHT
        return is_tight, gpus, self.steps, -self.memory.total_gib

    @property
    def instructions(self) -> int:
        """Instructions of a pipeline, which the time of a prediction grows with."""
        workload = self.workload
        return 2 * workload.parallelism.pp * workload.chunks * workload.num_microbatches


def why_not(composed: Workload) -> Misfit:
    """Return why a workload does not fit, and what would help.

    Args:
        composed: as its configuration gives it; its layers need not be split.

    Raises:
        RefusedWorkloadError: it cannot run for another reason than its memory.
    """
    workload = checked_but_for_memory(composed)
    usual = predict(workload)
    cheapest: list[Remedy] = []
    for misfitting in _fitting(composed):
        remedy = _priced(misfitting, usual)
        if not any(_beats(other, remedy) for other in cheapest):
            cheapest = [*(other for other in cheapest if not _beats(remedy, other)), remedy]
    return Misfit(workload=workload, memory=estimate_memory(workload), remedies=_shown(cheapest))


def _shown(remedies: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """Return of remedies those of few GPUs and few changes, in the order in which they are shown.

    Those that fit come first; one place is left for the simplest that is tight, and more where others leave them.
    """
    simplest = sorted(remedies, key=lambda remedy: (remedy.gpus, remedy.steps, remedy.time_percent))
    tight = [remedy for remedy in simplest if remedy.is_tight]
    fitting = [remedy for remedy in simplest if not remedy.is_tight][: MOST_SHOWN - bool(tight)]
    shown = (*fitting, *tight[: MOST_SHOWN - len(fitting)])
    return tuple(sorted(shown, key=lambda remedy: (remedy.is_tight, remedy.gpus, remedy.time_percent)))


def _priced(changed: _Changed, usual: Prediction) -> Remedy:
    """Return what a change costs over a prediction of the workload without it."""
    predicted = predict(changed.workload)
    return Remedy(
        overrides=changed.overrides,
        steps=changed.steps,
        gpus=changed.workload.parallelism.gpus,
        memory=changed.memory,
        fit=changed.fit,
        time_percent=100 * (predicted.time_s / usual.time_s - 1),
        energy_percent=100 * (predicted.energy_j / usual.energy_j - 1),
    )


def _beats(other: Remedy, remedy: Remedy) -> bool:
    """Whether another fits as well and costs no more; one that trains otherwise beats none that does not."""
    if not set(_options_of(other.overrides)) <= set(_options_of(remedy.overrides)):
        return False
    costs = [(r.is_tight, r.gpus, r.steps, r.time_percent, r.energy_percent) for r in (other, remedy)]
    return all(a <= b for a, b in zip(*costs, strict=True))


def _options_of(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the options of the training among overrides."""
    return tuple(text for text in overrides if text.startswith("training."))


def _fitting(composed: Workload) -> list[_Changed]:
    """Return changes that make a workload fit, or nearly so: those that are likely to cost least.

    As few changes as can be, and one more: two may cost less than one. What fits is not changed further.
    """
    level: dict[tuple[str, ...], Workload] = {(): composed}
    fits: dict[tuple[str, ...], _Changed] = {}
    steps = last = 0
    while level and steps < (last or MOST_CHANGES):
        steps += 1
        wider = {
            _last_of_each_key((*overrides, *more)): changed
            for overrides, workload in level.items()
            for more, changed in changes(workload)
        }
        level = {}
        for overrides, changed in wider.items():
            try:
                workload = checked_but_for_memory(changed)
            except ConfigError:
                continue
            memory = estimate_memory(workload)
            fit = fit_of(workload, memory)
            if fit is not MemoryFit.FITS:
                level[overrides] = changed
            if fit is not MemoryFit.REFUSED:
                near = _Changed(overrides=overrides, steps=steps, workload=workload, memory=memory, fit=fit)
                fits.setdefault(overrides, near)
        if not last and any(near.fit is MemoryFit.FITS for near in fits.values()):
            last = min(steps + 1, MOST_CHANGES)
    return _likely(composed.parallelism.gpus, [near for near in fits.values() if not _idle_options(near, fits)])


def _idle_options(near: _Changed, fits: Mapping[tuple[str, ...], _Changed]) -> bool:
    """Whether a change has options of the training without which it fits as well."""
    options = _options_of(near.overrides)
    without = fits.get(tuple(text for text in near.overrides if text not in options))
    return bool(options) and without is not None and without.fit in (near.fit, MemoryFit.FITS)


def _likely(gpus: int, fits: Sequence[_Changed]) -> list[_Changed]:
    """Return the changes whose cost is predicted: by turns of each recomputation those that are likely to cost least.

    Those with an option of the training have turns of their own. Where more GPUs help, the fewest that do.
    """
    counts = {near.workload.parallelism.gpus for near in fits if near.fit is MemoryFit.FITS}
    fewest = min((count for count in counts if count > gpus), default=gpus)
    by_kind: dict[tuple[Any, ...], list[_Changed]] = {}
    for fit in fits:
        by_kind.setdefault(_options_of(fit.overrides) or (fit.workload.recomputation,), []).append(fit)
    queues = [sorted(of_kind, key=lambda fit: fit.likely_cost) for of_kind in by_kind.values()]
    turns = [fit for turn in zip_longest(*queues) for fit in turn if fit is not None]
    likely: list[_Changed] = []
    instructions = 0
    for fit in (fit for fit in turns if fit.workload.parallelism.gpus <= fewest):
        instructions += fit.instructions
        if len(likely) == MOST_PREDICTED or (len(likely) >= LEAST_PREDICTED and instructions > MOST_INSTRUCTIONS):
            break
        likely.append(fit)
    return likely


def _last_of_each_key(overrides: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({text.partition("=")[0]: text for text in overrides}.values()))


def changes(composed: Workload) -> Iterator[tuple[tuple[str, ...], Workload]]:
    """Yield the overrides of one more choice that saves memory, and the workload with it, its layers not split yet."""
    for change in CHANGES:
        for overrides, values in change(composed):
            try:
                changed = replace(composed, **values)
                yield overrides, run_by(changed, changed.software)
            except ConfigError:  # beyond a range
                continue


LayoutChange = tuple[tuple[str, ...], dict[str, Any]]


def _sharded(workload: Workload) -> Iterator[LayoutChange]:
    order = (Sharding.NONE, Sharding.OPTIMIZER, Sharding.FULL)
    layout = workload.parallelism
    place = order.index(layout.sharding) if layout.sharding in order else 1
    if layout.dp * layout.cp > 1:
        for sharding in order[place + 1 :]:
            yield (f"parallelism.sharding={sharding}",), {"parallelism": replace(layout, sharding=sharding)}


def _recomputed(workload: Workload) -> Iterator[LayoutChange]:
    order = (Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL)
    place = order.index(workload.recomputation) if workload.recomputation in order else 1
    for recomputation in order[place + 1 :]:
        yield (f"recomputation={recomputation}",), {"recomputation": recomputation}


def _cut_smaller(workload: Workload) -> Iterator[LayoutChange]:
    if workload.microbatch_size % 2 == 0:
        size, number = workload.microbatch_size // 2, 2 * workload.num_microbatches
        yield _batch_words(size, number), {"microbatch_size": size, "num_microbatches": number}


def _batch_words(size: int, number: int) -> tuple[str, str]:
    return f"microbatch_size={size}", f"num_microbatches={number}"


def _tokens_shared(workload: Workload) -> Iterator[LayoutChange]:
    layout = workload.parallelism
    if layout.tp > 1 and not layout.sequence_parallel:
        yield ("parallelism.sequence_parallel=true",), {"parallelism": replace(layout, sequence_parallel=True)}


def _scheduled_plainly(workload: Workload) -> Iterator[LayoutChange]:
    plain = PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
    if workload.pipeline.schedule is not plain:
        one_chunk = ("pipeline.chunks=1",) if workload.chunks > 1 else ()
        yield (f"pipeline={plain}", *one_chunk), {"pipeline": replace(workload.pipeline, schedule=plain, chunks=1)}


def _experts_shared_out(workload: Workload) -> Iterator[LayoutChange]:
    """Yield more expert parallelism, which takes its GPUs from those of a stage."""
    layout, experts = workload.parallelism, workload.model.experts
    if experts is None:
        return
    for ep in divisors(layout.gpus_per_stage // layout.etp):
        if ep > layout.ep and experts.count % ep == 0:
            yield (f"parallelism.ep={ep}",), {"parallelism": replace(layout, ep=ep)}


def _more_of(degree: str) -> Callable[[Workload], Iterator[LayoutChange]]:
    """Return how a workload has more of a degree of parallelism: out of its replicas, else with more GPUs."""

    def choices(workload: Workload) -> Iterator[LayoutChange]:
        layout = workload.parallelism
        now, batch = getattr(layout, degree), layout.dp * workload.num_microbatches
        shared = now * layout.dp
        steps = [(n, shared // n) for n in range(now + 1, shared + 1) if shared % n == 0]
        if not steps:  # there are no replicas to take GPUs from
            further = [now + 1] if degree == "pp" else []
            steps = [(n, layout.dp) for n in dict.fromkeys([*further, *(now * times for times in TIMES)])]
        for more, dp in steps:
            if batch % dp:
                continue
            changed: Parallelism = replace(layout, **{degree: more, "dp": dp, "layers_per_stage": None})
            overrides = [f"parallelism.{degree}={more}"]
            if dp != layout.dp:
                overrides += [f"parallelism.dp={dp}", f"num_microbatches={batch // dp}"]
            if layout.layers_per_stage is not None:
                overrides += ["parallelism.layers_per_stage=null"]
            yield tuple(overrides), {"parallelism": changed, "num_microbatches": batch // dp}

    return choices


OPTIONS: Mapping[str, Any] = {
    "loss_chunks": 8,
    "moments": StateFormat.EIGHT_BIT,
    "gradients": StateFormat.BF16,
    "offload_optimizer": 1.0,
    "recompute_modules": (RecomputedModule.MLP,),
}
"""Options that save memory, each with the value that is tried."""


def _option(workload: Workload) -> Iterator[LayoutChange]:
    """Yield an option of the training, where there is none yet."""
    options, software = workload.training, workload.software
    if software.name == ENGINE or options.changed:
        return
    for name, value in OPTIONS.items():
        if name == "gradients" and options.gradient_bytes(software.gradient_bytes) == BF16_BYTES:
            continue
        plain = f"[{','.join(value)}]" if isinstance(value, tuple) else value
        yield (f"training.{name}={plain}",), {"training": replace(options, **{name: value})}


CHANGES: tuple[Callable[[Workload], Iterator[LayoutChange]], ...] = (
    _sharded,
    _tokens_shared,
    _experts_shared_out,
    _recomputed,
    _cut_smaller,
    _scheduled_plainly,
    _option,
    *map(_more_of, ("pp", "tp", "cp")),
)


def parts_words(memory: MemoryEstimate, most: int = LARGEST_PARTS) -> str:
    """Return the largest parts of an estimate in words, largest first."""
    parts = sorted(memory.parts_gib.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {gib:.1f}" for name, gib in parts[:most])


def misfit_words(misfit: Misfit) -> str:
    """Return in words the GPUs that are too full, and what fills them."""
    memory = misfit.memory
    ranks = f"rank {misfit.ranks[0]}" if len(misfit.ranks) == 1 else f"ranks {misfit.ranks[0]} to {misfit.ranks[-1]}"
    return (
        f"stage {memory.stage} ({ranks}) needs {memory.total_gib:.1f} of {misfit.workload.gpu.memory_gib:.1f} GiB: "
        f"{parts_words(memory)}"
    )


def cost_words(remedy: Remedy, misfit: Misfit) -> str:
    """Return what a remedy leaves and costs."""
    gpus = misfit.workload.parallelism.gpus
    more = f", {remedy.gpus} GPUs instead of {gpus}" if remedy.gpus != gpus else ""
    tight = " (may fit, try it first)" if remedy.is_tight else ""
    return (
        f"{remedy.memory.total_gib:.1f} GiB{tight}, time {remedy.time_percent:+z.1f} %, energy "
        f"{remedy.energy_percent:+z.1f} %{more}"
    )


def misfit_lines(name: str, misfit: Misfit) -> Iterator[str]:
    """Yield why a workload does not fit and what it costs to make it fit, for a terminal."""
    yield f"{name}: {misfit_words(misfit)}"
    if not misfit.remedies or misfit.remedies[0].is_tight:
        yield f"no {MOST_CHANGES} changes of the layout make it fit{' for sure' if misfit.remedies else ''}"
    if not misfit.remedies:
        return
    cheapest = "cheapest changes that " + ("may do so" if misfit.remedies[0].is_tight else "make it fit")
    yield f"{cheapest}, with their predicted cost against the same layout if it did fit:"
    width = max(len(" ".join(remedy.overrides)) for remedy in misfit.remedies)
    for remedy in misfit.remedies:
        yield f"  {' '.join(remedy.overrides):<{width}}  {cost_words(remedy, misfit)}"
