"""torchtitan by a plan: its own pipeline with our CSV, on two ranks, with and without the adapter."""

import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.code_blocks import python_blocks
from helpers.driving import driven_plan
from helpers.piped import check_followed, own_gpu
from helpers.worlds import spawn

from kareus.device.claims import FOLDER_VARIABLE
from kareus.export.torchtitan import schedule_csv
from kareus.plans.file import write_plan

STAGES, MICROBATCHES, LENGTH, ITERATIONS = 2, 4, 16, 4
PLAN = driven_plan(STAGES, MICROBATCHES, update=True)
TOKENS = MICROBATCHES * LENGTH
SETTINGS = {
    "parallelism.pipeline_parallel_degree": STAGES,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.pipeline_parallel_schedule_csv": "plan/fastest_sequential+perseus.schedule.csv",
    "training.local_batch_size": MICROBATCHES,
    "training.seq_len": LENGTH,
    "training.disable_cuda_graphs": True,
}


def run(rank: int, folder: Path) -> None:
    """What each rank checks; only ranks import torchtitan, which takes seconds and warns."""
    os.chdir(folder)
    os.environ[FOLDER_VARIABLE] = str(folder / "claims")
    sys.path.insert(0, str(folder))
    gpu = own_gpu(folder, rank)
    importlib.import_module("torchtitan.distributed.parallel_dims").device_type = "cpu"
    expected, *_ = trained(configured("plain"), rank)

    config = configured("by_plan")
    found, parts, dims = trained(config, rank)
    assert len(found) == len(expected)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    check_metrics(config, parts, dims)

    importlib.import_module("kareus.adapters.torchtitan").EnergyMetrics.planned.close()
    check_followed(PLAN, rank, gpu, folder / "adapters/first", ITERATIONS)


def configured(name: str) -> Any:
    """A configuration as torchtitan's command line reads it, made for CPUs."""
    manager = importlib.import_module("torchtitan.config.manager").ConfigManager()
    flags = [f"--{key}={value}" if value is not True else f"--{key}" for key, value in SETTINGS.items()]
    config = manager.parse_args(["--module", "planned", "--config", name, *flags])
    plain_attention = importlib.import_module("torchtitan.models.common.attention").ScaledDotProductAttention
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = plain_attention.Config()  # the others are compiled for GPUs
    return config


def trained(config: Any, rank: int) -> tuple[list[torch.Tensor], list[torch.nn.Module], Any]:
    """Train as torchtitan does: losses and weights, then the model's parts and the meshes."""
    dims = importlib.import_module("torchtitan.distributed").ParallelDims.from_config(config.parallelism, STAGES)
    losses_of = importlib.import_module("torchtitan.components.loss").CrossEntropyLoss
    spec = config.model_spec
    torch.manual_seed(0)
    spec.model.update_from_config(config=config)
    model = spec.model.build()
    model.init_weights(buffer_device=torch.device("cpu"))
    schedule, parts, is_first, is_last = spec.pipelining_fn(
        model,
        parallel_dims=dims,
        training=config.training,
        parallelism=config.parallelism,
        compile_config=config.compile,
        ac_config=config.activation_checkpoint,
        dump_folder=config.dump_folder,
        device=torch.device("cpu"),
        model_config=spec.model,
        parallelize_fn=lambda part, **settings: part,
        loss_fn=losses_of.Config(global_vocab_size=2048).build(),
    )
    assert type(schedule).__name__ == "_PipelineScheduleRuntime"
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.1)
    found = []
    for _ in range(ITERATIONS):
        tokens = torch.randint(0, 2048, (MICROBATCHES, LENGTH + 1))
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        schedule.step(
            *((tokens[:, :-1],) if is_first else ()),
            target=tokens[:, 1:] if is_last else None,
            losses=losses if is_last else None,
            loss_kwargs={"global_valid_tokens": torch.tensor(float(TOKENS))},
            return_outputs=False,
        )
        optimizer.step()
        found += [loss.detach() for loss in losses]
    return [*found, *(p.detach().clone() for part in parts for p in part.parameters())], parts, dims


def check_metrics(config: Any, parts: list[torch.nn.Module], dims: Any) -> None:
    """The energy of all GPUs is among the metrics, and for each token."""
    metrics_of = importlib.import_module("torchtitan.components.metrics")
    ours = importlib.import_module("kareus.adapters.torchtitan")
    memory = metrics_of.DeviceMemStats(*[0.0] * len(metrics_of.DeviceMemStats._fields))
    monitor = SimpleNamespace(device_name="CPU", reset_peak_stats=lambda: None, get_peak_stats=lambda: memory)
    metrics_of.build_device_memory_monitor = lambda: monitor  # torchtitan's asks CUDA
    metrics = config.metrics.build(parallel_dims=dims)
    logged: dict[str, float] = {}
    metrics.logger = SimpleNamespace(log=lambda found, step: logged.update(found))
    metrics.color, metrics.model_parts, metrics.num_flops_per_token = metrics_of.NoColor(), parts, 1
    metrics.data_loading_times = [0.0]
    metrics.log(1, 2.0, 2.0, 1.0, extra_metrics={"own": 3.0})
    last = metrics.planned.driver.last
    energies_j = [None] * STAGES
    dist.all_gather_object(energies_j, last.energy_j)
    assert logged["own"] == 3.0
    assert abs(logged[ours.ENERGY] / sum(energies_j) - 1) < 1e-5
    assert abs(logged[ours.PER_TOKEN] * TOKENS / sum(energies_j) - 1) < 1e-5


PLAIN = """
from torchtitan.models.llama3.config_registry import llama3_debugmodel as plain
"""


@pytest.mark.slow
def test_torchtitan_follows_a_plan_and_computes_the_same(tmp_path: Path) -> None:
    (tmp_path / "plan").mkdir()
    write_plan(tmp_path / "plan/fastest_sequential+perseus.json", PLAN)
    (tmp_path / "plan/fastest_sequential+perseus.schedule.csv").write_text(schedule_csv(PLAN))
    shown = python_blocks("howto/torchtitan.md")[0].replace("llama3_8b", "llama3_debugmodel")
    (tmp_path / "planned.py").write_text(shown + PLAIN)
    spawn(STAGES, run, tmp_path, tmp_path)
