"""Documents packed in a sequence, each attending to itself alone: their lengths, and the pairs of their tokens."""

import itertools
import math
from functools import lru_cache
from statistics import NormalDist

from kareus.model.config import Model
from kareus.model.training_options import TrainingOptions

QUANTILES = 512
"""Lengths of documents that stand for a distribution, each as likely as another."""


def twice_pairs(model: Model, options: TrainingOptions, sequence_length: int) -> tuple[int, ...]:
    """Return twice the pairs of tokens of a sequence that attend to each other, in each block.

    Where it is packed, documents attend to themselves alone: of a sequence of s tokens made of documents of lengths l,
    there are s E[pairs of l] / E[l] pairs, the mean reward of a renewal process (Ross, Stochastic Processes, 3.6);
    without windows that is s E[l^2] / E[l], twice.
    """
    if not options.packs:
        return model.twice_pairs(sequence_length)
    lengths, windows = document_lengths(options, sequence_length), model.layer_windows(sequence_length)
    pairs = {window: sum(model.twice_pairs_within(min(window, n), n) for n in lengths) for window in {*windows}}
    return tuple(round(sequence_length * pairs[window] / sum(lengths)) for window in windows)


@lru_cache(maxsize=256)
def document_lengths(options: TrainingOptions, sequence_length: int) -> tuple[int, ...]:
    """Return lengths that stand for those of documents, each as likely as another, none longer than the sequence."""
    lengths: list[float] = sorted(options.document_lengths)
    if not lengths:
        mean, spread = options.document_tokens, options.document_spread
        assert mean is not None, "only what is packed has documents"
        deviation = math.sqrt(math.log1p(spread**2))
        middle = math.log(mean) - deviation**2 / 2
        count = QUANTILES if spread else 1
        normal = NormalDist()
        lengths = [math.exp(middle + deviation * normal.inv_cdf((n + 0.5) / count)) for n in range(count)]
    elif len(lengths) > QUANTILES:
        edges = [n * len(lengths) // QUANTILES for n in range(QUANTILES + 1)]
        lengths = [math.fsum(lengths[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    return tuple(min(max(round(length), 1), sequence_length) for length in lengths)


def attention_spread(options: TrainingOptions, sequence_length: int, tokens: int) -> float:
    """Return the standard deviation of the pairs in packed sequences of `tokens` tokens over their mean.

    Documents of lengths l follow one another until the tokens are there: a renewal process whose rewards are l^2, of
    rate r = E[l^2] / E[l], with the variance E[(l^2 - r l)^2] / E[l] for each token (Smith, 1955, theorem 7).
    """
    lengths = document_lengths(options, sequence_length)
    mean = sum(lengths) / len(lengths)
    rate = sum(length**2 for length in lengths) / len(lengths) / mean
    variance = sum((length**2 - rate * length) ** 2 for length in lengths) / len(lengths) / mean
    return math.sqrt(variance / tokens) / rate
