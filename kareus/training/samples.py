"""Samples by number: the n-th sample of a training run is a function of n and the seed, however far the run is.

Nothing is remembered but how many samples were used. Every pass over a file takes its windows in another order, by
a permutation that is computed and not stored, since a trillion tokens have hundreds of millions of windows.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import generator
from kareus.artifacts.records import content_hash, to_plain
from kareus.errors import ConfigError
from kareus.training.tokens import TokenFile, read_ids

_ROUNDS = 4
"""Rounds of the Feistel network: with random round functions four look like a random permutation (Luby and Rackoff,
1988)."""


class Samples(Protocol):
    """An endless sequence of samples."""

    @property
    def identity(self) -> str:
        """Hash of all that decides the samples: a position is valid for this sequence only."""

    def sample(self, number: int) -> NDArray[np.int64]:
        """Ids of sample `number`, one more than a sequence is long, since labels are the next tokens."""


@dataclass(frozen=True, slots=True)
class FileSamples:
    """Windows of a token file that follow each other without overlap, shuffled anew in every pass."""

    file: TokenFile
    sequence_length: int
    seed: int

    def __post_init__(self) -> None:
        if not self.windows:
            raise ConfigError(
                f"{self.file.path}: has {self.file.header.tokens} tokens, less than one sequence of "
                f"{self.sequence_length}; take more text, or a shorter sequence_length."
            )

    @property
    def windows(self) -> int:
        """Number of samples of one pass."""
        return (self.file.header.tokens - 1) // self.sequence_length

    @property
    def identity(self) -> str:
        """Hash of the file's header and name, and of how it is cut and shuffled."""
        return content_hash((to_plain(self.file.header), self.file.path.name, self.sequence_length, self.seed))

    def sample(self, number: int) -> NDArray[np.int64]:
        """The window that the permutation of its pass puts in this place."""
        turn, place = divmod(number, self.windows)
        start = permuted(place, self.windows, content_hash((self.seed, turn))) * self.sequence_length
        return read_ids(self.file, start, start + self.sequence_length + 1)


@dataclass(frozen=True, slots=True)
class SyntheticSamples:
    """Synthetic text that can be learnt: each token has one likely successor."""

    vocab_size: int
    sequence_length: int
    seed: int

    @property
    def identity(self) -> str:
        """Hash of the fields."""
        return content_hash((self.vocab_size, self.sequence_length, self.seed))

    def sample(self, number: int) -> NDArray[np.int64]:
        """A chain: nine tokens in ten follow from the one before, the others are drawn."""
        random = generator(self.seed, f"sample {number}")
        drawn = random.integers(self.vocab_size, size=self.sequence_length + 1)
        follows = random.random(self.sequence_length + 1) < 0.9  # noqa: PLR2004
        ids = [int(drawn[0])]
        for free, follow in zip(drawn[1:], follows[1:], strict=True):
            ids.append((31 * ids[-1] + 7) % self.vocab_size if follow else int(free))
        return np.array(ids, dtype=np.int64)


def permuted(place: int, count: int, key: str) -> int:
    """Return the image of `place` under the permutation `key` of range(count).

    A Feistel network over the next even number of bits permutes a range of up to four times `count`; what falls
    outside is permuted again until it falls inside (cycle walking, Black and Rogaway, 2002).
    """
    half_bits = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    keys = [int(key, 16) + 0x9E3779B97F4A7C15 * (number + 1) for number in range(_ROUNDS)]
    while True:
        left, right = place >> half_bits, place & mask
        for round_key in keys:
            left, right = right, left ^ (_mixed(right + round_key) & mask)
        place = left << half_bits | right
        if place < count:
            return place


def _mixed(value: int) -> int:
    """Finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value &= 0xFFFFFFFFFFFFFFFF
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    value = (value ^ value >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return value ^ value >> 31
