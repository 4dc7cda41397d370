"""Resolving: from overrides to named, feasible workloads, and the reasons why others were refused."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from kareus.artifacts.records import to_plain
from kareus.artifacts.shipped import config_folder
from kareus.errors import ConfigError, RefusedWorkloadError
from kareus.model.config import Model
from kareus.model.parallelism import Sharding
from kareus.testbed.config import ClockPolicy
from kareus.workload.combinations import check_combinations
from kareus.workload.compose import ComposedWorkload, compose
from kareus.workload.config import Workload
from kareus.workload.divisibility import check_divisibility
from kareus.workload.memory import MemoryEstimate, MemoryFit, SharedMemory, check_memory, estimate_memory, fit_of
from kareus.workload.naming import workload_name
from kareus.workload.overrides import expand, key_of
from kareus.workload.pipelining import check_pipeline
from kareus.workload.propose import NEUTRAL, PROPOSED, layouts_on, nearest_batch, smallest_layouts
from kareus.workload.split import layers_per_stage
from kareus.workload.words import ACCUMULATION, DEGREES, DP, GLOBAL_BATCH, GPUS, MICROBATCH, MICROBATCHES, SHARDING

MODEL_AND_COUNTS = frozenset({"model", "gpu", "software", GPUS, GLOBAL_BATCH})
"""Keys that are no part of a layout, nor of what a layout has to divide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """One combination of a sweep, accepted or refused."""

    name: str
    """Readable and unique: its folder under `results/`."""
    overrides: tuple[str, ...]
    gpus: int
    """GPUs of the whole job."""
    composed: Workload
    """Workload as the configuration gives it, whether it can run or not."""
    workload: Workload | None
    """Workload with `layers_per_stage` filled in, and only clocks that its testbed can set; None if refused."""
    refusal: str | None
    """Reason why it cannot run, in one line; None if accepted."""
    memory: MemoryEstimate | None
    """None if it was refused before memory could be estimated."""
    proposed: tuple[str, ...] = ()
    """Overrides among them that nobody gave: of a layout that was proposed."""


def resolve(overrides: Sequence[str], config_dir: Path | None = None) -> list[Resolved]:
    """Resolve every combination of `overrides`, in the order of the sweep; repeated workloads once.

    Raises:
        ConfigError: an override or a file of the configuration that cannot be used. A combination that is well formed
            but cannot run is no error: it is returned with its `refusal`.
    """
    resolved: dict[str, tuple[Resolved, Workload]] = {}
    folder = config_dir or config_folder()
    for composition, proposed in _compositions(overrides, folder):
        combination = replace(_resolved(workload_name(composition), composition), proposed=proposed)
        combination = _as_recipes_share(combination, folder)
        split = _with_split_if_any(combination.composed)
        if combination.name not in resolved:
            resolved[combination.name] = combination, split
        elif resolved[combination.name][1] != split:
            raise ConfigError(
                f"{' '.join(combination.overrides)}: would share the name {combination.name} with another workload; "
                "rename one of the options that differ."
            )
    return [combination for combination, _ in resolved.values()]


def _compositions(overrides: Sequence[str], config_dir: Path) -> Iterator[tuple[ComposedWorkload, tuple[str, ...]]]:
    """Yield every combination, and what is proposed for it where it has a number of GPUs and no layout."""
    if not any(key_of(text) == GPUS for text in overrides):
        yield from ((composition, ()) for composition in compose(overrides, config_dir))
        return
    for combination in expand(overrides, config_dir):
        texts = [setting.text for setting in combination]
        proposed = _layout_on_gpus(texts, config_dir)
        yield compose([*texts, *proposed], config_dir)[0], proposed


def _layout_on_gpus(texts: Sequence[str], config_dir: Path) -> tuple[str, ...]:
    """Return the overrides of a layout that fits so many GPUs, for a combination that has them and no whole layout.

    Where nothing fits it is the one that needs least memory, so that the refusal says by how much.

    Raises:
        ConfigError: no layout has so many GPUs and divides the batch.
    """
    given = {key_of(text): text.partition("=")[2] for text in texts}
    if "parallelism" in given or all(key in given for key in DEGREES):
        return ()
    (base,) = compose([text for text in texts if key_of(text) not in (GPUS, GLOBAL_BATCH)], config_dir)
    counts = {word: int(given[word]) for word in (GPUS, GLOBAL_BATCH) if given.get(word, "").isdecimal()}
    if (
        not counts.get(GPUS)
        or counts.get(GLOBAL_BATCH) == 0
        or ("model" not in given and _divides(base.workload, counts))
    ):
        return ()  # composing says what is wrong; or the default model has a layout
    layouts = list(layouts_on(base.workload, counts[GPUS], counts.get(GLOBAL_BATCH), given))
    chosen = _best_fitting(layouts)
    if chosen is None and layouts and not MODEL_AND_COUNTS.issuperset(given):
        chosen = layouts[0]  # its refusal says what is wrong with that which is named
    if chosen is None:
        raise ConfigError(_undivided(base.workload, counts, given))
    open_keys = [key for key in PROPOSED if key not in given]
    if "num_microbatches" in open_keys and (GLOBAL_BATCH in counts or ACCUMULATION in given):
        open_keys.remove("num_microbatches")  # follows
    return _overrides(base.workload, chosen, open_keys)


