"""Microbatches of one rank: its share of the samples of each iteration, from a position that can be saved."""

from dataclasses import dataclass

import numpy as np

from kareus.errors import ArtifactError
from kareus.runtime.schedules import Ids, Microbatch
from kareus.training.samples import Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPosition:
    """Position of a run in its data, independent of the number of ranks."""

    samples: int
    """Number of samples that all replicas together have used."""
    source: str
    """Identity of the samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataShare:
    """Part of every iteration's samples that is this rank's."""

    microbatch_size: int
    """Sequences of a microbatch."""
    num_microbatches: int
    """Number of microbatches of one pipeline in one iteration."""
    dp_rank: int = 0
    dp: int = 1
    cp_rank: int = 0
    cp: int = 1


class Batches:
    """Microbatches of one rank, iteration after iteration."""

    def __init__(self, samples: Samples, share: DataShare, position: DataPosition | None = None) -> None:
        """Begin at `position`, or at the first sample.

        Raises:
            ArtifactError: the position is one in other data.
        """
        if position is not None and position.source != samples.identity:
            raise ArtifactError(
                f"checkpoint: was made with other data (identity {position.source}; --data has {samples.identity}); "
                "resume with the data, sequence_length and seed that it was made with, or begin in a new folder."
            )
        self._samples = samples
        self._share = share
        self._used = position.samples if position else 0

    @property
    def position(self) -> DataPosition:
        """Position at which the next iteration begins."""
        return DataPosition(samples=self._used, source=self._samples.identity)

    def next_iteration(self) -> list[Microbatch]:
        """Return this rank's microbatches of the next iteration."""
        share = self._share
        starts = [
            self._used + (number * share.dp + share.dp_rank) * share.microbatch_size
            for number in range(share.num_microbatches)
        ]
        self._used += share.num_microbatches * share.dp * share.microbatch_size
        return [self._microbatch(start) for start in starts]

    def _microbatch(self, start: int) -> Microbatch:
        rows = np.stack([self._samples.sample(start + i) for i in range(self._share.microbatch_size)])
        shards = (context_shard(part, self._share.cp_rank, self._share.cp) for part in (rows[:, :-1], rows[:, 1:]))
        return Microbatch(*shards)


def context_shard(rows: Ids, cp_rank: int, cp: int) -> Ids:
    """Return this rank's tokens of each sequence, [batch, tokens] to [batch, tokens / cp].

    Of 2 cp chunks those numbered r and 2 cp - 1 - r, as `kareus.model.attention.chunks` has it.
    """
    if cp == 1:
        return np.ascontiguousarray(rows)
    pieces = np.split(rows, 2 * cp, axis=1)
    return np.concatenate((pieces[cp_rank], pieces[2 * cp - 1 - cp_rank]), axis=1)
