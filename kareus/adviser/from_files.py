"""What is asked where a trainer's files have model, software, GPUs and batch: all of a job but its layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kareus.adviser.question import FOLLOWS, SYNONYMS, split_overrides
from kareus.errors import ConfigError
from kareus.interchange.reading import Training
from kareus.workload.arguments import brought, check_has_model, left_out
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.overrides import key_of
from kareus.workload.words import GLOBAL_BATCH, GPUS, MICROBATCH

OF_LAYOUT = {*SYNONYMS, *FOLLOWS, *SYNONYMS.values(), GPUS, GLOBAL_BATCH, "training.batch_ramp"}
"""Keys that say how a model is laid out, and what the question itself has."""
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
    job = _Job(training=training, place=" ".join(map(str, files)), config_dir=config_dir)
    lengths = [text.partition("=")[2] for text in overrides if key_of(text) == "sequence_length"]
    in_question = (GPUS, GLOBAL_BATCH, MICROBATCH, *(["sequence_length"] if sequence_length else []))
    return Asked(
        overrides=(*kept, *(text for text in given if text not in others)),
        gpus=gpus or str(job.gpus()),
        global_batch=global_batch or job.global_batch(),
        sequence_length=sequence_length or (int(lengths[-1]) if lengths else None),
        left_out=left_out(files, training, [*given, *in_question], config_dir),
    )


def _is_of_layout(key: str) -> bool:
    return key in OF_LAYOUT or key.startswith(GROUPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The job that files describe, with its layout."""

    training: Training
    place: str
    config_dir: Path

    def gpus(self) -> int:
        """Return how many GPUs the job has."""
        self._check(GPUS, "--gpus", "how many GPUs there are")
        return self._composed().parallelism.gpus

    def global_batch(self) -> int:
        """Return how many sequences an iteration of the job has."""
        if not any(key_of(text) == GLOBAL_BATCH for text in self.training.overrides):
            for key in (GLOBAL_BATCH, MICROBATCH, GPUS):  # of which it is the product
                self._check(key, "--global-batch", "how many sequences an iteration has")
        workload = self._composed()
        return workload.num_microbatches * workload.microbatch_size * workload.parallelism.dp

    def _composed(self) -> Workload:
        (job,) = compose(self.training.overrides, self.config_dir)
        return job.workload

    def _check(self, key: str, option: str, what: str) -> None:
        if any(key in missing.keys for missing in self.training.missing):
            raise ConfigError(f"{self.place}: does not say {what}; give {option} N.")
