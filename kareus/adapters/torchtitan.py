"""Plans in torchtitan: a configuration whose training follows one, with a pipeline or without.

A module of yours, named by `--module`, has the configuration:

    from torchtitan.models.llama3.config_registry import llama3_8b
    from kareus.adapters.torchtitan import obey
    def planned():
        return obey(llama3_8b(), "plan/fastest.json", output="adapters/first")

torchtitan asks `ModelSpec.pipelining_fn` for the schedule of a rank, which is wrapped here, and without a pipeline
calls `ModelSpec.post_optimizer_build_fn`, where the model and its optimizers get hooks; its `MetricsProcessor`, or
yours, also logs the energy of an iteration and of a token. The order of a pipeline is that of
`parallelism.pipeline_parallel_schedule_csv`, which `kareus export --format torchtitan` writes.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.trainer import Trainer

from kareus.adapters import fsdp, pipelining
from kareus.adapters.fsdp import PlannedTraining
from kareus.adapters.pipelining import PlannedSchedule
from kareus.adapters.power_cap import PowerCap, cap_power, lasting
from kareus.adapters.sources import PlanSource, check_source
from kareus.errors import ConfigError

ENERGY, PER_TOKEN = "energy/iteration(J)", "energy/token(J)"
"""Names of metrics: of all GPUs of the job, in the last iteration that is known."""


class PlannedJob:
    """What the parts know of each other that torchtitan builds, one after the other, from one configuration."""

    planned: PlannedSchedule | PlannedTraining | None = None
    """What of this rank follows the plan, once torchtitan has made it."""
    cap: PowerCap | None = None
    """What of this rank's GPU is set without a plan, once torchtitan has made the model."""
    training: Mapping[str, Any] = {}
    """Settings of the training as the command line left them, once torchtitan has made its metrics."""


class EnergyMetrics:
    """Stands before the `log` and `close` of a metrics processor; all else of it stays as it is."""

    def __init__(self, metrics: MetricsProcessor, job: PlannedJob) -> None:
        """Add the energies of a job to what is logged, and end its plan with the metrics."""
        self.job = job
        self._metrics = metrics
        self._log, self._close = metrics.log, metrics.close
        metrics.log, metrics.close = self.log, self.close

    def log(self, *positional: Any, **named: Any) -> None:
        """Log as the processor does, on all ranks, with the energy of the last iteration that all ranks know."""
        arguments = inspect.signature(self._log).bind(*positional, **named)
        arguments.arguments["extra_metrics"] = {**(arguments.arguments.get("extra_metrics") or {}), **self._energy()}
        self._log(*arguments.args, **arguments.kwargs)

    def close(self) -> None:
        """Restore the clock and write the tables: torchtitan closes its metrics also after an exception."""
        for part in (self.job.planned, self.job.cap):
            if part is not None:
                part.close()
        self._close()

    def _energy(self) -> dict[str, float]:
        if self.job.planned is None:
            return {}
        last = self.job.planned.driver.last
        energy_j = torch.nan if last is None or last.energy_j is None else last.energy_j
        device = next(self._metrics.model_parts[0].parameters()).device
        total_j = torch.tensor(energy_j, device=device)
        dist.all_reduce(total_j)  # not a number if one rank knows none
        if last is None or last.tokens is None or not total_j.isfinite():
            return {}
        return {ENERGY: total_j.item(), PER_TOKEN: total_j.item() / last.tokens}


