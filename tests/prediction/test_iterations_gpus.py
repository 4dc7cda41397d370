"""Iterations are predicted with what a GPU's file says, whatever the file is called."""

import shutil
from dataclasses import replace

import pytest
from helpers.builders import CONFIG
from helpers.iterations import LLAMA

from kareus.prediction.measured import MeasuredWorkloads
from kareus.prediction.workload_prediction import predict

SMALL = replace(LLAMA, layers=2, hidden=1024, ffn=4096, heads=8, dp=16, pp=1, tp=1, cp=1, chunks=1, num_microbatches=2)


@pytest.mark.parametrize("option", sorted(path.stem for path in (CONFIG / "gpu").glob("*.yaml")))
def test_a_copied_gpu_file_predicts_the_same(tmp_path, option):
    config = tmp_path / "config"
    shutil.copytree(CONFIG, config)
    shutil.copy(config / f"gpu/{option}.yaml", config / "gpu/copied.yaml")
    workloads = MeasuredWorkloads((), config)
    own, copied = (workloads.of(replace(SMALL, gpu=gpu)) for gpu in (option, "copied"))
    assert own.gpu == copied.gpu
    assert predict(own) == predict(copied)
