"""What a training is of: its plan, and the library that the plan's collectives were measured with."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.trainings import tiny_workload

from kareus.testbed.config import ClockPolicy, CudaCollectives, CudaConfig, GpuPool, TestbedKind
from kareus.training.job import TrainingJob

PLAN: Any = SimpleNamespace(method="kareus")


@pytest.mark.parametrize(
    ("measured_with", "plan", "expected"),
    [("mscclpp", PLAN, "mscclpp"), ("nccl", PLAN, "nccl"), ("loopback", PLAN, "nccl"), ("mscclpp", None, "nccl")],
)
def test_a_plan_is_trained_with_the_library_it_was_measured_with(measured_with: str, plan: Any, expected: str) -> None:
    cuda = CudaConfig(collectives=CudaCollectives(measured_with), clocks=ClockPolicy.LOCKED, pool=GpuPool.SAME)
    workload = tiny_workload(tp=2)
    testbed = dataclasses.replace(workload.testbed, kind=TestbedKind.CUDA, cuda=cuda)
    job = TrainingJob(workload=dataclasses.replace(workload, testbed=testbed), plan=plan)
    assert job.communicator == expected


def test_a_plan_of_the_simulated_testbed_is_trained_with_nccl() -> None:
    assert TrainingJob(workload=tiny_workload(tp=2), plan=PLAN).communicator == "nccl"
