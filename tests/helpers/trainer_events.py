"""What becomes of a training when something happens amid a step, in each trainer, with Kareus and without it.

    PYTHONPATH=tests python -m helpers.trainer_events    # prints the table, trainer x event

Every training is a process of its own on a CPU with a made-up GPU, forked from one that has imported the trainer. A
trainer is a function of `Training`, which calls `in_step` amid each step and `saved` with what it saves; an event is a
function of `Training`, too. Rows of events that no training without Kareus has are of `helpers.events`.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader, Dataset

from helpers import events
from helpers.driving import driven_plan
from helpers.fake_device import FakeDevice, wait_until
from helpers.worlds import exit_code, importing
from kareus.adapters.recorder import table_path
from kareus.adapters.records import DRIVER
from kareus.adapters.tables import STEPS as STEPS_TABLE
from kareus.artifacts.tables import read_table
from kareus.device.claims import FOLDER_VARIABLE
from kareus.plans.file import write_plan

STEPS, EVENT_STEP, WIDTH = 12, 4, 8
SWEEP = {"steps_per_clock": 1, "clocks_mhz": (1410, 1200, 900)}
"""The clock changes from the eighth step on."""
REFUSED_STEP, NOTED_S = 10, 0.05
"""Step in which whatever was asked for until then has been refused, where no clock may be set, and time until
the thread that was refused has noted that."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a training."""

    ended: str
    """`normally`, `exit N` or `signal N`, or the name of an exception."""
    saved: str = "nothing"
    """Number of the step that is saved, and a hash of the weights."""

    def __str__(self) -> str:
        return f"{self.ended}, saved {self.saved}"


@dataclass(kw_only=True)
class Training:
    """One training, in its own process."""

    folder: Path
    has_kareus: bool
    happen: Callable[["Training"], None]
    gpu: FakeDevice
    steps: int = 0
    outcome: list[Outcome] = field(default_factory=list)
    noticed: Callable[[], bool] = lambda: True
    """Whether the trainer has seen a signal that it is told of by another thread."""

    def in_step(self) -> None:
        """Count a step that has begun, and have the event happen in the one that it belongs to."""
        self.steps += 1
        if self.steps == EVENT_STEP:
            if self.has_kareus:
                wait_until(self.gpu.calls)  # another thread locks clocks, and steps take a millisecond
            self.happen(self)
        if self.steps == REFUSED_STEP and self.has_kareus and not self.gpu.allowed:
            wait_until(self.gpu.refused.exists)
            time.sleep(NOTED_S)

    def saved(self, step: int, weights: Iterable[Tensor]) -> None:
        digest = hashlib.sha256(b"".join(w.detach().numpy().tobytes() for w in weights)).hexdigest()[:8]
        self.outcome = [Outcome(ended="normally", saved=f"step {step} ({digest})")]


class Model(nn.Module):
    """A network that an event may happen in."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.training_, self.linear = training, nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.training_.in_step()
        return {"loss": (self.linear(input_ids) - labels).square().mean()}


class Numbers(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        numbers = torch.arange(WIDTH) * 0.1 + item % 7
        return {"input_ids": numbers, "labels": numbers + 1}


class Notified:
    """A handler as Megatron-LM's `--exit-signal-handler`: set at the start, looked at after each step."""

    def __init__(self) -> None:
        self.got = False
        signal.signal(signal.SIGTERM, self._take)

    def _take(self, *_: Any) -> None:
        self.got = True


def hugging_face(training: Training) -> None:
    """Its `enable_jit_checkpoint` saves on SIGTERM."""
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415 - takes seconds, likewise below
    from transformers.trainer_jit_checkpoint import JITCheckpointCallback  # noqa: PLC0415

    from kareus.adapters.hugging_face import TrainerClock  # noqa: PLC0415

    arguments = TrainingArguments(
        output_dir=str(training.folder / "out"), max_steps=STEPS, use_cpu=True, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, enable_jit_checkpoint=True,
    )  # fmt: skip
    model = Model(training)
    callbacks = [TrainerClock("min-energy", output=training.folder / "tables", **SWEEP)] if training.has_kareus else []
    trainer = Trainer(model=model, args=arguments, train_dataset=Numbers(), callbacks=callbacks)
    (jit,) = (c.jit_manager for c in trainer.callback_handler.callbacks if isinstance(c, JITCheckpointCallback))
    jit.kill_wait = 0
    training.noticed = lambda: jit.is_checkpoint_requested
    trainer.train()
    if trainer.state.global_step == STEPS:
        training.saved(STEPS, model.parameters())
    for path in (training.folder / "out").glob("checkpoint-*/model.safetensors"):
        from safetensors.torch import load_file  # noqa: PLC0415

        training.saved(int(path.parent.name.rpartition("-")[2]), load_file(path).values())