def obey(
    config: Trainer.Config,
    plan: PlanSource,
    *,
    clocks: str = "planned",
    output: str | PathLike[str] | None = None,
) -> Trainer.Config:
    """Return a configuration of torchtitan whose training follows a plan; the one that is given is changed.

    A plan that the job cannot follow ends it before it trains, with an `EngineError`.

    Args:
        config: with pipeline parallelism or without, also where the command line decides that.
        plan: path of the plan, or a `PlanFolder` or `Profiling`.
        clocks: `planned`, or `dry` to log clocks and lock none.
        output: folder of the tables `microbatches` and `steps`; None to write none.

    Raises:
        ConfigError: the configuration has no model.
        KareusError: the plan is missing, or cannot be read.

    Example:
        >>> from kareus.adapters.torchtitan import obey
        >>> config = obey(config, "plan/fastest_sequential+perseus.json", clocks="dry", output="adapters/first")
    """
    spec = config.model_spec
    if spec is None:
        raise ConfigError("model_spec=none: there is no model to train by a plan.")
    check_source(plan)
    job = PlannedJob()

    def planned_schedule(*positional: Any, **named: Any) -> Any:
        made = spec.pipelining_fn(*positional, **named)
        dims, training = named["parallel_dims"], named["training"]
        tokens = training.local_batch_size * training.seq_len * dims.dp_replicate * dims.dp_shard
        job.planned = pipelining.obey(made[0], plan, clocks=clocks, output=output, tokens=tokens)
        return made

    def planned_training(optimizers: Any, model_parts: list[torch.nn.Module], parallel_dims: Any) -> None:
        if spec.post_optimizer_build_fn is not None:
            spec.post_optimizer_build_fn(optimizers, model_parts, parallel_dims)
        if not parallel_dims.pp_enabled:
            (model,) = model_parts
            microbatches, sequences = _step_of(job.training, parallel_dims)
            job.planned = fsdp.obey(
                model,
                optimizers,
                plan,
                microbatches=microbatches,
                clocks=clocks,
                output=output,
                tokens=sequences * job.training["seq_len"],
            )

    config.model_spec = dataclasses.replace(
        spec,
        pipelining_fn=None if spec.pipelining_fn is None else planned_schedule,
        post_optimizer_build_fn=planned_training,
    )
    config.metrics = _metrics_of(job, config.metrics)
    return config


def cap(config: Trainer.Config, limit: float | str) -> Trainer.Config:
    """Return a configuration of torchtitan whose training has a power limit; the one that is given is changed.

    It needs no plan. The limit is set when the optimizers are built, put back with the metrics, and a line of the log
    says whether it held, as of `kareus.adapters.power_cap.cap_power`. A plan of a power limit is for `obey`.

    Args:
        config: with pipeline parallelism or without.
        limit: of one GPU, in W, or profiles of the vendor's, as `profile=max-q+llm-training`.

    Raises:
        ConfigError: the configuration has no model, there is no such profile, or no GPU has such a limit.

    Example:
        >>> from kareus.adapters.torchtitan import cap
        >>> config = cap(config, 651)
    """
    spec = config.model_spec
    if spec is None:
        raise ConfigError("model_spec=none: there is no model to train.")
    lasting(limit)
    job = PlannedJob()

    def capped(optimizers: Any, model_parts: list[torch.nn.Module], parallel_dims: Any) -> None:
        if spec.post_optimizer_build_fn is not None:
            spec.post_optimizer_build_fn(optimizers, model_parts, parallel_dims)
        job.cap = cap_power(limit, model_parts[0])

    config.model_spec = dataclasses.replace(spec, post_optimizer_build_fn=capped)
    config.metrics = _metrics_of(job, config.metrics)
    return config


def _step_of(training: Mapping[str, Any], dims: Any) -> tuple[int, int]:
    """Return the microbatches of a step without a pipeline, and its sequences over all ranks, as torchtitan counts."""
    least = training["local_batch_size"] * dims.dp_replicate * dims.dp_shard
    sequences = training["global_batch_size"] if training["global_batch_size"] > 0 else least
    return sequences // least, sequences


def _metrics_of(job: PlannedJob, given: MetricsProcessor.Config) -> MetricsProcessor.Config:
    """Return a configuration that builds what the given one builds, and has it log energies."""
    kind: type[MetricsProcessor.Config] = type(given)

    @dataclass(kw_only=True, slots=True)  # as torchtitan asks of all its configurations
    class Config(kind):  # type: ignore[misc]  # a class that only a run knows
        def build(self, **parts: Any) -> Any:
            job.training = parts["config_dict"]["training"]
            metrics = kind.build(self, **parts)
            EnergyMetrics(metrics, job)
            return metrics

    return Config(**{field.name: getattr(given, field.name) for field in dataclasses.fields(given) if field.init})
