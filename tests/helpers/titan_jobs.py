"""torchtitan's own pipeline of two stages, or its FSDP over two ranks, on CPUs, from a configuration of a user."""

import importlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

STAGES, MICROBATCHES, LENGTH = 2, 4, 16
TOKENS = MICROBATCHES * LENGTH
SETTINGS = {
    "parallelism.pipeline_parallel_degree": STAGES,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.pipeline_parallel_schedule_csv": "plan/fastest_sequential+perseus.schedule.csv",
    "training.local_batch_size": MICROBATCHES,
    "training.seq_len": LENGTH,
    "training.disable_cuda_graphs": True,
}
SHARDED = {
    "parallelism.data_parallel_shard_degree": STAGES,
    "parallelism.spmd_backend": "partial_dtensor",
    "training.local_batch_size": 2,
    "training.global_batch_size": 2 * STAGES * MICROBATCHES,
    "training.seq_len": LENGTH,
    "training.disable_cuda_graphs": True,
}
"""As `SETTINGS`, without a pipeline: as many microbatches by gradient accumulation."""
REGISTRY = '''
from dataclasses import dataclass
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.models.llama3.config_registry import llama3_debugmodel as plain

class TeamMetrics(MetricsProcessor):
    """A user's own, with a field and a method of its own."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        team: str = "nobody"

    def log(self, step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=None):
        own = {"members": len(self.config.team)}
        super().log(step, global_avg_loss, global_max_loss, grad_norm, {**(extra_metrics or {}), **own})

def of_a_team():
    config = plain()
    config.metrics = TeamMetrics.Config(team="here", disable_color_printing=True)
    return config
'''
"""A module of the user, as far as the page does not print it."""


def configured(name: str, settings: Mapping[str, Any] = SETTINGS) -> Any:
    """A configuration as torchtitan's command line reads it, made for CPUs."""
    manager = importlib.import_module("torchtitan.config.manager").ConfigManager()
    flags = [f"--{key}={value}" if value is not True else f"--{key}" for key, value in settings.items()]
    config = manager.parse_args(["--module", "planned", "--config", name, *flags])
    plain_attention = importlib.import_module("torchtitan.models.common.attention").ScaledDotProductAttention
    model = config.model_spec.model
    model.layers = model.layers[:STAGES]  # of six
    for layer in model.layers:
        layer.attention.inner_attention = plain_attention.Config()  # the others are compiled for GPUs
    return config


def dims_of(config: Any) -> Any:
    """The meshes of a configuration."""
    return importlib.import_module("torchtitan.distributed").ParallelDims.from_config(config.parallelism, STAGES)


def pipeline_of(config: Any) -> tuple[Any, list[torch.nn.Module], bool, bool]:
    """A schedule as torchtitan makes it, the model's parts, and whether they are the first and the last."""
    dims = dims_of(config)
    losses_of = importlib.import_module("torchtitan.components.loss").CrossEntropyLoss
    spec = config.model_spec
    torch.manual_seed(0)
    spec.model.update_from_config(config=config)
    model = spec.model.build()
    model.init_weights(buffer_device=torch.device("cpu"))
    made = spec.pipelining_fn(
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
    assert type(made[0]).__name__ == "_PipelineScheduleRuntime"
    return made


def sharded_of(config: Any) -> tuple[Any, torch.nn.Module, Any]:
    """The optimizers of a model that torchtitan has sharded, the model, and its loss, as its trainer makes them."""
    dims, spec = dims_of(config), config.model_spec
    torch.manual_seed(0)
    spec.model.update_from_config(config=config)
    model = spec.parallelize_fn(
        spec.model.build(),
        parallel_dims=dims,
        training=config.training,
        parallelism=config.parallelism,
        compile_config=config.compile,
        ac_config=config.activation_checkpoint,
        dump_folder=config.dump_folder,
    )
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_force_sum_reduction_for_comms(True)  # gloo has no sum that is scaled before
    model.init_weights(buffer_device=torch.device("cpu"))
    config.optimizer.implementation = "for-loop"  # the other is for GPUs
    optimizers = config.optimizer.build(model_parts=[model])
    if spec.post_optimizer_build_fn is not None:
        spec.post_optimizer_build_fn(optimizers, [model], dims)
    losses_of = importlib.import_module("torchtitan.components.loss").CrossEntropyLoss
    return optimizers, model, losses_of.Config(global_vocab_size=2048).build()


def trained_sharded(made: tuple[Any, torch.nn.Module, Any], iterations: int) -> list[torch.Tensor]:
    """Train as torchtitan does without a pipeline: losses, then this rank's shares of the weights."""
    optimizers, model, loss_of = made
    found = []
    for _ in range(iterations):
        optimizers.zero_grad()
        for _ in range(MICROBATCHES):
            tokens = torch.randint(0, 2048, (2, LENGTH + 1))
            loss, _ = loss_of(model(tokens[:, :-1]), tokens[:, 1:], torch.tensor(float(TOKENS)))
            loss.backward()
            found.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step()
        with torch.no_grad():  # as its validator
            model(tokens[:, :-1])
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()  # the evaluation leaves some gathered
    return [*found, *(p.to_local().detach().clone() for p in model.parameters())]


def trained(made: tuple[Any, list[torch.nn.Module], bool, bool], iterations: int) -> list[torch.Tensor]:
    """Train as torchtitan does: losses, then weights."""
    schedule, parts, is_first, is_last = made
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.1)
    found = []
    for _ in range(iterations):
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
    return [*found, *(p.detach().clone() for part in parts for p in part.parameters())]


def metrics_of(config: Any, dims: Any) -> Any:
    """The metrics that torchtitan builds from a configuration before it makes its pipeline."""
    components = importlib.import_module("torchtitan.components.metrics")
    memory = components.DeviceMemStats(*[0.0] * len(components.DeviceMemStats._fields))
    monitor = SimpleNamespace(device_name="CPU", reset_peak_stats=lambda: None, get_peak_stats=lambda: memory)
    components.build_device_memory_monitor = lambda: monitor  # torchtitan's asks CUDA
    return config.metrics.build(parallel_dims=dims, config_dict=config.to_dict())