def _divides(workload: Workload, counts: Mapping[str, int]) -> bool:
    """Whether a workload's layout has so many GPUs by its replicas alone, and its microbatches make up the batch."""
    replicas, rest = divmod(counts[GPUS], workload.parallelism.gpus)
    return not rest and not counts.get(GLOBAL_BATCH, 0) % (replicas * workload.microbatch_size)


def _best_fitting(layouts: Iterable[Workload]) -> Workload | None:
    """Return the first that fits, else the first that is tight, else what needs least memory; None: none can run."""
    tight = least = None
    least_gib, shared = math.inf, SharedMemory()
    for layout in layouts:
        if (checked := _checked(layout)) is None:
            continue
        memory = estimate_memory(checked, shared)
        fit = fit_of(checked, memory)
        if fit is MemoryFit.FITS:
            return layout
        if fit is MemoryFit.TIGHT:
            tight = tight or layout
        if memory.total_gib < least_gib:
            least, least_gib = layout, memory.total_gib
    return tight or least


def _checked(layout: Workload) -> Workload | None:
    """Return a layout with what is filled in; None where something other than memory refuses it."""
    try:
        return checked_but_for_memory(layout)
    except ConfigError:
        return None


def _undivided(workload: Workload, counts: Mapping[str, int], given: Mapping[str, str]) -> str:
    """Return why no layout has so many GPUs and divides the batch: the batch, or what else is named."""
    gpus, batch = counts[GPUS], counts.get(GLOBAL_BATCH)
    named = " ".join(f"{key}={value}" for key, value in given.items() if key not in MODEL_AND_COUNTS)
    layout = f"no layout of {gpus} GPUs{f' with {named}' if named else ''}"
    parts = [DP, *(key for key in (MICROBATCH, MICROBATCHES) if key in given)]
    can_run = (each for each in layouts_on(workload, gpus, None, given) if _checked(each) is not None)
    units = {math.prod(_value(each, key) for key in parts) for each in can_run}
    if batch is None or not units:
        return f"{GPUS}={gpus}: there is {layout}; give another number{', or leave that out' if named else ''}."
    return f"{GLOBAL_BATCH}={batch}: {layout} divides it; the nearest that one does is {nearest_batch(batch, units)}."


def _as_recipes_share(resolved: Resolved, config_dir: Path) -> Resolved:
    """Return a workload that does not fit with states shared out as its software's recipes do, where nobody says how.

    One that does not fit so either, or of which something is said, is returned as it is.
    """
    layout, usual = resolved.composed.parallelism, resolved.composed.software.usual_sharding
    said = {key_of(text) for text in resolved.overrides}
    alone = layout.dp * layout.cp == 1 or usual is Sharding.NONE
    if resolved.refusal is None or resolved.memory is None or alone or not said.isdisjoint(("parallelism", SHARDING)):
        return resolved
    added = f"{SHARDING}={usual}"
    (composition,) = compose([*resolved.overrides, added], config_dir)
    shared = _resolved(workload_name(composition), composition)
    return resolved if shared.workload is None else replace(shared, proposed=(*resolved.proposed, added))


def with_proposal(resolved: Resolved, config_dir: Path) -> Resolved:
    """Return a refused workload that names a model and no part of a layout in the smallest layout that fits.

    Any other workload is returned as it is. The default model has a layout that was chosen for it.

    Args:
        resolved: a combination of a sweep.
        config_dir: Hydra groups.
    """
    groups = {key_of(text).partition(".")[0] for text in resolved.overrides}
    if resolved.refusal is None or "model" not in groups or not groups.isdisjoint(("parallelism", GPUS)):
        return resolved
    for laid_out in smallest_layouts(resolved.composed):
        try:
            check_workload(laid_out)
        except (RefusedWorkloadError, ConfigError):
            continue
        proposed = _overrides(resolved.composed, laid_out, [key for key in PROPOSED if key.startswith("parallelism.")])
        return replace(resolve([*resolved.overrides, *proposed], config_dir)[0], proposed=proposed)
    return resolved


