"""Orders of layouts: whether predictions order measured layouts of one training as measurements do.

Rows with the same network, sequences, GPUs and global batch differ by nothing but their layout. Kendall's tau is the
share of pairs in the same order less that in the other; the loss is what the layout predicted to be the fastest takes
more than the one measured to be, or the best of a few that are predicted to be and then measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import kendalltau

from kareus.evidence.iterations import Scored
from kareus.prediction.rows import MeasuredIteration

LEAST_LAYOUTS = 4
"""Layouts of a group that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRanking:
    """Layouts of one training."""

    layouts: int
    tau: float
    """Kendall's tau of measured and predicted times."""
    losses_pct: tuple[float, ...]
    """Measured time of the best of the first layouts by predicted time, over that of the best of all, less one; by how
    many are first, from one on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All groups of a family."""

    groups: tuple[GroupRanking, ...]

    @property
    def tau(self) -> float:
        """Mean of the groups' tau."""
        return float(np.mean([group.tau for group in self.groups]))

    @property
    def figures(self) -> dict[str, float]:
        """Tau, what the first choice and the best of two and three lose in percent, how often the first is right."""
        losses = zip(("first_choice", "of_two", "of_three"), (1, 2, 3), strict=True)
        right = sum(group.losses_pct[0] == 0 for group in self.groups)
        figures = {f"{name}_pct": self.loss_of_first_pct(choices) for name, choices in losses}
        return {"tau": self.tau, **figures, "groups": len(self.groups), "right_choices": right}

    def loss_of_first_pct(self, choices: int) -> float:
        """Return the mean of the groups' loss by measuring as many first choices and taking the best."""
        return float(np.mean([group.losses_pct[choices - 1] for group in self.groups]))


def ranking_of(scored: Sequence[Scored], family: str) -> Ranking:
    """Return how predictions order the layouts of a family's groups."""
    groups: dict[tuple[int, ...], list[Scored]] = {}
    for row in scored:
        if row.row.family == family:
            groups.setdefault(_training(row.row), []).append(row)
    return Ranking(groups=tuple(_group(group) for group in groups.values() if len(group) >= LEAST_LAYOUTS))


def ranked_group(measured_s: Sequence[float], predicted_s: Sequence[float], places: Sequence[float]) -> GroupRanking:
    """Return how layouts are ordered by prediction, of which those with the least place are chosen first."""
    least = np.minimum.accumulate([measured_s[n] for n in np.argsort(places, kind="stable")])
    return GroupRanking(
        layouts=len(measured_s),
        tau=float(kendalltau(measured_s, predicted_s).statistic),
        losses_pct=tuple((100 * (least / least[-1] - 1)).tolist()),
    )


def _training(row: MeasuredIteration) -> tuple[int, ...]:
    return row.layers, row.hidden, row.gpus, row.dp * row.microbatch_size * row.num_microbatches, row.seq_len


def _group(layouts: Sequence[Scored]) -> GroupRanking:
    predicted_s = [layout.predicted.time_s for layout in layouts]
    return ranked_group([layout.row.iteration_time_s for layout in layouts], predicted_s, predicted_s)
