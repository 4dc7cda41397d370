"""Workloads of which nothing can overlap say so in one line."""

import pytest
from helpers.builders import CONFIG

from kareus.cli import main
from kareus.workload.config import NO_COLLECTIVES, NO_HALVES, nothing_to_overlap
from kareus.workload.resolve import resolve


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ([], None),
        (["microbatch_size=1"], NO_HALVES),
        (["microbatch_size=3"], NO_HALVES),
        (["microbatch_size=2"], None),
        (["model=qwen3-1.7b", "parallelism.tp=1", "parallelism.pp=4", "microbatch_size=2"], NO_COLLECTIVES),
    ],
)
def test_a_workload_says_why_nothing_overlaps(overrides, reason):
    (resolved,) = resolve(overrides, CONFIG)
    assert resolved.workload is not None, resolved.refusal
    assert nothing_to_overlap(resolved.workload) == reason


def test_resolve_says_it_in_one_line_for_each_workload(caplog):
    caplog.set_level("INFO")
    assert main(["resolve", "microbatch_size=1,2,3", "--config-dir", str(CONFIG)]) == 0
    said = [record.getMessage() for record in caplog.records if NO_HALVES in record.getMessage()]
    assert said == [f"llama3.2-3b_pp2-tp8_mbs{size}_seq4096_a100: {NO_HALVES}" for size in (1, 3)]
