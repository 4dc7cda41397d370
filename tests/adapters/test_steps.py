"""One clock for a step: the sweep finds what the GPU model says is best, in the trainers themselves."""

import contextlib
import functools
import importlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.code_blocks import python_blocks, run_block
from helpers.doc_examples import run_examples
from helpers.driving import driven_plan
from helpers.fake_device import FakeDevice
from helpers.model_gpu import CLOCKS_MHZ, ModelGpu, model_gpu, step_costs
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from kareus.adapters import driver
from kareus.adapters import steps as steps_module
from kareus.adapters.agreement import Alone
from kareus.adapters.one_clock import SETTLING, SWEEP, WARM_UP, StepChoice, StepSweep, swept_clocks
from kareus.adapters.recorder import table_path
from kareus.adapters.records import DRIVER, IterationRecord
from kareus.adapters.steps import choose_clock, only_device, open_step_clock
from kareus.adapters.tables import MICROBATCHES, STEPS
from kareus.artifacts.tables import read_table
from kareus.device.claims import FOLDER_VARIABLE, setting_of
from kareus.errors import ConfigError, DeviceError, EngineError
from kareus.plans.file import write_plan

QUIET = pytest.mark.filterwarnings(  # Lightning's, about PyTorch and about this machine
    "ignore:.*LeafSpec.* is deprecated", "ignore:.*does not have many workers", "ignore:GPU available but not used"
)
STEPS_PER_CLOCK = 2
TRAINED = WARM_UP + len(CLOCKS_MHZ) * (1 + STEPS_PER_CLOCK) + SETTLING + 3
"""Steps of a training: the sweep, what it waits for, and some at the clock that was chosen."""
SEQUENCE = 8


def goals() -> dict[str, int]:
    """The best clock for each goal, by the GPU model."""
    costs = step_costs()
    times_s, powers_w = {m: t for m, (t, _) in costs.items()}, {m: e / t for m, (t, e) in costs.items()}
    frugal_mhz = min(costs, key=lambda mhz: costs[mhz][1])
    limit_s = 1.01 * times_s[1206]
    cap_w = 1.01 * powers_w[1053]
    assert frugal_mhz != max(costs), "a lower clock saves energy"
    return {
        "min-energy": frugal_mhz,
        f"deadline={1e3 * limit_s:.3f}ms": min((m for m in costs if times_s[m] <= limit_s), key=lambda m: costs[m][1]),
        f"power={cap_w:.3f}W": min((m for m in costs if powers_w[m] <= cap_w), key=times_s.__getitem__),
    }


TRAINER_MODULES = (
    "accelerate",
    "pytorch_lightning",
    "transformers",
    "kareus.adapters.hugging_face",
    "kareus.adapters.lightning",
)


