"""What goes wrong in real trainers on CPUs, where no training without Kareus can be compared: a plan is missing or of
another job, or a user trains on after an exception.

Functions return what they saw, in words that are cells of the table of `helpers.trainer_events`. Trainers are imported
when they are asked for.
"""

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from helpers.driving import driven_plan
from helpers.model_gpu import ModelGpu, model_gpu
from helpers.piped import own_gpu
from helpers.titan_jobs import REGISTRY
from helpers.worlds import spawn, start_ranks
from kareus.adapters.recorder import table_path
from kareus.adapters.tables import STEPS
from kareus.artifacts.tables import read_table
from kareus.device.claims import FOLDER_VARIABLE
from kareus.errors import KareusError
from kareus.export.torchtitan import schedule_csv
from kareus.plans.file import write_plan

MISSING, EXCEPTION, MORE, FEWER = "missing plan", "exception in a step", "more replicas", "fewer replicas"
EVENTS = (MISSING, EXCEPTION, MORE, FEWER)
REFUSED = "refused before training, no clock set"
RAISED = "the trainer's own exception; trained on; clock restored"
KEPT = "trained by the clocks of passes; clock restored"
NO_PLAN = "takes no plan: trained at one clock; clock restored"
FAILING, ITERATIONS = 2, 4
"""Step that fails, counted from 0, and steps of a training."""
Cells = dict[str, str]


class UsersError(RuntimeError):
    """Raised by the network of a user."""


class FailingNetwork(nn.Module):
    """A network whose step fails once."""

    def __init__(self, gpu: ModelGpu) -> None:
        super().__init__()
        self.gpu, self.weight, self.steps = gpu, nn.Parameter(torch.ones(4)), 0
        self.fails = True

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.gpu.run(1.0)
        self.steps += 1
        if self.fails and self.steps == FAILING + 1:
            self.fails = False
            raise UsersError("out of memory")
        return {"loss": ((self.weight * input_ids.float() - labels.float()) ** 2).mean()}


ROWS = [{"input_ids": torch.arange(4), "labels": torch.arange(4) + 1}] * 16


@dataclass(frozen=True)
class Training:
    """A training by a plan."""

    close: Callable[[], None]
    step: Callable[[], Any]
    owner: Any
    inner: str
    """Method of `owner` that a step calls once it has begun, on all ranks before they wait for each other."""

    def fail(self) -> None:
        """Let a step fail, whose exception is the one of the trainer."""

        def raise_(*_: object, **__: object) -> None:
            raise UsersError("out of memory")

        setattr(self.owner, self.inner, raise_)
        with contextlib.suppress(UsersError):
            self.step()
            raise AssertionError("the exception of the trainer was lost")
        delattr(self.owner, self.inner)


def of_steps(train: Callable[[ModelGpu, FailingNetwork, str, Path], None], gpu: ModelGpu, folder: Path) -> Cells:
    """The cells of a trainer whose steps have one clock."""
    network = FailingNetwork(gpu)
    seen = {MISSING: _refused(lambda: train(gpu, network, "plan/missing.json", folder))}
    assert (network.steps, gpu.calls) == (0, [])
    with contextlib.suppress(UsersError):
        train(gpu, network, "min-energy", folder)
        raise AssertionError("the exception of the network was lost")
    train(gpu, network, "min-energy", folder)
    assert network.steps == FAILING + 1 + ITERATIONS
    assert gpu.calls[-1] == "reset"
    seen[EXCEPTION] = RAISED
    # A step is one instruction of every rank; what other starts of more or fewer ranks have written bars nothing.
    for event, ranks in ((MORE, 1), (FEWER, 8)):
        for rank in range(1, ranks):
            table = table_path(folder / "out", STEPS, rank)
            table.write_bytes(table_path(folder / "out", STEPS, 0).read_bytes())
        gpu.calls.clear()
        train(gpu, network, "min-energy", folder)
        assert gpu.calls[-1] == "reset"
        seen[event] = NO_PLAN
    return seen


def hugging_face(gpu: ModelGpu, network: FailingNetwork, goal: str, folder: Path) -> None:
    """Train some steps with the Trainer of transformers."""
    transformers = importlib.import_module("transformers")
    clock = importlib.import_module("kareus.adapters.hugging_face").TrainerClock(goal, output=folder / "out")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"), max_steps=ITERATIONS, per_device_train_batch_size=2, use_cpu=True,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    with _closed_as_pages_say(clock):
        transformers.Trainer(model=network, args=arguments, train_dataset=ROWS, callbacks=[clock]).train()


