"""A training whose replicas share out the weights is that of replicas that hold them, from its checkpoints too."""

import dataclasses
import shutil
from pathlib import Path

import pytest
from helpers.trainings import FAST, losses, planned, tiny_workload, train_in_ranks

from kareus.frontiers.config import IterationConfig
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import FsdpSettings, Sharding
from kareus.workload.config import Workload

COMMON = ("--iterations", 4, "--checkpoint-every", 2, "--keep", 9, "--data", "synthetic", *FAST)


def workload(sharding: Sharding) -> Workload:
    whole = tiny_workload(
        dp=2, recomputation=Recomputation.FULL, iteration=IterationConfig(include_update=False), num_microbatches=2
    )
    settings = FsdpSettings(gather_sms=4, reduce_sms=8, prefetch=2) if sharding is Sharding.FULL else FsdpSettings()
    parallelism = dataclasses.replace(whole.parallelism, sharding=sharding, fsdp=settings)
    return dataclasses.replace(whole, parallelism=parallelism)


@pytest.mark.slow
def test_shared_out_weights_train_and_resume_as_whole_ones(tmp_path: Path) -> None:
    found = {}
    for sharding in (Sharding.OPTIMIZER, Sharding.FULL):
        folder = tmp_path / sharding
        plan = planned(folder, workload(sharding))
        train_in_ranks(2, plan, *COMMON, "--output", folder / "run")
        found[sharding] = losses(folder / "run")
    assert found[Sharding.FULL] == pytest.approx(found[Sharding.OPTIMIZER], rel=1e-5)
    shutil.rmtree(folder / "run/checkpoints/iteration-00000004")
    assert "resumed after iteration 2" in train_in_ranks(2, plan, *COMMON, "--output", folder / "run")
    assert losses(folder / "run") == found[Sharding.FULL]
