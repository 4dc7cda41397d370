"""Training with sequence parallelism resumes exactly, and learns what training without it learns."""

from pathlib import Path

import pytest
from helpers.trainings import FAST, TEXT, losses, planned, tiny_workload, train_in_ranks

from kareus.frontiers.config import IterationConfig


def options(plan: Path, output: Path, iterations: int) -> tuple[object, ...]:
    return plan, "--data", TEXT, *FAST, "--final-rate", 0.01, "--iterations", iterations, "--output", output


@pytest.mark.slow
def test_training_on_shared_tokens_resumes_and_learns_the_same(tmp_path: Path) -> None:
    without = IterationConfig(include_update=False)
    shared, whole = (
        planned(tmp_path / name, tiny_workload(tp=2, sequence_parallel=is_shared, iteration=without))
        for name, is_shared in (("shared", True), ("whole", False))
    )
    train_in_ranks(2, *options(shared, tmp_path / "at-once", 4))
    train_in_ranks(2, *options(shared, tmp_path / "in-two", 2))
    assert "resumed after iteration 2 " in train_in_ranks(2, *options(shared, tmp_path / "in-two", 4))
    assert losses(tmp_path / "in-two") == losses(tmp_path / "at-once")
    train_in_ranks(2, *options(whole, tmp_path / "all-reduced", 4))
    assert losses(tmp_path / "all-reduced") == pytest.approx(losses(tmp_path / "at-once"), abs=1e-4)