def lightning(gpu: ModelGpu, network: FailingNetwork, goal: str, folder: Path) -> None:
    """Train some steps with Lightning."""
    trainers = importlib.import_module("pytorch_lightning")

    class Module(trainers.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return self.network(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    clock = importlib.import_module("kareus.adapters.lightning").LightningClock(goal, output=folder / "out")
    trainer = trainers.Trainer(
        max_steps=ITERATIONS, callbacks=[clock], accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(ROWS, batch_size=2))


def megatron(rank: int, folder: Path) -> None:
    """The cells of Megatron-Core, by two replicas of one stage."""
    jobs = importlib.import_module("helpers.megatron_jobs")
    timers_of = importlib.import_module("kareus.adapters.megatron").planned_timers

    def make(plan: str, output: Path) -> Training:
        timers = timers_of(plan, None, microbatches=4, output=output)
        job = jobs.make_job(1, 1, 4)
        job.config.timers = timers
        return Training(timers.close, lambda: job.step(0, timers), job, "_forward")

    with jobs.megatron_on_cpu(1, 1):
        _of_plans(rank, folder, make, stages=1)


def torchtitan(rank: int, folder: Path) -> None:
    """The cells of torchtitan, by two stages; its own schedule is stepped as its trainer does."""
    titan = importlib.import_module("helpers.titan_jobs")
    sys.path.insert(0, str(folder))
    importlib.import_module("torchtitan.distributed.parallel_dims").device_type = "cpu"
    obey = importlib.import_module("kareus.adapters.torchtitan").obey

    def make(plan: str, output: Path) -> Training:
        config = titan.configured("plain")
        obey(config, plan, output=output)
        metrics = titan.metrics_of(config, titan.dims_of(config))
        made = titan.pipeline_of(config)
        return Training(metrics.close, lambda: titan.trained(made, 1), made[0], "_step_microbatches")

    _of_plans(rank, folder, make, stages=2)


OF_STEPS = {"Hugging Face": hugging_face, "Lightning": lightning}
OF_PLANS = {"Megatron-Core": megatron, "torchtitan": torchtitan}
RANKS = 2
BY_A_PLAN = [{MISSING: REFUSED, EXCEPTION: RAISED, MORE: KEPT, FEWER: KEPT}] * RANKS
"""The cells that are expected of a trainer by a plan, by rank."""


def cells_of(importer: Executor, trainer: str, folder: Path) -> list[Cells]:
    """Let every event happen to a trainer, on ranks forked from `importer`; return the cells that each rank saw."""
    if trainer in OF_STEPS:
        start_ranks(_of_steps, (trainer, folder), 1, importer)
    else:
        (folder / "planned.py").write_text(REGISTRY)
        (folder / "plan").mkdir()
        (folder / "plan/fastest_sequential+perseus.schedule.csv").write_text(schedule_csv(driven_plan(2, 4)))
        spawn(RANKS, OF_PLANS[trainer], folder, folder, importer=importer)
    texts = [(folder / str(rank) / "cells.txt").read_text() for rank in range(RANKS if trainer in OF_PLANS else 1)]
    return [dict(zip(EVENTS, text.splitlines(), strict=True)) for text in texts]


def _of_steps(rank: int, trainer: str, folder: Path) -> None:
    """Let every event happen to a trainer whose steps have one clock; leaves its cells in a file."""
    (folder / str(rank)).mkdir()
    os.environ[FOLDER_VARIABLE] = str(folder / "claims")
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the trainers, about themselves
        seen = of_steps(OF_STEPS[trainer], model_gpu(patched), folder)
    _leave(seen, folder / str(rank))


def _of_plans(rank: int, folder: Path, make: Callable[[str, Path], Training], stages: int) -> None:
    """Let every event happen to two ranks that follow plans; each leaves its cells in a file."""
    os.chdir(folder)
    own = folder / str(rank)
    os.environ[FOLDER_VARIABLE] = str(own / "claims")
    gpu = own_gpu(own, 0)
    seen = {MISSING: _refused(lambda: make(str(own / "missing.json"), folder / "none"))}
    assert gpu.calls() == []
    for event, gpus in ((EXCEPTION, 2), (MORE, 1), (FEWER, 8)):
        write_plan(own / "plan.json", driven_plan(stages, 4, gpus=gpus, update=True))
        training = make(str(own / "plan.json"), folder / event)
        for step in range(ITERATIONS):
            if event == EXCEPTION and step == FAILING:
                training.fail()
            training.step()
        training.close()
        assert gpu.calls()[-1] == "reset"
        assert len(read_table(table_path(folder / event, STEPS, rank), STEPS)) == ITERATIONS
        seen[event] = RAISED if event == EXCEPTION else KEPT
    _leave(seen, own)


def _leave(seen: Cells, folder: Path) -> None:
    (folder / "cells.txt").write_text("\n".join(seen[event] for event in EVENTS))


def _refused(run: Callable[[], object]) -> str:
    try:
        run()
    except KareusError as error:
        assert "\n" not in str(error)
        return REFUSED
    raise AssertionError("not refused")


@contextlib.contextmanager
def _closed_as_pages_say(callback: Any) -> Any:
    """The Trainer of transformers tells callbacks of no exception, so that a process that goes on closes the clock."""
    try:
        yield
    except UsersError:
        callback.clock.close()
        raise