def lightning(training: Training) -> None:
    """Its `OnExceptionCheckpoint` saves what the exception that it raises after a SIGTERM ends."""
    import pytorch_lightning as pl  # noqa: PLC0415
    from pytorch_lightning.callbacks import OnExceptionCheckpoint  # noqa: PLC0415

    from kareus.adapters.lightning import LightningClock  # noqa: PLC0415

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(training)

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    callbacks: list[Any] = [OnExceptionCheckpoint(training.folder, "last")]
    if training.has_kareus:
        callbacks.append(LightningClock("min-energy", output=training.folder / "tables", **SWEEP))
    trainer = pl.Trainer(
        max_steps=STEPS, callbacks=callbacks, accelerator="cpu", logger=False, enable_progress_bar=False,
        default_root_dir=training.folder, enable_model_summary=False,
    )  # fmt: skip
    module = Module()
    try:
        trainer.fit(module, DataLoader(Numbers(), batch_size=2))
        training.saved(trainer.global_step, module.parameters())
    finally:
        for path in training.folder.glob("last*.ckpt"):
            last = torch.load(path, weights_only=True)
            training.saved(last["global_step"], last["state_dict"].values())


def own_loop(training: Training, handler: Notified | None) -> None:
    from kareus.adapters.steps import choose_clock  # noqa: PLC0415

    model = Model(training)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if training.has_kareus:
        choose_clock("min-energy", optimizer, output=training.folder / "tables", **SWEEP)  # type: ignore[arg-type]
    for step, batch in enumerate(DataLoader(Numbers(), batch_size=2), 1):
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
        if step == STEPS or (handler is not None and handler.got):
            training.saved(step, model.parameters())
            return


def megatron(training: Training) -> None:
    """Megatron-Core in a loop that ends as Megatron-LM's does, whose handler is set before the model is made."""
    from helpers.megatron_jobs import make_job, megatron_on_cpu  # noqa: PLC0415
    from kareus.adapters.megatron import planned_timers  # noqa: PLC0415

    handler = Notified()
    with megatron_on_cpu(1, 1):
        job = make_job(1, 1, 4)
        if training.has_kareus:
            plan = _plan(training)
            job.config.timers = planned_timers(plan, None, microbatches=4, output=training.folder / "tables")
        weights = list(job.chunks[0].parameters())
        for step, _ in enumerate(_steps(handler, training, weights), 1):
            job.step(step)


def pipelining(training: Training) -> None:
    """PyTorch's pipeline, by which torchtitan runs; a loop that handles signals after each step."""
    from kareus.adapters.pipelining import obey  # noqa: PLC0415

    handler = Notified()
    torch.manual_seed(0)
    stage = PipelineStage(nn.Linear(WIDTH, WIDTH), 0, 1, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda output, target: (output - target).square().mean())
    if training.has_kareus:
        obey(schedule, _plan(training), output=training.folder / "tables")
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=1e-3)
    for _ in _steps(handler, training, list(stage.submod.parameters())):
        optimizer.zero_grad()
        schedule.step(torch.ones(8, WIDTH), target=torch.zeros(8, WIDTH))
        optimizer.step()


def _steps(handler: Notified, training: Training, weights: list[nn.Parameter]) -> Iterator[None]:
    """Yield once for each step, in whose midst the event happens: when the first gradient is there."""
    began = [0]

    def backward(gradient: Tensor) -> None:
        if began[0] != training.steps:
            training.in_step()

    weights[-1].register_hook(backward)
    for step in range(1, STEPS + 1):
        began[0] = step
        yield
        if step == STEPS or handler.got:
            training.saved(step, weights)
            return


def _plan(training: Training) -> Path:
    path = training.folder / "plan.json"
    write_plan(path, driven_plan(1, 4, update=True))
    return path


MEGATRON = "Megatron-Core, handler of Megatron-LM"
TRAINERS: dict[str, Callable[[Training], None]] = {
    "Hugging Face, enable_jit_checkpoint": hugging_face,
    "Lightning, OnExceptionCheckpoint": lightning,
    "own loop, no handler": lambda training: own_loop(training, None),
    "own loop, own handler": lambda training: own_loop(training, Notified()),
    MEGATRON: megatron,
    "torch pipelining, own handler": pipelining,
}


def terminate(training: Training) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    wait_until(training.noticed)


def refuse(training: Training) -> None:
    training.gpu.allowed = False


EVENTS: dict[str, Callable[[Training], None]] = {"SIGTERM": terminate, "refused clock": refuse}
DEFAULT = ("own loop, no handler", "SIGTERM")
"""Where nobody handles a signal Python runs no `finally` block; with Kareus it does."""


