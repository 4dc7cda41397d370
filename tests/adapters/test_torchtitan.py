"""torchtitan by a plan: its own pipeline with our CSV, on two ranks, with and without the adapter."""

import importlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.code_blocks import python_blocks, run_block
from helpers.doc_examples import run_examples
from helpers.driving import driven_plan
from helpers.events import BY_A_PLAN, cells_of
from helpers.fake_device import FakeDevice
from helpers.model_gpu import model_gpu
from helpers.piped import check_followed, own_gpu
from helpers.titan_jobs import (
    MICROBATCHES,
    REGISTRY,
    SHARDED,
    STAGES,
    TOKENS,
    configured,
    dims_of,
    metrics_of,
    pipeline_of,
    sharded_of,
    trained,
    trained_sharded,
)
from helpers.worlds import importing, spawn, start_ranks

from kareus.adapters import power_cap, steps
from kareus.adapters.recorder import table_path
from kareus.adapters.steps import choose_clock
from kareus.adapters.tables import MICROBATCHES as MICROBATCHES_TABLE
from kareus.adapters.tables import STEPS
from kareus.artifacts.tables import read_table
from kareus.device.claims import FOLDER_VARIABLE
from kareus.errors import ConfigError, KareusError
from kareus.export.torchtitan import schedule_csv
from kareus.model.parallelism import FsdpSettings
from kareus.plans.file import write_plan

pytestmark = pytest.mark.slow
ITERATIONS, FEW = 4, 2
PLAN = driven_plan(STAGES, MICROBATCHES, update=True)
SHARDED_PLAN = replace(
    driven_plan(1, MICROBATCHES, gpus=STAGES, update=True), fsdp=FsdpSettings(gather_sms=8, reduce_sms=12, prefetch=2)
)


@pytest.fixture(scope="module")
def importer() -> Iterator[Executor]:
    """A process that has imported torchtitan, which takes seconds and warns, and from which all jobs are forked."""
    with importing(
        "torchtitan.models.llama3.config_registry", "kareus.adapters.torchtitan", "test_torchtitan"
    ) as importer:
        yield importer


def run(rank: int, folder: Path) -> None:
    """What each rank checks."""
    os.chdir(folder)
    os.environ[FOLDER_VARIABLE] = str(folder / "claims")
    sys.path.insert(0, str(folder))
    gpu = own_gpu(folder, rank)
    importlib.import_module("torchtitan.distributed.parallel_dims").device_type = "cpu"
    expected = trained(pipeline_of(configured("plain")), ITERATIONS)

    shown = run_examples(importlib.import_module("kareus.adapters.torchtitan").obey, {"config": configured("plain")})
    assert shown["config"].model_spec.pipelining_fn is not configured("plain").model_spec.pipelining_fn
    config = configured("by_plan")
    metrics = metrics_of(config, dims_of(config))
    made = pipeline_of(config)
    found = trained(made, ITERATIONS)
    assert len(found) == len(expected)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    check_metrics(metrics, made[1])
    metrics.close()
    check_followed(PLAN, rank, gpu, folder / "adapters/first", ITERATIONS)


def check_metrics(metrics: Any, parts: list[torch.nn.Module]) -> None:
    """The energy of all GPUs is among the metrics, and for each token, and the user's own metrics are there too."""
    ours = importlib.import_module("kareus.adapters.torchtitan")
    mine = importlib.import_module("planned").TeamMetrics
    assert type(metrics) is mine
    assert metrics.config.team == "here"
    logged: dict[str, float] = {}
    metrics.logger = SimpleNamespace(log=lambda found, step: logged.update(found), close=lambda: None)
    metrics.model_parts, metrics.num_flops_per_token = parts, 1
    metrics.data_loading_times = [0.0]
    metrics.log(1, 2.0, 2.0, 1.0, extra_metrics={"own": 3.0})
    last = metrics.log.__self__.job.planned.driver.last
    energies_j = [None] * STAGES
    dist.all_gather_object(energies_j, last.energy_j)
    assert logged["own"] == 3.0
    assert logged["members"] == len("here")
    assert abs(logged[ours.ENERGY] / sum(energies_j) - 1) < 1e-5
    assert abs(logged[ours.PER_TOKEN] * TOKENS / sum(energies_j) - 1) < 1e-5


def test_torchtitan_follows_a_plan_and_computes_the_same(tmp_path: Path, importer: Executor) -> None:
    (tmp_path / "plan").mkdir()
    write_plan(tmp_path / "plan/fastest_sequential+perseus.json", PLAN)
    (tmp_path / "plan/fastest_sequential+perseus.schedule.csv").write_text(schedule_csv(PLAN))
    shown = python_blocks("howto/torchtitan.md")[0].replace("llama3_8b()", "of_a_team()")
    (tmp_path / "planned.py").write_text(REGISTRY + shown.replace("llama3_8b", "llama3_debugmodel"))
    spawn(STAGES, run, tmp_path, tmp_path, importer=importer)


def test_what_goes_wrong_harms_no_training_of_torchtitan(tmp_path: Path, importer: Executor) -> None:
    assert cells_of(importer, "torchtitan", tmp_path) == BY_A_PLAN