def _overrides(before: Workload, after: Workload, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides of `keys` in which a workload differs from another, and those that do something."""
    values = {key: (_value(before, key), _value(after, key)) for key in keys}
    return tuple(f"{key}={new}" for key, (old, new) in values.items() if old != new or new not in NEUTRAL)


def _value(workload: Workload, key: str) -> Any:
    return to_plain(reduce(getattr, key.split("."), workload))


def resolve_accepted(overrides: Sequence[str], config_dir: Path | None = None) -> dict[str, Workload]:
    """Resolve `overrides` into workloads that can run, by name.

    Raises:
        ConfigError: as `resolve`.
        RefusedWorkloadError: none can run.
    """
    resolved = resolve(overrides, config_dir)
    check_any_accepted(resolved)
    return {combination.name: combination.workload for combination in resolved if combination.workload is not None}


def check_any_accepted(resolved: Sequence[Resolved], without_gpu: str = "") -> None:
    """Check that something is left to plan.

    Args:
        resolved: all combinations.
        without_gpu: what to say in the place of a reason, since it may be that of a GPU which nobody named; or nothing.

    Raises:
        RefusedWorkloadError: all were refused; with the reason of the first.
    """
    if all(combination.refusal is not None for combination in resolved):
        prefix = "" if len(resolved) == 1 else f"all {len(resolved)} combinations are refused; the first, "
        raise RefusedWorkloadError(without_gpu or f"{prefix}{resolved[0].name}: {resolved[0].refusal}")


def _resolved(name: str, composition: ComposedWorkload) -> Resolved:
    workload, estimate, refusal = composition.workload, None, None
    try:
        workload = checked_but_for_memory(workload)
        estimate = estimate_memory(workload)
        check_memory(workload, estimate)
    except RefusedWorkloadError as error:
        refusal = str(error)
    return Resolved(
        name=name,
        overrides=composition.overrides,
        gpus=workload.parallelism.gpus,
        composed=composition.workload,
        workload=workload if refusal is None else None,
        refusal=refusal,
        memory=estimate,
    )


def check_workload(workload: Workload) -> None:
    """Check that a workload can run.

    Raises:
        RefusedWorkloadError: it cannot; with the reason.
    """
    checked = checked_but_for_memory(workload)
    check_memory(checked, estimate_memory(checked))


def checked_but_for_memory(workload: Workload) -> Workload:
    """Return a workload with what is filled in, where all but its memory allows it to run.

    Raises:
        RefusedWorkloadError: something else does not; with the reason.
    """
    check_divisibility(workload)
    check_combinations(workload)
    check_pipeline(workload)
    return with_settable_clocks(with_split(workload))


def with_split(workload: Workload) -> Workload:
    """The workload with `layers_per_stage` set: as given, as usual for its model, or balanced.

    Its vocabulary has the rows that its software pads it to, and its stages are a V if its schedule is one. Sequence
    parallelism means nothing on one GPU, and is turned off where `tp` is 1, and `shards` is left out where all replicas
    share, so that equal workloads are equal.

    Raises:
        RefusedWorkloadError: no split fits, or the one given does not.
    """
    degrees, model, folded = workload.parallelism, workload.model, workload.pipeline.schedule.folds
    rows = workload.software.padded(model.vocab_size, degrees.tp)
    if rows != model.vocab_size or folded is not degrees.folded:
        model, degrees = _with_rows(model, rows), replace(degrees, folded=folded)
        workload = replace(workload, model=model, parallelism=degrees)
    resolved = replace(
        degrees,
        layers_per_stage=layers_per_stage(workload),
        sequence_parallel=degrees.sequence_parallel and degrees.tp > 1,
        shards=None if degrees.shards == degrees.dp else degrees.shards,
    )
    return replace(workload, parallelism=resolved)


@lru_cache(maxsize=64)  # layouts that are compared share few, and a model checks all of its numbers
def _with_rows(model: Model, rows: int) -> Model:
    """Return a model with an embedding of so many rows."""
    return replace(model, vocab_size=rows)


def with_settable_clocks(workload: Workload) -> Workload:
    """The workload with no clock to search but the maximum, where its testbed leaves clocks alone."""
    cuda, gpu = workload.testbed.cuda, workload.gpu
    if cuda is None or cuda.clocks is ClockPolicy.LOCKED:
        return workload
    maximum = replace(gpu.search_frequencies, minimum_mhz=gpu.maximum_clock_mhz, maximum_mhz=gpu.maximum_clock_mhz)
    return replace(workload, gpu=replace(gpu, search_frequencies=maximum))


def _with_split_if_any(workload: Workload) -> Workload:
    """Return a workload with its blocks split over stages, by which it is told from others; as it is if none can be."""
    try:
        return with_split(workload)
    except RefusedWorkloadError:
        return workload