IMPORTED = {
    "Hugging Face": ("transformers.trainer", "transformers.trainer_jit_checkpoint", "kareus.adapters.hugging_face"),
    "Lightning": ("pytorch_lightning", "kareus.adapters.lightning"),
    "Megatron-Core": ("helpers.megatron_jobs", "kareus.adapters.megatron"),
    "torchtitan": ("torchtitan.models.llama3.config_registry", "helpers.titan_jobs", "kareus.adapters.torchtitan"),
    "own loop": ("kareus.adapters.steps",),
    "torch pipelining": ("kareus.adapters.pipelining",),
}
"""Modules that trainings of a library import, by the first words of the names of trainers."""


@contextlib.contextmanager
def importers() -> Iterator[Callable[[str], Executor]]:
    """Gives the process from which trainings of a trainer are forked; each starts when it is asked for first."""
    with contextlib.ExitStack() as started:

        @functools.cache
        def importer_of(library: str) -> Executor:
            return started.enter_context(importing("helpers.trainer_events", *IMPORTED[library]))

        yield lambda trainer: importer_of(trainer.partition(",")[0])


def outcome_of(importer: Executor, trainer: str, event: str, folder: Path, *, has_kareus: bool) -> Outcome:
    """Run a training in a process of its own; what it leaves is in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    code = exit_code(importer, _train, trainer, event, folder, has_kareus)
    assert code is not None, "the training does not end"
    left = folder / "outcome.json"
    if not left.exists():
        return Outcome(ended=f"signal {-code}" if code < 0 else f"exit {code}")
    return Outcome(**json.loads(left.read_text()))


def check_saved(importer: Executor, trainer: str, event: str, folder: Path) -> None:
    """Check that a trainer ends as it does without Kareus, with the same weights, and that its clock is restored."""
    without, with_kareus = (
        outcome_of(importer, trainer, event, folder / name, has_kareus=name == "with") for name in ("without", "with")
    )
    gpu = FakeDevice(folder / "with")
    assert gpu.calls()[0].startswith("lock")  # a request that the next one overtakes is never locked
    if (trainer, event) == DEFAULT:
        assert without == Outcome(ended="signal 15")
        assert with_kareus == Outcome(ended="exit 143")
    else:
        assert with_kareus == without
        assert with_kareus.saved != "nothing"
    if event == "SIGTERM":
        assert not gpu.locked.exists()
    else:
        assert read_table(table_path(folder / "with/tables", STEPS_TABLE, 0), STEPS_TABLE)["selector"][-1] == DRIVER


def rows(folder: Path, importer_of: Callable[[str], Executor]) -> Iterator[tuple[str, str, str, str]]:
    """Yield trainer, event, and what became of it without Kareus and with it."""
    for trainer, event in itertools.product(TRAINERS, EVENTS):
        without, with_it = (
            outcome_of(importer_of(trainer), trainer, event, folder / trainer / f"{event}-{int(has)}", has_kareus=has)
            for has in (False, True)
        )
        yield trainer, event, str(without), str(with_it)
    for trainer in (*events.OF_STEPS, *events.OF_PLANS):
        (folder / trainer).mkdir()
        first, *_ = events.cells_of(importer_of(trainer), trainer, folder / trainer)
        yield from ((trainer, event, "not compared", cell) for event, cell in first.items())


def _train(trainer: str, event: str, folder: Path, has_kareus: bool) -> None:
    """Train in this process, and leave what became of it."""
    import torch.distributed as dist  # noqa: PLC0415

    from kareus.adapters import driver, steps  # noqa: PLC0415

    with (folder / "printed").open("w") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    os.environ[FOLDER_VARIABLE] = str(folder / "claims")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    training = Training(folder=folder, has_kareus=has_kareus, happen=EVENTS[event], gpu=FakeDevice(folder))
    driver.gpu_of = steps.gpu_of = lambda device: training.gpu  # type: ignore[assignment]
    if TRAINERS[trainer] in (megatron, pipelining):
        dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
    ended = "normally"
    try:
        TRAINERS[trainer](training)
    except SystemExit as error:
        ended = f"exit {error.code}"
    except Exception as error:
        (folder / "error").write_text(repr(error))
        ended = type(error).__name__
        raise
    finally:
        outcome = Outcome(ended=ended, saved=training.outcome[0].saved if training.outcome else "nothing")
        (folder / "outcome.json").write_text(json.dumps(asdict(outcome)))


def main() -> None:
    sys.stdout.write("| trainer | event | without Kareus | with Kareus |\n| --- | --- | --- | --- |\n")
    with tempfile.TemporaryDirectory() as folder, importers() as importer_of:
        for row in rows(Path(folder), importer_of):
            sys.stdout.write(f"| {' | '.join(row)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