@functools.cache
def trainers() -> SimpleNamespace:
    """The trainers and their adapters: importing them takes seconds, which workers spare that run other files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the trainers, about themselves
        return SimpleNamespace(**{name.rpartition(".")[2]: importlib.import_module(name) for name in TRAINER_MODULES})


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelGpu:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    monkeypatch.chdir(tmp_path)
    return model_gpu(monkeypatch)


class Model(nn.Module):
    """A network that takes the time of a step, or of a share of it, on the GPU whenever it computes."""

    def __init__(self, gpu: Any, share: float = 1.0) -> None:
        super().__init__()
        self.gpu, self.share, self.weight = gpu, share, nn.Parameter(torch.ones(SEQUENCE))

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.gpu.run(self.share)
        return {"loss": ((self.weight * input_ids.float() - labels.float()) ** 2).mean()}


class Tokens(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        tokens = torch.arange(SEQUENCE) % (item + 2)
        return {"input_ids": tokens, "labels": tokens + 1}


def hugging_face_arguments(gpu: Any, folder: Path, steps: int) -> dict[str, Any]:
    """Arguments of a Trainer but for its callbacks."""
    arguments = trainers().transformers.TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=2,
        include_num_input_tokens_seen="all",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    return {"model": Model(gpu), "args": arguments, "train_dataset": Tokens()}


def train_with_hugging_face(gpu: ModelGpu, goal: str, output: Path) -> None:
    callback = trainers().hugging_face.TrainerClock(goal, output=output, steps_per_clock=STEPS_PER_CLOCK)
    arguments = hugging_face_arguments(gpu, output, TRAINED)

    class Between(trainers().transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        """What a trainer does between steps counts for no clock."""

        def on_step_end(self, args, state, control, **kwargs) -> None:  # type: ignore[no-untyped-def]
            gpu.wait(0.05 * (state.global_step % 3))

    trainers().transformers.Trainer(**arguments, callbacks=[callback, Between()]).train()


def train_with_accelerate(gpu: ModelGpu, goal: str, output: Path) -> None:
    accelerator = trainers().accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Model(gpu, 0.5)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1e-3), DataLoader(Tokens(), batch_size=2)
    )
    clock = choose_clock(goal, optimizer, tokens=4 * SEQUENCE, steps_per_clock=STEPS_PER_CLOCK, output=output)
    for number, batch in enumerate(loader):
        if number == 2 * TRAINED:
            break
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
    clock.close()


def lightning_module(gpu: ModelGpu) -> Any:
    class Module(trainers().pytorch_lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(gpu)

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    return Module()


LIGHTNING = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
"""Settings of a quiet Trainer."""


def train_with_lightning(gpu: ModelGpu, goal: str, output: Path) -> None:
    clock = trainers().lightning.LightningClock
    callback = clock(goal, tokens=2 * SEQUENCE, steps_per_clock=STEPS_PER_CLOCK, output=output)
    trainer = trainers().pytorch_lightning.Trainer(max_steps=TRAINED, callbacks=[callback], **LIGHTNING)
    trainer.fit(lightning_module(gpu), DataLoader(Tokens(), batch_size=2))


TRAINERS = {
    "hugging-face": (train_with_hugging_face, 2 * SEQUENCE),
    "accelerate": (train_with_accelerate, 4 * SEQUENCE),
    "lightning": (train_with_lightning, 2 * SEQUENCE),
}


@QUIET
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_ends_at_the_best_clock_of_the_model(gpu: ModelGpu, tmp_path: Path, trainer: str) -> None:
    train, tokens = TRAINERS[trainer]
    for goal, best_mhz in goals().items():
        output = tmp_path / goal.partition("=")[0]
        gpu.calls.clear()
        train(gpu, goal, output)
        steps = read_table(table_path(output, STEPS, 0), STEPS)
        after = steps.filter(steps["selector"] != SWEEP)
        assert set(after["selector"]) == {goal}
        assert set(after["frequency_mhz"]) == {best_mhz}
        assert set(steps["tokens"]) == {tokens}
        assert gpu.calls[0] == f"lock {max(CLOCKS_MHZ)}"
        assert gpu.calls[-2:] == [f"lock {best_mhz}", "reset"]
        assert setting_of(gpu.uuid) is None
        assert not table_path(output, MICROBATCHES, 0).exists()


def test_the_best_clocks_of_the_goals_differ() -> None:
    assert len(set(goals().values())) > 1


@QUIET
def test_what_the_page_shows_runs_in_trainers(gpu: ModelGpu, tmp_path: Path) -> None:
    in_hugging_face, in_lightning, *_ = python_blocks("howto/hugging_face.md")
    names = {"Trainer": trainers().transformers.Trainer, "arguments": hugging_face_arguments(gpu, tmp_path, 3)}
    shown = run_block(in_hugging_face, names)
    shown["trainer"].train()
    (per_clock,) = run_block(python_blocks("howto/hugging_face.md")[-1], shown)["per_clock"].rows(named=True)
    time_s, energy_j = step_costs()[1410]
    assert (per_clock["selector"], per_clock["frequency_mhz"]) == (SWEEP, 1410)
    assert per_clock["j_per_token"] == pytest.approx(energy_j / time_s * per_clock["time_s"] / (2 * SEQUENCE), rel=0.05)
    assert gpu.calls == ["lock 1410", "reset"]
    names = {"Trainer": functools.partial(trainers().pytorch_lightning.Trainer, max_steps=3, **LIGHTNING)}
    run_block(in_lightning, names)["trainer"].fit(lightning_module(gpu), DataLoader(Tokens(), batch_size=2))
    assert gpu.calls == ["lock 1410", "reset"] * 2
    assert len(read_table(table_path(tmp_path / "adapters/first", STEPS, 0), STEPS)) == 6  # of both


@QUIET
def test_examples_of_callbacks_run_as_printed(gpu: ModelGpu, tmp_path: Path) -> None:
    names = {"Trainer": trainers().transformers.Trainer, "arguments": hugging_face_arguments(gpu, tmp_path, 3)}
    run_examples(trainers().hugging_face.TrainerClock, names)["trainer"].train()
    trainer = functools.partial(trainers().pytorch_lightning.Trainer, max_steps=3, **LIGHTNING)
    batches = DataLoader(Tokens(), batch_size=2)
    names = {"Trainer": trainer, "module": lightning_module(gpu), "batches": batches}
    run_examples(trainers().lightning.LightningClock, names)
    assert gpu.calls == ["lock 1410", "reset"] * 2


@QUIET
def test_hugging_faces_trainer_follows_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page and the example show it, with the gradient accumulation of the plan."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    monkeypatch.chdir(tmp_path)
    recording = FakeDevice(tmp_path)
    monkeypatch.setattr(driver, "gpu_of", lambda device: recording)
    plan = driven_plan(1, 2, gpus=1, update=True)
    for shown in ("plan.json", "plan/fastest_sequential+perseus.json"):
        write_plan(tmp_path / shown, plan)
    arguments = hugging_face_arguments(SimpleNamespace(run=lambda share: None), tmp_path, 3)
    arguments["args"].gradient_accumulation_steps = 2
    for source in ("page", "example"):
        names = {"Trainer": trainers().transformers.Trainer, "arguments": arguments}
        if source == "page":
            trainer = run_block(python_blocks("howto/fsdp.md")[1], names)["trainer"]
        else:
            trainer = run_examples(trainers().hugging_face.TrainerPlan, names)["trainer"]
        trainer.train()
        calls = recording.calls()
        assert calls[-1] == "reset"
    rows = read_table(table_path(tmp_path / "adapters/first", MICROBATCHES, 0), MICROBATCHES)
    planned = [(key.microbatch, str(key.direction), i.frequency_mhz) for key, i in plan.stages[0].keyed]
    assert rows.select("microbatch", "direction", "frequency_mhz").rows() == planned * 3


def test_the_example_of_a_loop_runs_as_printed(gpu: ModelGpu, tmp_path: Path) -> None:
    weights = nn.Parameter(torch.ones(SEQUENCE))

    def model(batch: Tensor) -> Tensor:
        gpu.run(1.0)
        return weights * batch

    batches = [(torch.ones(SEQUENCE), torch.zeros(SEQUENCE))] * 3
    run_examples(choose_clock, {"model": model, "batches": batches, "optimizer": torch.optim.SGD([weights], lr=1e-3)})
    assert gpu.calls == ["lock 1410", "reset"]
    assert len(read_table(table_path(tmp_path / "adapters/first", STEPS, 0), STEPS)) == 3


def test_what_the_page_shows_runs_in_a_loop(gpu: ModelGpu, tmp_path: Path) -> None:
    model = Model(gpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    @contextlib.contextmanager
    def training() -> Iterator[None]:
        for _ in range(3):
            model(torch.ones(1, SEQUENCE), torch.ones(1, SEQUENCE))["loss"].backward()
            optimizer.step()
        yield

    run_block(python_blocks("howto/hugging_face.md")[2], {"optimizer": optimizer, "training": training})
    assert gpu.calls == ["lock 1410", "reset"]
    assert len(read_table(table_path(tmp_path / "adapters/first", STEPS, 0), STEPS)) == 3


def test_steps_of_a_loop_end_with_the_optimizer(gpu: ModelGpu, tmp_path: Path) -> None:
    model = Model(gpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    clock = choose_clock("min-energy", optimizer, clocks="dry", output=tmp_path / "out")
    for _ in range(3):
        model(torch.ones(1, SEQUENCE), torch.ones(1, SEQUENCE))["loss"].backward()
        optimizer.step()
    clock.close()
    optimizer.step()  # is nobody's any more
    assert len(read_table(table_path(tmp_path / "out", STEPS, 0), STEPS)) == 3
    assert gpu.calls == []
    assert clock.chosen_mhz is None


def test_a_cpu_is_refused() -> None:
    with pytest.raises(EngineError, match="one clock: this rank"):
        open_step_clock("min-energy", torch.device("cpu"))


def test_several_gpus_of_a_process_are_refused(gpu: ModelGpu, tmp_path: Path) -> None:
    first, offloaded, second = (SimpleNamespace(device=torch.device(name)) for name in ("cuda:0", "cpu", "cuda:1"))
    assert only_device([first, offloaded]) == first.device  # type: ignore[list-item]
    with pytest.raises(EngineError, match="computes on cuda:0, cuda:1; start one for each GPU"):
        only_device([first, offloaded, second])  # type: ignore[list-item]
    arguments = hugging_face_arguments(gpu, tmp_path, 3)
    arguments["args"]._n_gpu = 2  # as on a machine of two: the Trainer then takes both
    callback, transformers = trainers().hugging_face.TrainerClock("min-energy"), trainers().transformers
    with pytest.raises(EngineError, match="computes on 2 GPUs; start one for each GPU"):
        callback.on_train_begin(arguments["args"], transformers.TrainerState(), transformers.TrainerControl())
    assert gpu.calls == []


def test_an_optimizer_that_has_no_steps_is_refused(gpu: ModelGpu) -> None:
    wrapper = SimpleNamespace(optimizer=object())  # as Accelerate's around DeepSpeed's
    with pytest.raises(EngineError, match="optimizer: object is none of PyTorch's"):
        choose_clock("min-energy", wrapper)  # type: ignore[arg-type]
    assert gpu.calls == []


def test_swept_clocks_are_those_of_the_gpu(gpu: ModelGpu) -> None:
    with pytest.raises(DeviceError, match=r"Model .* 1000 MHz"):
        open_step_clock("min-energy", torch.device("cpu"), clocks_mhz=(1000, 900))
    assert gpu.calls == []


def test_a_goal_that_is_none_is_refused(gpu: ModelGpu) -> None:
    with pytest.raises(ConfigError, match="selector 'cheapest'"):
        open_step_clock("cheapest", torch.device("cpu"))
    assert gpu.calls == []


SWEPT = StepSweep(clocks_mhz=(1400, 1000), steps_per_clock=2)


def told(
    choice: StepChoice,
    costs: dict[int, tuple[float, float | None]],
    tokens: int | None = None,
    steps: range = range(SWEPT.end),
    cap: tuple[int, str] = (9999, ""),
) -> None:
    """Let a choice learn what each step of a sweep took, on a GPU that is kept below a clock for a reason."""
    for number in steps:
        mhz = choice.iteration(number).steps[0].frequency_mhz if steps.start else SWEPT.place_of(number)[0]
        if mhz is None:
            return
        time_s, energy_j = costs[mhz]
        read = (0.0, min(mhz, cap[0]), (cap[1],) if mhz > cap[0] else ())
        choice.take_note(replace(step_record(number, mhz, time_s, energy_j, tokens), readings=(read,)))


def step_record(
    number: int, mhz: int, time_s: float, energy_j: float | None, tokens: int | None = None
) -> IterationRecord:
    """What a step of the sweep took."""
    return IterationRecord(
        iteration=number, selector=SWEEP, time_s=time_s, energy_j=energy_j, tokens=tokens,
        frequency_mhz=mhz, observed_mhz=mhz, instructions=(),
    )  # fmt: skip


def test_a_sweep_visits_every_clock_from_the_highest() -> None:
    places = [SWEPT.place_of(number) for number in range(SWEPT.end)]
    assert places[:WARM_UP] == [(1400, False)] * WARM_UP
    assert places[WARM_UP:] == [(1400, False), (1400, True), (1400, True), (1000, False), (1000, True), (1000, True)]
    assert SWEPT.place_of(SWEPT.end) == (1400, False)
    assert SWEPT.most_slowdown == pytest.approx(0.2)


def test_ranks_choose_by_the_slowest_and_by_all_energies() -> None:
    """On its own each rank would choose another clock than both together."""

    class Both:
        def gather(self, own):  # type: ignore[no-untyped-def]
            other = {1400: (1.0, 300.0), 1000: (1.5, 100.0)}
            return [own, other]

    choice = StepChoice("deadline=1.2s", SWEPT, Both())
    told(choice, {1400: (1.0, 100.0), 1000: (1.1, 90.0)})
    (step,) = choice.iteration(SWEPT.end + SETTLING).steps
    assert step.frequency_mhz == choice.chosen_mhz == 1400


def test_a_rank_whose_gpu_is_refused_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Ranks:
        def gather(self, reason: str) -> list[str]:
            told.append(reason)
            return [reason]

    def refuse(device: torch.device) -> None:
        raise DeviceError("MIG-0: is a slice.")

    monkeypatch.setattr(steps_module, "job_agreement", Ranks)
    monkeypatch.setattr(steps_module, "gpu_of", refuse)
    with pytest.raises(DeviceError):
        open_step_clock("min-energy", torch.device("cpu"))
    assert told == ["MIG-0: is a slice."]


@pytest.mark.parametrize("paused", [{0}, {1}], ids=["first", "second"])
def test_evaluations_between_steps_count_for_no_clock(caplog: pytest.LogCaptureFixture, paused: set[int]) -> None:
    """A step of a loop lasts until the optimizer has stepped again, with what lies between."""
    caplog.set_level(logging.INFO)
    choice = StepChoice("min-energy", SWEPT, Alone())
    costs = {1400: (1.0, 100.0), 1000: (1.25, 80.0)}
    for number in range(SWEPT.end):
        mhz, _ = SWEPT.place_of(number)
        pause_s = 2.0 * (number % SWEPT.steps_per_clock in paused)
        time_s, energy_j = costs[mhz][0] + pause_s, costs[mhz][1] + 50 * pause_s
        choice.take_note(step_record(number, mhz, time_s, energy_j))
    (step,) = choice.iteration(SWEPT.end + SETTLING).steps
    assert step.frequency_mhz == 1000
    assert "1.25 s and 80 J a step, +25.0 % time and -20.0 % energy" in caplog.text


def test_a_clock_is_chosen_once_all_ranks_know() -> None:
    choice = StepChoice("min-energy", SWEPT, Alone())
    assert choice.iteration(SWEPT.end + SETTLING).selector == SWEEP
    told(choice, {1400: (1.0, 100.0), 1000: (1.1, 90.0)})
    for number in range(1, SETTLING):
        assert choice.iteration(SWEPT.end + SETTLING + number).selector == SWEEP
    chosen = choice.iteration(SWEPT.end + 2 * SETTLING)
    assert (chosen.selector, chosen.steps[0].frequency_mhz) == ("min-energy", 1000)


def test_a_limit_out_of_reach_is_come_near(caplog: pytest.LogCaptureFixture) -> None:
    choice = StepChoice("deadline=0.5s", SWEPT, Alone())
    told(choice, {1400: (1.0, 100.0), 1000: (1.1, 90.0)})
    assert choice.iteration(SWEPT.end + SETTLING).steps[0].frequency_mhz == 1400
    assert "within 500.0 ms" in caplog.text
    assert "comes nearest" in caplog.text


def test_without_energies_the_highest_clock_stays(caplog: pytest.LogCaptureFixture) -> None:
    choice = StepChoice("min-energy", SWEPT, Alone())
    told(choice, {1400: (1.0, None), 1000: (1.1, None)})
    assert choice.iteration(SWEPT.end + SETTLING).steps[0].frequency_mhz == 1400
    assert "energies could not be read" in caplog.text


COSTS: dict[int, tuple[float, float | None]] = {1400: (1.0, 100.0), 1000: (1.1, 90.0)}
ENDS = SWEPT.end + SETTLING


def test_a_clock_that_was_not_kept_is_measured_again() -> None:
    choice = StepChoice("deadline=1s", SWEPT, Alone())
    told(choice, COSTS | {1400: (1.1, 90.0)}, cap=(1000, "thermal-limit"))
    told(choice, COSTS, steps=range(ENDS, ENDS + 3))  # the GPU has cooled
    assert choice.chosen_mhz is None
    (step,) = choice.iteration(ENDS + 3 + SETTLING).steps
    assert step.frequency_mhz == choice.chosen_mhz == 1400


def test_a_clock_that_is_never_kept_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    choice = StepChoice("deadline=1s", SWEPT, Alone())
    told(choice, COSTS, cap=(1000, "thermal-limit"))
    told(choice, COSTS, steps=range(ENDS, ENDS + 30), cap=(1000, "thermal-limit"))
    assert choice.chosen_mhz == 1000
    assert "deadline=1s: 1400 MHz was not kept, and left out" in caplog.text


def test_where_no_clock_is_kept_the_drivers_own_stays(caplog: pytest.LogCaptureFixture) -> None:
    choice = StepChoice("min-energy", SWEPT, Alone())
    told(choice, COSTS, cap=(700, "thermal-limit"))
    told(choice, COSTS, steps=range(ENDS, ENDS + 40), cap=(700, "thermal-limit"))
    chosen = choice.iteration(ENDS + 40)
    assert (chosen.selector, chosen.steps[0].frequency_mhz) == (DRIVER, None)
    assert "min-energy: no clock was kept (1400, 1000 MHz were asked for)" in caplog.text


def test_a_clock_at_the_power_limit_counts_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    choice = StepChoice("deadline=1s", SWEPT, Alone())
    told(choice, COSTS, cap=(1000, "power-limit"))
    assert choice.iteration(ENDS).steps[0].frequency_mhz == 1400
    assert "; the power limit keeps the GPU below that clock" in caplog.text


def test_what_is_saved_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    choice = StepChoice("min-energy", SWEPT, Alone())
    told(choice, {1400: (1.0, 100.0), 1000: (1.1, 90.0)}, tokens=64)
    choice.iteration(SWEPT.end + SETTLING)
    assert "min-energy: 1000 MHz from here on: 1.1 s and 90 J a step, +10.0 % time and -10.0 % energy" in caplog.text


def test_swept_clocks_go_down_to_half_of_the_highest() -> None:
    assert swept_clocks(range(210, 1411, 15)) == (1410, 1305, 1215, 1110, 1005, 900, 810, 705)
    assert swept_clocks((900, 1200, 1410)) == (1410, 1200, 900)


@pytest.mark.parametrize("clocks_mhz", [(), (900, 1200), (900, 900)])
def test_clocks_that_are_no_sweep_are_refused(clocks_mhz: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="clocks_mhz"):
        StepSweep(clocks_mhz=clocks_mhz, steps_per_clock=1)
