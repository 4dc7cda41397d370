"""The driver of one rank: told what its trainer is about to run, it checks the order, sets clocks and records.

It lives as long as its process, unless it is closed before. However the process ends, the clock is restored: at exit,
by a thread on SIGTERM, and after `kill -9` by the next process that claims the GPU, or `kareus clocks reset`. A clock
that the driver refuses ends no training: see `kareus.device.yielding`.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.util import Finalize
from os import PathLike
from pathlib import Path

import torch

from kareus.adapters.agreement import Agreement, Alone, job_agreement, together
from kareus.adapters.choice import ChosenIteration, ClockChoice
from kareus.adapters.layout import RankLayout
from kareus.adapters.online import PlanFolder
from kareus.adapters.profiling import Profiling
from kareus.adapters.recorder import RankRecorder, RankTables
from kareus.adapters.records import IterationRecord
from kareus.adapters.sampler import Sampler
from kareus.adapters.sources import PlanSource, choice_of
from kareus.adapters.stopwatch import stopwatch_of
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import suggest
from kareus.device.actuators import CLOCKS, Actuator, lasting_clocks
from kareus.device.controller import ClockControl, dry_clocks
from kareus.device.protocol import Device
from kareus.device.yielding import yielding_clocks
from kareus.errors import ConfigError, DeviceError, EngineError
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import UPDATING, Direction
from kareus.launch.compute_device import synchronize_computation
from kareus.launch.rendezvous import job_tally
from kareus.launch.torch_version import warn_of_torch_version
from kareus.runtime.follower import PlanFollower, PlannedStep
from kareus.training.clocks import REFUSED, gpu_of
from kareus.training.recorder import identity

CLOCK_MODES = ("planned", "dry")
"""Values of `clocks`: lock what is chosen, or log it and lock nothing."""

_PATIENCE_S = 15.0
"""Longest wait for the GPU: processes that load data for a trainer outlive it by seconds, and hold its claim."""

logger = logging.getLogger(__name__)


class StageDriver:
    """Drives one rank. Made by `open_driver`; all calls come from the thread that trains."""

    def __init__(
        self,
        choice: ClockChoice,
        clocks: ClockControl,
        recorder: RankRecorder,
        wait: Callable[[], None],
        stack: contextlib.ExitStack,
    ) -> None:
        """Drive a rank.

        Args:
            choice: what decides clocks.
            clocks: where they are sent.
            recorder: of the rank.
            wait: returns once the GPU has computed what was launched.
            stack: the claim of the GPU and all else that `close` lets go of.
        """
        self._choice = choice
        self._clocks = clocks
        self._recorder = recorder
        self._follower = PlanFollower((), clocks, wait)
        self._held = stack
        self._chosen: ChosenIteration | None = None
        """What the iteration that runs, or failed, is to run."""
        self._running = False
        """Whether an iteration was begun."""
        self._has_rested = False
        """Whether the clock was left to the driver when the iteration began."""
        self._updating: InstructionKey | None = None
        """Instruction of the update of the weights that runs."""
        self._tokens: int | None = None
        self.iteration = 0
        """Iterations that ended since this driver was opened."""

    @property
    def last(self) -> IterationRecord | None:
        """The last iteration of which everything is known, a few iterations ago."""
        return self._recorder.last

    @property
    def expected(self) -> PlannedStep | None:
        """The instruction that is to run next, for trainers that do not say which one they run; None at the end."""
        return self._follower.expected

    def begin_iteration(self) -> None:
        """Say that an iteration begins; the first instruction says it too. An update that still runs has ended."""
        self.end_step()
        if self._running:
            return
        if self._chosen is None:
            self._chosen = self._choice.iteration(self.iteration)
        chosen = self._chosen
        self._follower.follow(chosen.steps)
        asked_mhz = {step.frequency_mhz for step in chosen.steps}
        self._recorder.begin_iteration(
            self.iteration, chosen.selector, asked_mhz.pop() if len(asked_mhz) == 1 else None
        )
        self._running, self._has_rested = True, self._clocks.rests

    def begin(self, key: InstructionKey) -> None:
        """Say that an instruction is about to be launched.

        Raises:
            EngineError: it is not the one that is chosen next.
        """
        self.begin_iteration()
        step = self._follower.expected
        self._follower.begin(key)
        self._recorder.begin(key, step.frequency_mhz if step and not self._clocks.rests else None)

    def begin_whole(self, key: InstructionKey) -> None:
        """Say that an iteration begins which is one instruction, and has a row among the steps alone.

        Raises:
            EngineError: it is not the one that is chosen next.
        """
        self.begin_iteration()
        self._follower.begin(key)

    def end(self, key: InstructionKey) -> None:
        """Say that all of an instruction was launched."""
        self._recorder.end(key)

    def begin_update(self, direction: Direction) -> None:
        """Say that a step of the update of the weights begins; nothing is done where it is not chosen next."""
        step = self._follower.expected
        if step is not None and step.key.direction is direction:
            self.begin(step.key)
            self._updating = step.key

    def end_update(self) -> None:
        """Say that all of a step of the update was launched."""
        if self._updating is not None:
            self.end(self._updating)
            self._updating = None

    def end_passes(self, tokens: int | None = None) -> None:
        """Say that all forwards and backwards were launched: the update begins, where one is chosen, or all has ended.

        Steps of the update that were not said to begin are over, or have nothing to do; the last one runs until
        `end_step`.

        Args:
            tokens: as of `end_iteration`.

        Raises:
            EngineError: an instruction that was chosen did not run.
        """
        while (step := self._follower.expected) is not None and step.key.direction in UPDATING:
            self.end_update()
            self.begin_update(step.key.direction)
        self._tokens = tokens
        if self._updating is None:
            self.end_iteration(tokens)

    def end_step(self) -> None:
        """Say that the optimizer has stepped; without it the update ends when the next iteration begins."""
        if self._updating is not None:
            self.end_update()
            self.end_iteration(self._tokens)

    def begin_evaluation(self) -> None:
        """Say that forwards without backwards are about to be launched: they have the clock of the other forwards."""
        self.end_step()
        self._follower.begin_evaluation()

    def abandon_iteration(self) -> None:
        """Say that the iteration failed, if one runs: it has no rows, and what was chosen for it is for the next."""
        if self._running:
            logger.warning("iteration %d did not end; what was recorded of it is left out.", self.iteration)
            self._follower.abandon_iteration()
            self._updating, self._running = None, False

    def end_iteration(self, tokens: int | None = None) -> None:
        """Say that the iteration ended, and how many tokens all replicas trained on, where that is known.

        Raises:
            EngineError: an instruction that was chosen did not run.
        """
        self._follower.end_iteration()
        self._clocks.drain()  # nobody reads them, and they would add up: the recorder has read the clock itself
        if self._has_rested or self._clocks.rests:
            self._recorder.leave_to_driver()
        self._recorder.end_iteration(tokens)
        self._chosen, self._running = None, False
        self.iteration += 1

    def close(self) -> None:
        """Restore the clock, let go of the GPU and write the tables; may be called more than once."""
        try:
            self.end_step()
        finally:
            self._held.close()


def drive_by_plan(
    plan: PlanSource,
    layout: RankLayout,
    device: torch.device,
    running: Sequence[InstructionKey],
    *,
    clocks: str = "planned",
    output: str | PathLike[str] | None = None,
) -> StageDriver:
    """Return the driver of a rank that follows a plan, changes between plans, or profiles its job.

    Args:
        plan: path of a plan file, or a `PlanFolder` or `Profiling`.
        layout: place of the rank.
        device: what the rank computes on; the GPU whose clock is set.
        running: forwards and backwards of the rank's stage in the order in which the trainer runs them.
        clocks: one of `CLOCK_MODES`.
        output: folder of tables; None to write none.

    Raises:
        EngineError: the plan is of another layout, or of another order. No clock was set.
        ConfigError: a job is to be profiled without setting clocks.
        KareusError: as `open_driver`, and if the plan cannot be read.
    """
    if isinstance(plan, Profiling) and clocks != "planned":
        raise ConfigError(f"clocks={clocks!r}: a job is profiled at clocks that are set; leave it out.")
    folder = None if output is None else Path(output)
    is_one_plan = not isinstance(plan, (Profiling, PlanFolder))
    agreement = Alone() if is_one_plan and folder is None else job_agreement()

    def chosen() -> tuple[Device | None, ClockChoice, str, Actuator]:
        gpu = gpu_of(device)
        return gpu, *choice_of(plan, layout, running, gpu, folder, agreement)

    gpu, choice, config_hash, actuator = together(agreement, chosen)
    return open_driver(
        choice,
        layout,
        gpu,
        device,
        clocks=clocks,
        output=folder,
        config_hash=config_hash,
        agreement=agreement,
        actuator=actuator,
    )


def open_driver(
    choice: ClockChoice,
    layout: RankLayout,
    gpu: Device | None,
    device: torch.device,
    *,
    clocks: str = "planned",
    output: Path | None = None,
    config_hash: str = "",
    agreement: Agreement | None = None,
    actuator: Actuator = CLOCKS,
) -> StageDriver:
    """Return the driver of a rank, which has claimed its GPU. Every rank calls it, from the main thread.

    Args:
        choice: what decides clocks.
        layout: place of the rank; one rank of each stage logs its clocks under `dry`.
        gpu: the GPU whose clock is set, as `gpu_of` returns it; None on a CPU, where clocks are logged.
        device: what the rank computes on.
        clocks: one of `CLOCK_MODES`.
        output: folder of tables; None to write none. Either all ranks give one, or none does.
        config_hash: hash of the workload that was planned, for the provenance of tables.
        agreement: of all ranks; None makes one where tables are written, as ranks number iterations alike.
        actuator: what is set on the GPU; one that lasts is set at once, and judged and undone by `close`.

    Raises:
        ConfigError: `clocks` is something else.
        EngineError: clocks are to be locked, and this is not the main thread; or another rank was refused.
        DeviceError: the GPU is in use, or a clock that another process left locked cannot be reset.
    """
    if clocks not in CLOCK_MODES:
        raise ConfigError(f"clocks={clocks!r}: not known; {suggest(clocks, CLOCK_MODES)}.")
    if layout.rank == 0:
        warn_of_torch_version()
    if agreement is None:
        agreement = Alone() if output is None else job_agreement()
    tables = None
    if output is not None:
        provenance = Provenance(config_hash=config_hash, testbed=identity(gpu))
        tables = RankTables(output, layout.rank, provenance).resume()
        tables.first = max(agreement.gather(tables.first))  # killed ranks have written up to different iterations
    with contextlib.ExitStack() as stack:
        control = together(agreement, lambda: stack.enter_context(_clocks(gpu, clocks, layout, actuator)))
        sampler = _sampler(gpu) if gpu is not None else None
        recorder = RankRecorder(stopwatch_of(device), sampler, tables, choice.take_note)
        stack.callback(recorder.close)
        driver = StageDriver(choice, control, recorder, partial(synchronize_computation, device), stack.pop_all())
    Finalize(None, driver.close, exitpriority=0)  # at exit, also of processes of multiprocessing; not of forked ones
    return driver


def _sampler(gpu: Device) -> Sampler | None:
    """Return what reads the counters of `gpu`, or None where it has none."""
    try:
        return Sampler(gpu).start()
    except DeviceError as error:
        logger.warning("%s Energy and clocks are not recorded.", error)
        return None


def _clocks(
    gpu: Device | None, clocks: str, layout: RankLayout, actuator: Actuator
) -> contextlib.AbstractContextManager[ClockControl]:
    """Control of the clock of `gpu`, or of none; with an actuator that lasts, no clock is requested."""
    if gpu is not None and clocks == "planned":
        _check_main_thread(gpu)
        if actuator.sets_clocks:
            return yielding_clocks(gpu, job_tally(REFUSED), patience_s=_PATIENCE_S)
        return lasting_clocks(gpu, actuator, patience_s=_PATIENCE_S)
    is_first = layout.rank % (layout.gpus // layout.stages) == 0  # trainers number ranks stage by stage
    level = logging.INFO if clocks == "dry" and is_first else logging.DEBUG
    return dry_clocks(gpu, partial(logger.log, level, "stage %d: %s", layout.stage))


def _check_main_thread(gpu: Device) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise EngineError(
            f"{gpu.uuid}: its clock or limit must be restored on signals, which only the main thread may ask for; open "
            "the adapter there."
        )
