"""What is asked where a trainer's files have model, software, GPUs and batch: all of a job but its layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kareus.adviser.job import layout_of_job
from kareus.adviser.layouts import Layout
from kareus.adviser.question import FOLLOWS, SYNONYMS, split_overrides
from kareus.errors import ConfigError
from kareus.interchange.reading import Training
from kareus.workload.arguments import brought, check_has_model, left_out
from kareus.workload.compose import compose
from kareus.workload.overrides import key_of
from kareus.workload.words import GLOBAL_BATCH, GPUS, MICROBATCH

OF_LAYOUT = {*SYNONYMS, *FOLLOWS, *SYNONYMS.values(), GPUS, GLOBAL_BATCH, "training.batch_ramp"}
"""Keys that say how a model is laid out, and what the question itself has."""
LENGTH = "sequence_length"
GROUPS = ("parallelism.", "pipeline.")
"""Begin further keys of layouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Model, GPUs and batch of a question."""

    overrides: tuple[str, ...]
    """Of the workload, and constraints of layouts as they were given."""
    gpus: str
    global_batch: int
    sequence_length: int | None
    """None: as configured."""
    job: Layout | None = None
    """Layout of the job, as far as its files say it; None where they do not say its GPUs or its batch."""
    given: tuple[str, ...] = ()
    """Overrides of the workload beside the files, without constraints."""
    left_out: tuple[str, ...] = ()
    """What of the files is lost or missing, as lines for people."""


def asked_of(
    files: Sequence[Path],
    given: Sequence[str],
    *,
    gpus: str | None,
    global_batch: int | None,
    sequence_length: int | None,
    config_dir: Path,
) -> Asked:
    """Return what is asked by overrides and options, and by files in their place where they say nothing.

    Args:
        files: of one trainer, such as the script that starts the job; none of them if all is given.
        given: overrides and constraints, which go before what files say.
        gpus: to lay out on; None: as many as the job has.
        global_batch: sequences of an iteration; None: those of the job.
        sequence_length: tokens; None: those of the job.
        config_dir: Hydra groups.

    Raises:
        ConfigError: a file cannot be read, or something is said nowhere.
    """
    given, sizes = _sizes_said(given, gpus, global_batch, sequence_length)
    gpus, global_batch, sequence_length = sizes
    if not files:
        if gpus is None or global_batch is None:
            option = "--gpus" if gpus is None else "--global-batch"
            raise ConfigError(
                f"{option} is missing; give it, such as {option} 64, or the file of your job by --from FILE."
            )
        return Asked(overrides=tuple(given), gpus=gpus, global_batch=global_batch, sequence_length=sequence_length)
    _, others = split_overrides(given)
    training, overrides = brought(list(files), None, others)
    check_has_model(files, training, overrides)
    kept = [text for text in overrides if not _is_of_layout(key_of(text))]
    gpus, global_batch = _size(training, " ".join(map(str, files)), gpus, global_batch, config_dir)
    lengths = [text.partition("=")[2] for text in overrides if key_of(text) == LENGTH]
    job = _job(files, others, (training, overrides), gpus, config_dir)
    unlike = (
        f"{' '.join(map(str, files))}: its own layout is not compared with: advise has none like it, or it says none"
    )
    in_question = (GPUS, GLOBAL_BATCH, MICROBATCH, *([] if sequence_length is None else [LENGTH]))
    return Asked(
        overrides=(*kept, *(text for text in given if text not in others)),
        gpus=gpus,
        global_batch=global_batch,
        sequence_length=int(lengths[-1]) if sequence_length is None and lengths else sequence_length,
        job=job,
        given=tuple(others),
        left_out=(*left_out(files, training, [*given, *in_question], config_dir), *([unlike] if job is None else [])),
    )


def _sizes_said(
    given: Sequence[str], gpus: str | None, global_batch: int | None, sequence_length: int | None
) -> tuple[list[str], tuple[str | None, int | None, int | None]]:
    """Return overrides without those that say what options do, and the options with these.

    Raises:
        ConfigError: one says no number, or something else than its option.
    """
    options = {GLOBAL_BATCH: ("--global-batch", global_batch), LENGTH: ("--sequence-length", sequence_length)}
    said: dict[str, int | None] = {key: value for key, (_, value) in options.items()}
    others = []
    for text in given:
        key, _, value = text.partition("=")
        if key == GPUS and gpus not in (None, value):
            raise ConfigError(f"{text}: --gpus {gpus} is given, too; leave one of them out.")
        if key == GPUS:
            gpus = value
        elif key not in options:
            others.append(text)
        elif not value.isdecimal():
            raise ConfigError(f"{text}: must be a whole number, 1 or more.")
        elif options[key][1] not in (None, int(value)):
            raise ConfigError(f"{text}: {options[key][0]} {options[key][1]} is given, too; leave one of them out.")
        else:
            said[key] = int(value)
    return others, (gpus, said[GLOBAL_BATCH], said[LENGTH])


def _is_of_layout(key: str) -> bool:
    return key in OF_LAYOUT or key.startswith(GROUPS)


def _unsaid(training: Training) -> set[str]:
    return {key for missing in training.missing for key in missing.keys}


def _job(
    files: Sequence[Path], given: Sequence[str], read: tuple[Training, list[str]], gpus: str, config_dir: Path
) -> Layout | None:
    """Return the layout of the job that files and overrides describe; None where these do not go together.

    It is that of no batch which the files do not say. They are read again only where they do not say their GPUs.
    """
    training, overrides = read
    try:
        if GPUS in _unsaid(training):
            training, overrides = brought(list(files), None, [*given, f"{GPUS}={gpus}"])
        (composition, *_) = compose(overrides, config_dir)
    except ConfigError:  # such as GPUs over which the degrees of the files do not divide
        return None
    if _unsaid(training) & {GLOBAL_BATCH, MICROBATCH}:
        return None
    return layout_of_job(composition.workload)


def _size(
    training: Training, place: str, gpus: str | None, global_batch: int | None, config_dir: Path
) -> tuple[str, int]:
    """Return GPUs and sequences of an iteration: as they are given, else those of the job with its layout."""
    if gpus is not None and global_batch is not None:
        return gpus, global_batch
    unsaid = _unsaid(training)
    is_named = any(key_of(text) == GLOBAL_BATCH for text in training.overrides)
    if gpus is None and GPUS in unsaid:
        raise ConfigError(f"{place}: does not say how many GPUs there are; give --gpus N.")
    if (
        global_batch is None and not is_named and unsaid & {GLOBAL_BATCH, MICROBATCH, GPUS}
    ):  # of which it is the product
        raise ConfigError(f"{place}: does not say how many sequences an iteration has; give --global-batch N.")
    (composition,) = compose(training.overrides, config_dir)
    job = composition.workload
    batch = job.num_microbatches * job.microbatch_size * job.parallelism.dp
    return (
        str(job.parallelism.gpus) if gpus is None else gpus,
        batch if global_batch is None else global_batch,
    )
