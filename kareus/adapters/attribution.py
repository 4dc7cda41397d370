"""The power of each kind of instruction, from an energy counter that moves more seldom than instructions change.

The driver updates the counter about every 0.1 s. Between two of its movements a GPU runs parts of several instructions
and waits; interpolation would give all of them the same power. Within one iteration at one clock the power of a kind is
the same throughout, so that the energies between movements are a linear system in the powers of the kinds and of
waiting, with the times that each lasted as its coefficients.
"""

import numpy as np

from kareus.adapters.records import IterationRecord
from kareus.graph.instruction import InstructionKind

LEAST_WAITING = 0.1
"""Share of the time from which on the power of waiting is found too. Short gaps between instructions grow with the time
that these run, so that the two could not be told apart."""


def kind_powers_w(
    record: IterationRecord, waiting_power_w: float, *, skipped: int = 0
) -> dict[InstructionKind, float] | None:
    """Return the mean power of each kind of instruction of an iteration at one clock, by least squares.

    Args:
        record: the iteration.
        waiting_power_w: of a GPU that waits, where it waits too little to find that.
        skipped: instructions at its start that do not count, since the clock changed amid them.

    Returns:
        Watts by kind; None where the counter moved too seldom to tell them apart.
    """
    begins_s = record.instructions[skipped - 1].start_s + record.instructions[skipped - 1].time_s if skipped else 0.0
    moved_s, energies_j = np.array([moved for moved in record.counter if moved[0] >= begins_s]).reshape(-1, 2).T
    kinds = sorted({one.key.kind for one in record.instructions})
    if len(moved_s) < 3 + len(kinds):
        return None
    starts_s, ends_s = np.array([(one.start_s, one.start_s + one.time_s) for one in record.instructions]).T
    # Shape (movements, instructions): how long an instruction had run when the counter moved.
    ran_s = np.clip(moved_s[:, None] - starts_s, 0.0, ends_s - starts_s)
    columns = [ran_s[:, [one.key.kind == kind for one in record.instructions]].sum(axis=1) for kind in kinds]
    waited_s = moved_s - np.sum(columns, axis=0)
    energies_j = energies_j - energies_j[0]
    if np.ptp(waited_s) > LEAST_WAITING * np.ptp(moved_s):
        columns.append(waited_s)
    else:
        energies_j = energies_j - waiting_power_w * waited_s
    # Sums since the start, not differences between movements: when a movement is seen is uncertain by as much as an
    # instruction lasts, and noise in short coefficients would make all powers too low.
    coefficients = np.column_stack([np.ones_like(moved_s), *columns])
    solution, _, rank, _ = np.linalg.lstsq(coefficients, energies_j, rcond=1e-6)
    powers_w = solution[1 : 1 + len(kinds)]
    if rank < coefficients.shape[1] or not (powers_w > 0).all():
        return None
    return {kind: float(power_w) for kind, power_w in zip(kinds, powers_w, strict=True)}
