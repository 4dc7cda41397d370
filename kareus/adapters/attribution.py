"""The power of each kind of instruction, from an energy counter that moves more seldom than instructions change.

The driver updates the counter about every 0.1 s. Between two of its movements a GPU runs parts of several instructions
and waits; interpolation would give all of them the same power. Within one iteration at one clock the power of a kind is
the same throughout, so that the energies at movements are linear in the powers of the kinds and of waiting, with the
times that each has lasted by then as coefficients.

A movement is seen up to a period of the sampler late, a good part of a short instruction. Counters move at regular
times, so that a line through all times at which they were seen moving has a fraction of these errors.
"""

import numpy as np

from kareus.adapters.records import IterationRecord
from kareus.adapters.sampler import PERIOD_S
from kareus.arrays import Array
from kareus.graph.instruction import InstructionKind

LEAST_WAITING = 0.1
"""Share of the time from which on the power of waiting is found too. Short gaps between instructions grow with the time
that these run, so that the two could not be told apart."""
LEAST_SIGNAL = 2.0
"""Deviation of the time of a kind that the other times do not explain, over the error of times, below which powers are
not told apart: the counter moves in step with the instructions."""


def kind_powers_w(
    record: IterationRecord, waiting_power_w: float, *, skipped: int = 0
) -> dict[InstructionKind, float] | None:
    """Return the mean power of each kind of instruction of an iteration at one clock.

    Args:
        record: the iteration.
        waiting_power_w: of a GPU that waits, where it waits too little to find that.
        skipped: instructions at its start that do not count, since the clock changed amid them.

    Returns:
        Watts by kind, the same for all where the counter moves in step with them; None where it hardly moves.
    """
    begins_s = record.instructions[skipped - 1].start_s + record.instructions[skipped - 1].time_s if skipped else 0.0
    seen_s, energies_j = np.array([moved for moved in record.counter if moved[0] >= begins_s]).reshape(-1, 2).T
    kinds = sorted({ran.key.kind for ran in record.instructions})
    if len(seen_s) < 3 + len(kinds):
        return None
    moved_s, error_s = _movements(seen_s)
    starts_s, ends_s = np.array([(ran.start_s, ran.start_s + ran.time_s) for ran in record.instructions]).T
    # Shape (movements, instructions): how long an instruction had run when the counter moved.
    ran_s = np.clip(moved_s[:, None] - starts_s, 0.0, ends_s - starts_s)
    columns = [ran_s[:, [ran.key.kind == kind for ran in record.instructions]].sum(axis=1) for kind in kinds]
    waited_s = moved_s - np.sum(columns, axis=0)
    waiting = []
    if np.ptp(waited_s) > LEAST_WAITING * np.ptp(moved_s):
        waiting = [waited_s]
    else:
        energies_j = energies_j - waiting_power_w * waited_s
    powers_w = _powers_w([*columns, *waiting], energies_j, error_s)
    if powers_w is None or not (powers_w[: len(kinds)] > 0).all():
        powers_w = _powers_w([np.sum(columns, axis=0), *waiting], energies_j, error_s)
        if powers_w is None or powers_w[0] <= 0:
            return None
        return dict.fromkeys(kinds, float(powers_w[0]))
    return {kind: float(power_w) for kind, power_w in zip(kinds, powers_w, strict=False)}


def _movements(seen_s: Array) -> tuple[Array, float]:
    """Return when the counter moved, from when that was seen, and the standard error of these times.

    Times that lie on no line, as where the counter has no fixed period, are returned as they are.
    """
    error_s = PERIOD_S / np.sqrt(12)  # uniform over a period of the sampler
    apart_s = np.diff(seen_s)
    number = np.concatenate(([0.0], np.cumsum(np.round(apart_s / np.median(apart_s)))))
    line = np.polynomial.Polynomial.fit(number, seen_s, 1)
    moved_s: Array = line(number)
    if np.abs(moved_s - seen_s).max() > PERIOD_S:
        return seen_s, float(error_s)
    return moved_s, float(error_s * np.sqrt(2 / len(seen_s)))  # two parameters were fitted


def _powers_w(columns: list[Array], energies_j: Array, error_s: float) -> Array | None:
    """Return the power of each column of times by least squares; None where they cannot be told apart.

    Sums since the start are fitted, not differences between movements, whose coefficients would be as short as errors.

    Args:
        columns: how long each kind had run at each movement of the counter.
        energies_j: readings.
        error_s: standard error of the times of movements.
    """
    times_s = np.column_stack(columns)
    times_s, energies_j = times_s - times_s.mean(axis=0), energies_j - energies_j.mean()
    normal = times_s.T @ times_s
    if np.linalg.matrix_rank(normal) < len(columns):
        return None
    inverse = np.linalg.inv(normal)
    unexplained_s = np.sqrt(1 / np.diag(inverse) / len(energies_j))
    if (unexplained_s < LEAST_SIGNAL * error_s).any():
        return None
    powers_w: Array = inverse @ (times_s.T @ energies_j)
    return powers_w
