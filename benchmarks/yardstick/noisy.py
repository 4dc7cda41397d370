"""The default strategy on testbeds of more noise than it presumes, with that noise estimated and with it presumed."""

import dataclasses
import statistics
from collections.abc import Iterator
from unittest import mock

import numpy as np

from kareus.search import informed
from kareus.search.noise import Noise
from yardstick.runs import Instruments, search_problem, searched, true_costs
from yardstick.score import hypervolume_shares
from yardstick.subjects import Subject, search_config
from yardstick.truths import truth_of

LEVELS = (0.005, 0.02, 0.03)
"""Relative standard deviations of one measured time and of one measured power."""
KINDS = ("presumed", "estimated")


def noise_lines(subjects: list[Subject], seeds: int) -> Iterator[str]:
    """Yield one line for each level of noise and each way to reckon with it."""
    yield "noise %  noise is    share of exhaustive hypervolume %  measured  virtual s  ended by the budget"
    for level in LEVELS:
        for kind in KINDS:
            runs = [_run(subject, seed, level, kind) for subject in subjects for seed in range(seeds)]
            shares, measured, spent_s, cut = zip(*runs, strict=True)
            yield (
                f"{100 * level:7.1f}  {kind:<10}  {100 * statistics.median(shares):.2f} (lowest "
                f"{100 * min(shares):.2f}){'':12}{statistics.median(measured):10.1f}{statistics.median(spent_s):11.0f}"
                f"  {sum(cut)} of {len(cut)}"
            )


def _run(subject: Subject, seed: int, level: float, kind: str) -> tuple[float, int, float, bool]:
    """Return the final share, the measurements, the testbed's clock, and whether the budget ended the search."""
    testbed = dataclasses.replace(subject.workload.testbed, time_noise=level, power_noise=level)
    noisy = dataclasses.replace(subject, workload=dataclasses.replace(subject.workload, testbed=testbed))
    truth = truth_of(noisy.workload.gpu, seed)
    config = search_config("informed")
    reckoned = informed.noise_of if kind == "estimated" else lambda _, configured: Noise(configured, configured)
    with mock.patch.object(informed, "noise_of", reckoned):
        found = searched("informed", search_problem(noisy, config, seed), Instruments(noisy, truth, seed))
    candidates = np.array([trial.candidate for trial in found.trials])
    share = float(hypervolume_shares(true_costs(noisy, truth), candidates)[-1])
    stop = found.rounds[-1].stop
    spent_s = sum(round_.measuring_s for round_ in found.rounds)
    return share, len(candidates), spent_s, stop is not None and stop.is_cut_short