def run_capped(rank: int, folder: Path) -> None:
    """What one rank checks: the limit is set with the optimizers, and put back with the metrics."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ[FOLDER_VARIABLE] = str(folder / "claims")
    gpu = FakeDevice(folder)
    power_cap.gpu_of = lambda device: gpu
    ours = importlib.import_module("kareus.adapters.torchtitan")
    config = run_examples(ours.cap, {"config": configured("plain")})["config"]
    metrics = metrics_of(config, dims_of(config))
    config.model_spec.post_optimizer_build_fn(None, [torch.nn.Linear(1, 1)], None)
    assert gpu.power_limit_w() == 651
    metrics.close()
    assert gpu.calls() == ["limit 651", "limit 700"]
    with pytest.raises(ConfigError, match="must be one to 4, each once"):
        ours.cap(configured("plain"), "profile=fast")


def test_torchtitan_has_a_power_limit_without_a_plan(tmp_path: Path, importer: Executor) -> None:
    (tmp_path / "planned.py").write_text(REGISTRY)
    start_ranks(run_capped, (tmp_path,), 1, importer)


def run_sharded(rank: int, folder: Path) -> None:
    """What each rank of a job without a pipeline checks: the same five lines, by torchtitan's own FSDP."""
    os.chdir(folder)
    os.environ[FOLDER_VARIABLE] = str(folder / "claims")
    sys.path.insert(0, str(folder))
    gpu = own_gpu(folder, rank)
    importlib.import_module("torchtitan.distributed.parallel_dims").device_type = "cpu"
    expected = trained_sharded(sharded_of(configured("plain", SHARDED)), FEW)
    config = configured("by_plan", SHARDED)
    metrics = metrics_of(config, dims_of(config))
    made = sharded_of(config)
    comms = [
        part._reduce_scatter_comm for b in made[1].layers.values() for part in b._get_fsdp_state()._fsdp_param_groups
    ]
    assert {comm.group.group_desc for comm in comms} == {"fsdp-12-sms"}
    found = trained_sharded(made, FEW)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    metrics.close()
    rows = read_table(table_path(folder / "adapters/first", MICROBATCHES_TABLE, rank), MICROBATCHES_TABLE)
    planned = [(k.microbatch, str(k.direction), i.frequency_mhz) for k, i in SHARDED_PLAN.stages[0].keyed]
    assert rows.select("microbatch", "direction", "frequency_mhz").rows() == planned * FEW
    tokens = read_table(table_path(folder / "adapters/first", STEPS, rank), STEPS)["tokens"].to_list()
    assert tokens == [2 * STAGES * TOKENS] * FEW
    assert gpu.calls()[-1] == "reset"


def test_torchtitan_follows_a_plan_without_a_pipeline_by_the_same_lines(tmp_path: Path, importer: Executor) -> None:
    write_plan(tmp_path / "plan/fastest_sequential+perseus.json", SHARDED_PLAN)
    shown = python_blocks("howto/torchtitan.md")[0].replace("llama3_8b()", "of_a_team()")
    (tmp_path / "planned.py").write_text(REGISTRY + shown.replace("llama3_8b", "llama3_debugmodel"))
    spawn(STAGES, run_sharded, tmp_path, tmp_path, importer=importer)


def refused(rank: int, folder: Path, plan: str) -> None:
    """Leave in a file what a job without a pipeline ends with, if it ends before it trains."""
    os.chdir(folder)
    config = importlib.import_module("torchtitan.models.llama3.config_registry").llama3_debugmodel()
    dims = SimpleNamespace(pp=1, pp_enabled=False, dp_replicate=1, dp_shard=1)
    try:
        config = importlib.import_module("kareus.adapters.torchtitan").obey(config, plan)
        metrics_of(config, dims)
        config.model_spec.post_optimizer_build_fn(torch.optim.SGD([torch.ones(1)]), [torch.nn.Linear(1, 1)], dims)
    except KareusError as error:
        Path("said").write_text(f"{error}\n")


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        ("missing.json", "missing.json: cannot be read (No such file or directory)"),
        ("plan.json", "plan 'fastest' of made-up: is of 2 stages, this job has 1; plan a workload with the layout of"),
    ],
)
def test_a_job_that_no_plan_can_be_followed_in_ends_before_it_trains(
    tmp_path: Path, importer: Executor, plan: str, line: str
) -> None:
    write_plan(tmp_path / "plan.json", PLAN)
    start_ranks(refused, (tmp_path, plan), 1, importer)
    said = (tmp_path / "said").read_text()
    assert said.startswith(line)
    assert said.count("\n") == 1


def step_by_one_clock(rank: int, folder: Path) -> None:
    """What the page prints for jobs without a pipeline."""
    os.chdir(folder)
    os.environ[FOLDER_VARIABLE] = str(folder / "claims")
    clocks: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        gpu = model_gpu(patched)
        patched.setattr(steps, "choose_clock", lambda *given, **named: clocks.append(choose_clock(*given, **named)))
        shown = python_blocks("howto/torchtitan.md")[2].replace("llama3_8b", "llama3_debugmodel")
        config = run_block(shown)["by_one_clock"]()
        config.optimizer.implementation = "for-loop"  # the other is for GPUs
        parts = [torch.nn.Linear(2, 2)]
        optimizers = config.optimizer.build(model_parts=parts)
        config.model_spec.post_optimizer_build_fn(optimizers, parts, None)
        for _ in range(3):
            gpu.run(1.0)
            parts[0](torch.ones(2)).sum().backward()
            optimizers.step()
        (clock,) = clocks
        clock.close()
    assert gpu.calls == ["lock 1410", "reset"]


def test_one_clock_is_chosen_for_the_steps_of_torchtitans_optimizers(tmp_path: Path, importer: Executor) -> None:
    start_ranks(step_by_one_clock, (tmp_path,), 1, importer)
    assert len(read_table(table_path(tmp_path / "adapters/first", STEPS, 0), STEPS)) == 3
