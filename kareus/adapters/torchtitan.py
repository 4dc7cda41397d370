"""Plans in torchtitan: a configuration whose pipeline follows one.

A module of yours, named by `--module`, has the configuration:

    from torchtitan.models.llama3.config_registry import llama3_8b
    from kareus.adapters.torchtitan import obey
    def planned():
        return obey(llama3_8b(), "plan/fastest.json", output="adapters/first")

torchtitan asks `ModelSpec.pipelining_fn` for the schedule of a rank, which is wrapped here; its `MetricsProcessor`, or
yours, also logs the energy of an iteration and of a token. The order is that of
`parallelism.pipeline_parallel_schedule_csv`, which `kareus export --format torchtitan` writes.
"""

import dataclasses
import inspect
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.trainer import Trainer

from kareus.adapters import pipelining
from kareus.adapters.pipelining import PlannedSchedule
from kareus.adapters.sources import PlanSource, check_source
from kareus.errors import ConfigError

ENERGY, PER_TOKEN = "energy/iteration(J)", "energy/token(J)"
"""Names of metrics: of all GPUs of the job, in the last iteration that is known."""


class PlannedJob:
    """What the parts know of each other that torchtitan builds, one after the other, from one configuration."""

    planned: PlannedSchedule | None = None
    """Schedule of this rank that follows the plan, once torchtitan has made it."""


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
        if self.job.planned is not None:
            self.job.planned.close()
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
    """Return a configuration of torchtitan whose pipeline follows a plan; the one that is given is changed.

    A job that then runs without a pipeline ends before it trains, with a `ConfigError`.

    Args:
        config: with pipeline parallelism, or to be given it on the command line.
        plan: path of the plan, or a `PlanFolder` or `Profiling`.
        clocks: `planned`, or `dry` to log clocks and lock none.
        output: folder of the tables `microbatches` and `steps`; None to write none.

    Raises:
        ConfigError: torchtitan cannot make a pipeline of the model.
        KareusError: the plan is missing, or cannot be read.

    Example:
        >>> from kareus.adapters.torchtitan import obey
        >>> config = obey(config, "plan/fastest_sequential+perseus.json", clocks="dry", output="adapters/first")
    """
    spec = config.model_spec
    if spec is None or spec.pipelining_fn is None:
        name = "none" if spec is None else spec.name
        raise ConfigError(f"model_spec={name}: has no pipelining_fn, so that there is no pipeline to plan.")
    check_source(plan)
    job = PlannedJob()

    def planned(*positional: Any, **named: Any) -> Any:
        made = spec.pipelining_fn(*positional, **named)
        dims, training = named["parallel_dims"], named["training"]
        tokens = training.local_batch_size * training.seq_len * dims.dp_replicate * dims.dp_shard
        job.planned = pipelining.obey(made[0], plan, clocks=clocks, output=output, tokens=tokens)
        return made

    config.model_spec = dataclasses.replace(spec, pipelining_fn=planned)
    config.metrics = _metrics_of(job, config.metrics)
    return config


def _metrics_of(job: PlannedJob, given: MetricsProcessor.Config) -> MetricsProcessor.Config:
    """Return a configuration that builds what the given one builds, and has it log energies."""
    kind: type[MetricsProcessor.Config] = type(given)

    @dataclass(kw_only=True, slots=True)  # as torchtitan asks of all its configurations
    class Config(kind):  # type: ignore[misc]  # a class that only a run knows
        def build(self, **parts: Any) -> Any:
            _check_pipeline(parts["parallel_dims"])
            metrics = kind.build(self, **parts)
            EnergyMetrics(metrics, job)
            return metrics

    return Config(**{field.name: getattr(given, field.name) for field in dataclasses.fields(given) if field.init})


def _check_pipeline(parallel_dims: Any) -> None:
    """Check that a job has a pipeline; without one torchtitan asks for no schedule, and no plan is read.

    Raises:
        ConfigError: it has none.
    """
    if not parallel_dims.pp_enabled:
        raise ConfigError(
            f"pipeline_parallel_degree={parallel_dims.pp}: this job has no pipeline that a plan could be followed in; "
            "choose one clock for its steps by kareus.adapters.steps.choose_clock (docs/howto/torchtitan.md)."
        )
