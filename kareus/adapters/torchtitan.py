"""Plans in torchtitan: a configuration whose pipeline follows one.

A module of yours, named by `--module`, has the configuration:

    from torchtitan.models.llama3.config_registry import llama3_8b
    from kareus.adapters.torchtitan import obey
    def planned():
        return obey(llama3_8b(), "plan/fastest.json", output="adapters/first")

torchtitan asks `ModelSpec.pipelining_fn` for the schedule of a rank, which is wrapped here; its `MetricsProcessor` also
logs the energy of an iteration and of a token. The order is that of `parallelism.pipeline_parallel_schedule_csv`, which
`kareus export --format torchtitan` writes.
"""

import dataclasses
from dataclasses import dataclass
from os import PathLike
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.trainer import Trainer

from kareus.adapters import pipelining
from kareus.adapters.pipelining import PlannedSchedule
from kareus.adapters.sources import PlanSource
from kareus.errors import ConfigError

ENERGY, PER_TOKEN = "energy/iteration(J)", "energy/token(J)"
"""Names of metrics: of all GPUs of the job, in the last iteration that is known."""


class EnergyMetrics(MetricsProcessor):  # type: ignore[misc]  # torchtitan has no types that mypy may follow
    """torchtitan's metrics, and the energy that the GPUs' counters have measured."""

    planned: ClassVar[PlannedSchedule | None] = None
    """Schedule of this process' rank that follows a plan."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):  # type: ignore[misc]
        """As torchtitan's."""

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        """Log as torchtitan does, on all ranks, with the energy of the last iteration that all ranks know."""
        super().log(step, global_avg_loss, global_max_loss, grad_norm, {**(extra_metrics or {}), **self._energy()})

    def _energy(self) -> dict[str, float]:
        if self.planned is None:
            return {}
        last = self.planned.driver.last
        energy_j = torch.nan if last is None or last.energy_j is None else last.energy_j
        device = next(self.model_parts[0].parameters()).device
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

    Args:
        config: with pipeline parallelism.
        plan: path of the plan, or a `PlanFolder` or `Profiling`.
        clocks: `planned`, or `dry` to log clocks and lock none.
        output: folder of the tables `microbatches` and `steps`; None to write none.

    Raises:
        ConfigError: the model has no pipeline.
    """
    spec = config.model_spec
    if spec is None or spec.pipelining_fn is None:
        name = "none" if spec is None else spec.name
        raise ConfigError(f"model_spec={name}: has no pipelining_fn, so that there is no pipeline to plan.")

    def planned(*positional: Any, **named: Any) -> Any:
        made = spec.pipelining_fn(*positional, **named)
        dims, training = named["parallel_dims"], named["training"]
        tokens = training.local_batch_size * training.seq_len * dims.dp_replicate * dims.dp_shard
        EnergyMetrics.planned = pipelining.obey(made[0], plan, clocks=clocks, output=output, tokens=tokens)
        return made

    config.model_spec = dataclasses.replace(spec, pipelining_fn=planned)
    settings = {field.name: getattr(config.metrics, field.name) for field in dataclasses.fields(config.metrics)}
    config.metrics = EnergyMetrics.Config(**settings)
    return config
