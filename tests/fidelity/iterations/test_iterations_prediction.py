"""`kareus predict` for other software: sweeps, refusals, and the GPU that is predicted on."""

from dataclasses import replace

import pytest
from helpers.builders import CONFIG
from helpers.iterations import LLAMA

from kareus.errors import ConfigError
from kareus.fidelity.iterations.predict import Predictor
from kareus.fidelity.iterations.prediction import predictions
from kareus.fidelity.iterations.workloads import IterationSubjects

SMALL = (
    "model=qwen3-1.7b", "parallelism.pp=1", "num_microbatches=2", "sequence_length=4096", "microbatch_size=1",
)  # fmt: skip


def _found(*overrides):
    return [(name, subject, found) for name, subject, found in predictions((*SMALL, *overrides), CONFIG)]


def test_numbers_of_gpus_are_swept():
    found = _found("software=nemo", "gpu=h100-sxm5-80gb", "parallelism.tp=1", "gpu.power_limit_w=300,700")
    assert [subject.workload.gpu.power_limit_w for _, subject, _ in found] == [300, 700]
    assert found[0][2].time_s > found[1][2].time_s


def test_measured_iterations_take_no_sweeps():
    with pytest.raises(ConfigError, match=r"gpu.power_limit_w=300,700: a sweep; measured iterations take one value"):
        IterationSubjects(("gpu.power_limit_w=300,700",), CONFIG).of(LLAMA)


def test_software_that_cannot_run_a_layout_is_refused():
    found = _found("software=megatron-2022,nemo", "parallelism=cp2tp4")
    assert [subject is None for _, subject, _ in found] == [True, False]
    assert "needs whole sequences; use cp=1" in found[0][2]


def test_one_predictor_tells_gpus_of_one_name_apart():
    ((_, subject, alone),) = _found("software=nemo", "parallelism.tp=2")
    workload = subject.workload
    others = (
        replace(workload, gpu=replace(workload.gpu, hbm_gb_per_s=workload.gpu.hbm_gb_per_s / 2)),
        replace(workload, testbed=replace(workload.testbed, default_collective_sm_count=1)),
    )
    shared = Predictor()
    assert shared.predict(subject) == alone
    for other in others:
        own = replace(subject, workload=other)
        assert shared.predict(own) == Predictor().predict(own)
        assert shared.predict(own).time_s > alone.time_s
