"""How GPUs best exchange weights and tokens: SMs of each kind of collective, and how far ahead, searched.

The GPU model prices the trainer's own execution at the maximum clock; at lower clocks the same settings are best. Those
of one kind change neither time nor energy of another, so that they are searched one after the other. A trainer whose
groups cannot be limited each gets one number of SMs for all, by variables of NCCL. Dispatchers of tokens to experts
that are no collectives of NCCL (DeepEP, HybridEP) have a number of SMs of their own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from kareus.errors import RefusedWorkloadError
from kareus.gpu_model.model import KnownSteps
from kareus.model.parallelism import EXCHANGES, NVLS_CHOICE, FsdpSettings
from kareus.plans.units import compared, less
from kareus.prediction.workload_prediction import Prediction, predict
from kareus.profile.sharded import NVLS_SMS
from kareus.schedule.config import sm_allocations
from kareus.software.record import Dispatcher
from kareus.software.trainers import trainer_of
from kareus.testbed.config import NCCL_SM_COUNT
from kareus.workload.combinations import check_combinations
from kareus.workload.config import Workload, run_by, with_sm_count
from kareus.workload.memory import MemoryFit, fit_of

SM_COUNT_KEY, SETTINGS_KEY = "testbed.default_collective_sm_count", "parallelism.fsdp"
"""What plans with another number of SMs for all collectives, and what with settings of each kind."""
DISPATCH_KEY = "software.dispatch_sms"
"""What plans with another number of SMs for exchanges of tokens between experts."""
DISPATCH_SMS = range(4, 33, 4)
"""Numbers that are searched for these: DeepEP takes even ones, and 32 is what users of HybridEP set by hand."""
MOST_AHEAD = 3
"""Blocks that the search gathers ahead, at most."""
WORTH = 1e-4
"""Share of time times energy that a setting has to save: each costs memory or a communicator."""
EVIDENCE = "by a law that was measured within a node of A100s, so time both"
"""How far to trust what a number of SMs saves."""


def with_fsdp(workload: Workload, **settings: Any) -> Workload:
    """Return the workload with other settings of what replicas exchange."""
    layout = workload.parallelism
    return replace(workload, parallelism=replace(layout, fsdp=replace(layout.fsdp, **settings)))


def with_best_exchanges(workload: Workload) -> Workload:
    """Return the workload with the best settings that its trainer can have; itself where none is better.

    A setting counts if it takes neither more time nor more energy than what was best before; of these the one with the
    least product of both. NVLS is never chosen, since it is not measured, and stays where it is given.
    """
    return _best(workload, _searched(workload))


def dispatches(workload: Workload) -> bool:
    """Return whether tokens get to their experts by a dispatcher that has SMs of its own."""
    is_flex = workload.software.dispatcher is Dispatcher.FLEX
    return is_flex and workload.model.experts is not None and workload.parallelism.ep > 1


def with_dispatch_sms(workload: Workload, sm_count: int | None) -> Workload:
    """Return the workload with exchanges of tokens on so many SMs; None: on those of its dispatcher."""
    return run_by(workload, replace(workload.software, dispatch_sms=sm_count))


def with_best_dispatch(workload: Workload) -> Workload:
    """Return the workload with the best number of SMs for exchanges of tokens, as `with_best_exchanges` chooses."""
    counts = [n for n in DISPATCH_SMS if n < workload.gpu.sm_count] if dispatches(workload) else []
    return _best(workload, [[partial(with_dispatch_sms, sm_count=count) for count in counts]])


def _best(workload: Workload, searched: Iterable[Sequence[Callable[[Workload], Workload]]]) -> Workload:
    """Return the workload with the best of the changes of each kind, one kind after the other."""
    steps: KnownSteps = {}
    best, cost = workload, predict(workload, steps=steps)
    for changes in searched:
        for other in [change(best) for change in changes]:
            tried = _predicted(other, steps)
            if tried and tried.time_s <= cost.time_s and tried.energy_j <= cost.energy_j:
                is_worth = tried.time_s * tried.energy_j < (1 - WORTH) * cost.time_s * cost.energy_j
                best, cost = (other, tried) if is_worth else (best, cost)
    return best


def shares_out(workload: Workload) -> bool:
    """Return whether replicas share out gradients in one stage, so that how they exchange them is a choice."""
    return workload.parallelism.pp == 1 and workload.parallelism.shards_gradients


def _searched(workload: Workload) -> Iterator[list[Callable[[Workload], Workload]]]:
    """Yield the changes of each kind of setting."""
    layout = workload.parallelism
    if not shares_out(workload):
        return
    counts = [n for n in sm_allocations(layout.dp, workload.space) if n < workload.gpu.sm_count]
    if not (trainer_of(workload.software.name).limits_groups and layout.shards_weights):
        yield [partial(with_sm_count, sm_count=count) for count in counts]
        return
    for name in EXCHANGES:
        if not ((name == "gather" and layout.fsdp.nvls) or (name == "copies" and layout.copies == 1)):
            yield [_setting(f"{name}_sms", count) for count in counts]
    yield [_setting("prefetch", depth) for depth in range(2, MOST_AHEAD + 1)]


def _setting(name: str, value: int) -> Callable[[Workload], Workload]:
    return lambda workload: with_fsdp(workload, **{name: value})


def _predicted(workload: Workload, steps: KnownSteps) -> Prediction | None:
    """Return what a workload takes; None where its settings cannot be had, or do not fit into memory."""
    try:
        check_combinations(workload)
    except RefusedWorkloadError:
        return None
    prediction = predict(workload, steps=steps)
    return None if fit_of(workload, prediction.memory) is MemoryFit.REFUSED else prediction


def exchange_overrides(workload: Workload, sm_count: int = NCCL_SM_COUNT) -> list[str]:
    """Return the overrides that give its settings to a workload with NCCL's collectives on `sm_count` SMs.

    Example:
        >>> import kareus
        >>> from kareus.plans.exchanges import exchange_overrides, with_sm_count
        >>> exchange_overrides(with_sm_count(*kareus.resolve(), 12))
        ['testbed.default_collective_sm_count=12']
    """
    fsdp, usual = workload.parallelism.fsdp, FsdpSettings()
    changed = {f.name: getattr(fsdp, f.name) for f in fields(fsdp) if getattr(fsdp, f.name) != getattr(usual, f.name)}
    count, of_tokens = workload.testbed.default_collective_sm_count, workload.software.dispatch_sms
    overrides = [] if of_tokens is None else [f"{DISPATCH_KEY}={of_tokens}"]
    overrides += [f"{SETTINGS_KEY}.{name}={str(value).lower()}" for name, value in changed.items()]
    return overrides if count == sm_count else [*overrides, f"{SM_COUNT_KEY}={count}"]


def exchange_lines(workload: Workload) -> Iterator[str]:
    """Yield how GPUs would better exchange tokens and weights, or what sets how they are planned to; and of NVLS."""
    yield from dispatch_lines(workload)
    layout = workload.parallelism
    if not shares_out(workload):
        return
    usual = with_sm_count(replace(workload, parallelism=replace(layout, fsdp=FsdpSettings())), NCCL_SM_COUNT)
    is_planned = workload != usual
    best = workload if is_planned else with_best_exchanges(workload)
    steps: KnownSteps = {}
    default, costs = predict(usual, steps=steps), predict(best, steps=steps)
    if best != usual:
        saved = _saved(default, costs, f"on NCCL's own {NCCL_SM_COUNT}")
        yield f"{exchange_words(best)}: {saved} at full speed, {EVIDENCE}; {_to_do(best, is_planned=is_planned)}"
    if trainer_of(workload.software.name).limits_groups and not best.parallelism.fsdp.nvls:
        others = with_fsdp(best, nvls=True, gather_sms=None)
        switched = _predicted(others, steps)
        if switched and switched.time_s < (1 - WORTH) * costs.time_s:
            yield (
                f"gathers by NVLS on {NVLS_SMS} SMs, as one user of NCCL saw (nccl issue 1670): "
                f"{_saved(costs, switched, 'without')}, not measured here; plan with {SETTINGS_KEY}.nvls=true, and "
                f"start the job with NCCL_ALGO={NVLS_CHOICE}"
            )


def dispatch_lines(workload: Workload) -> Iterator[str]:
    """Yield on how many SMs tokens would better be exchanged, or what sets the number that is planned."""
    if not dispatches(workload):
        return
    usual, planned = with_dispatch_sms(workload, None), workload.software.dispatch_sms
    best = with_best_dispatch(usual) if planned is None else workload
    count, default = best.software.dispatch_sms, usual.software.exchange_sms(NCCL_SM_COUNT)
    if count in (None, default):
        return
    saved = _saved(predict(usual), predict(best), f"on the {default} of their dispatcher")
    to_do = "counted above" if planned else f"plan with {DISPATCH_KEY}={count}"
    yield f"exchanges of tokens on {count} SMs: {saved} at full speed, {EVIDENCE}; {to_do}: exports for Megatron set it"


def _saved(before: Prediction, after: Prediction, than: str) -> str:
    time, energy = 100 * (1 - after.time_s / before.time_s), 100 * (1 - after.energy_j / before.energy_j)
    return compared(less(time, "time"), less(energy, "energy"), than)


def exchange_words(workload: Workload) -> str:
    """Return the settings of a workload in words."""
    fsdp = workload.parallelism.fsdp
    if not fsdp.label:
        return f"collectives on {workload.testbed.default_collective_sm_count} SMs"
    said = {"gather": "gathers of weights", "reduce": "reductions of gradients", "copies": "their sums over copies"}
    parts = [f"{said[name]} on {fsdp.sms(name)} SMs" for name in EXCHANGES if fsdp.sms(name) is not None]
    parts += [f"weights gathered {fsdp.prefetch} blocks ahead"] * (fsdp.prefetch > 1) + ["gathers by NVLS"] * fsdp.nvls
    return ", ".join(parts)


def _to_do(workload: Workload, *, is_planned: bool) -> str:
    """Return what sets the settings of a workload."""
    if workload.parallelism.fsdp.label:
        trainer = trainer_of(workload.software.name)
        sets = f"{'kareus train sets' if trainer.overlaps else 'adapters set'} it, and losses stay equal"
        return f"not counted above; {sets}" if is_planned else f"plan with {SETTINGS_KEY}=auto: {sets}"
    count, variables = workload.testbed.default_collective_sm_count, workload.testbed.nccl_environment
    first = "which is not counted above; " if is_planned else f"plan with {SM_COUNT_KEY}={count}, and "
    return f"{first}give the job {variables}"
