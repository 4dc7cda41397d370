"""Powers of instructions that are shorter than the period of the energy counter."""

import dataclasses

import numpy as np
import pytest

from kareus.adapters.attribution import kind_powers_w
from kareus.adapters.records import InstructionRecord, IterationRecord
from kareus.adapters.sampler import PERIOD_S
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction

POWER_W = {Direction.FORWARD: 300.0, Direction.BACKWARD: 360.0}
TIME_S = {Direction.FORWARD: 0.07, Direction.BACKWARD: 0.13}
WAITING_W = 80.0


def record_of(microbatches, gap_s, period_s=0.1):
    """An iteration that alternates forwards and backwards with gaps between, and its counter."""
    instructions, spans, now_s = [], [], 0.0
    for microbatch in range(microbatches):
        for direction, power_w in POWER_W.items():
            key = InstructionKey(0, 0, microbatch, direction)
            instructions.append(
                InstructionRecord(
                    key=key,
                    start_s=now_s,
                    time_s=TIME_S[direction],
                    energy_j=None,
                    frequency_mhz=1200,
                    observed_mhz=1200,
                )
            )
            spans += [(now_s + TIME_S[direction], power_w), (now_s + TIME_S[direction] + gap_s, WAITING_W)]
            now_s = spans[-1][0]
    ends_s, powers_w = np.array(spans).T
    energies_j = np.concatenate(([0.0], np.cumsum(np.diff(ends_s, prepend=0.0) * powers_w)))
    moved_s = np.arange(0.03, now_s, period_s)
    seen_s = moved_s + np.random.default_rng(0).uniform(-PERIOD_S / 2, PERIOD_S / 2, len(moved_s))
    counted_j = np.interp(moved_s, np.concatenate(([0.0], ends_s)), energies_j)
    return IterationRecord(
        iteration=0,
        selector="profile",
        time_s=now_s,
        energy_j=None,
        tokens=None,
        frequency_mhz=1200,
        observed_mhz=1200,
        instructions=tuple(instructions),
        counter=tuple(zip(seen_s.tolist(), counted_j.tolist(), strict=True)),
    )


def powers_w(record, waiting_w=WAITING_W, skipped=0):
    return {kind.direction: power_w for kind, power_w in kind_powers_w(record, waiting_w, skipped=skipped).items()}


@pytest.mark.parametrize("gap_s", [0.0, 0.001, 0.05])
@pytest.mark.parametrize("skipped", [0, 1])
def test_powers_are_found_though_the_counter_is_seen_late(gap_s, skipped):
    assert powers_w(record_of(60, gap_s, 0.103), skipped=skipped) == pytest.approx(POWER_W, rel=0.02)


def test_a_wrong_power_of_waiting_hardly_matters_in_short_gaps():
    right, wrong = (powers_w(record_of(400, 0.001, 0.103), waiting_w) for waiting_w in (WAITING_W, WAITING_W + 40))
    assert wrong == pytest.approx(right, rel=0.005)


def test_a_counter_that_hardly_moves_tells_nothing():
    assert kind_powers_w(record_of(12, 0.0, period_s=1.0), WAITING_W) is None


def test_a_counter_in_step_with_the_instructions_gives_their_mean():
    mean_w = sum(power_w * TIME_S[d] for d, power_w in POWER_W.items()) / sum(TIME_S.values())
    assert powers_w(record_of(100, 0.0, period_s=0.2)) == pytest.approx(dict.fromkeys(POWER_W, mean_w), rel=0.01)


def test_a_counter_that_is_nearly_in_step_still_tells_powers_apart():
    assert powers_w(record_of(100, 0.0, period_s=0.1)) == pytest.approx(POWER_W, rel=0.05)


def test_a_counter_without_a_period_is_taken_as_it_is_seen():
    record = record_of(400, 0.0, 0.103)
    kept = np.random.default_rng(1).random(len(record.counter)) < 0.5
    shifted = [(s + 0.04 * np.sin(s), j) for (s, j), keep in zip(record.counter, kept, strict=True) if keep]
    found = powers_w(dataclasses.replace(record, counter=tuple(shifted)))
    assert found == pytest.approx(POWER_W, rel=0.2)
