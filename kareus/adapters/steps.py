"""One clock for the steps of any training, for trainers without a pipeline that a plan could be made for.

    clock = choose_clock("min-energy", optimizer, output="adapters/first")
    ...  # training as before; every call of optimizer.step() ends a step
    clock.close()

This is for loops of your own, with Accelerate or without. `kareus.adapters.hugging_face` and
`kareus.adapters.lightning` have callbacks for trainers that have callbacks.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from multiprocessing.util import Finalize
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from kareus.adapters.agreement import job_agreement, together
from kareus.adapters.driver import StageDriver, open_driver
from kareus.adapters.layout import RankLayout
from kareus.adapters.one_clock import STEP, StepChoice, StepSweep, swept_clocks
from kareus.device.controller import check_clocks
from kareus.device.protocol import Device
from kareus.errors import EngineError
from kareus.training.clocks import gpu_of

logger = logging.getLogger(__name__)

STEPS_PER_CLOCK = 5
"""Steps measured at each clock, unless it is said otherwise."""


class StepClock:
    """Chooses and sets the clock of a rank's steps. Made by `open_step_clock`."""

    def __init__(self, choice: StepChoice, driver: StageDriver) -> None:
        """Choose by `choice`, and drive the rank."""
        self._choice, self._driver = choice, driver
        self._running = False
        self._hooks: list[Any] = []
        Finalize(None, self.close, exitpriority=1)  # before the driver's own

    @property
    def chosen_mhz(self) -> int | None:
        """Clock of all further steps; None until the sweep has ended."""
        return self._choice.chosen_mhz

    def begin_step(self) -> None:
        """Say that a step begins; may be said again before it ends.

        Raises:
            DeviceError: its clock cannot be set.
        """
        if not self._running:
            self._driver.begin_whole(STEP)
            self._running = True

    def end_step(self, tokens: int | None = None) -> None:
        """Say that a step ended, and how many tokens all ranks trained on in it, where that is known."""
        if self._running:
            self._driver.end_iteration(tokens)
            self._running = False

    def follow(self, optimizer: torch.optim.Optimizer, tokens: int | None = None) -> None:
        """Let a step end, and the next one begin, whenever an optimizer has stepped.

        Args:
            optimizer: PyTorch's, or Accelerate's around it.
            tokens: of a step, over all ranks.

        Raises:
            EngineError: it is neither.
        """
        optimizer_within = stepping(optimizer)
        self.begin_step()
        self._hooks.append(optimizer_within.register_step_post_hook(lambda *_: self._next(tokens)))

    def close(self) -> None:
        """Restore the clock, let go of the GPU and write the table; may be called more than once."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._driver.close()

    def _next(self, tokens: int | None) -> None:
        self.end_step(tokens)
        self.begin_step()


def choose_clock(
    goal: str,
    optimizer: torch.optim.Optimizer,
    *,
    tokens: int | None = None,
    clocks_mhz: Sequence[int] | None = None,
    steps_per_clock: int = STEPS_PER_CLOCK,
    clocks: str = "planned",
    output: str | PathLike[str] | None = None,
) -> StepClock:
    """Sweep clocks over the first steps of a training, and train at the one that suits a goal best.

    Args:
        goal: a selector, of steps and of all GPUs: `min-energy` (per token, where `tokens` are given), `deadline=0.5s`,
            `straggler=1.05x`, `power=4kW`, `energy=2kJ`, `edp`, `cost=...`.
        optimizer: whose steps count; its weights say what the rank computes on.
        tokens: of a step, over all ranks.
        clocks_mhz: clocks to measure; None takes eight from the highest down to half of it.
        steps_per_clock: steps measured at each clock.
        clocks: `planned`, or `dry` to log clocks and lock none.
        output: folder of the table `steps`; None to write none.

    Raises:
        EngineError: the rank has no GPU, or several, or the optimizer is not PyTorch's.
        ConfigError: the goal is none, or nothing can be measured so.
        DeviceError: the GPU is in use, or the driver refuses.

    Example:
        >>> from kareus.adapters.steps import choose_clock
        >>> clock = choose_clock("straggler=1.05x", optimizer, tokens=65536, output="adapters/first")
        >>> for batch, target in batches:
        ...     loss = (model(batch) - target).square().mean()
        ...     loss.backward()
        ...     optimizer.step()  # ends a step
        >>> clock.close()
    """
    device = only_device(weight for group in stepping(optimizer).param_groups for weight in group["params"])
    clock = open_step_clock(
        goal, device, clocks_mhz=clocks_mhz, steps_per_clock=steps_per_clock, clocks=clocks, output=output
    )
    clock.follow(optimizer, tokens)
    return clock


def only_device(weights: Iterable[torch.Tensor]) -> torch.device:
    """Return the device that a rank computes on, which all weights are on but for those that are offloaded.

    Raises:
        EngineError: they are on several GPUs, of which a rank sets the clock of one.
    """
    devices = list(dict.fromkeys(weight.device for weight in weights))
    gpus = [device for device in devices if device.type == "cuda"]
    if len(gpus) > 1:
        names = ", ".join(map(str, gpus))
        raise EngineError(f"one clock: this process computes on {names}; start one for each GPU, as torchrun does.")
    return gpus[0] if gpus else devices[0]


def open_step_clock(
    goal: str,
    device: torch.device,
    *,
    clocks_mhz: Sequence[int] | None = None,
    steps_per_clock: int = STEPS_PER_CLOCK,
    clocks: str = "planned",
    output: str | PathLike[str] | None = None,
) -> StepClock:
    """Return the clock of a rank's steps, for callbacks of trainers; every rank calls it, from the main thread.

    Args:
        goal: as `choose_clock`, likewise all others.
        device: what the rank computes on.
        clocks_mhz: clocks to measure.
        steps_per_clock: steps measured at each clock.
        clocks: `planned` or `dry`.
        output: folder of the table.

    Raises:
        KareusError: as `choose_clock`.
    """
    is_distributed = dist.is_available() and dist.is_initialized()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if is_distributed else (0, 1)
    agreement = job_agreement()

    def chosen() -> tuple[Device, StepSweep, StepChoice]:
        gpu = gpu_of(device)
        if gpu is None:
            raise EngineError("one clock: this rank computes on a CPU, whose energy nothing measures; use a GPU.")
        sweep = StepSweep(clocks_mhz=_clocks(gpu, clocks_mhz), steps_per_clock=steps_per_clock)
        return gpu, sweep, StepChoice(goal, sweep, agreement)

    gpu, sweep, choice = together(agreement, chosen)
    layout = RankLayout(rank=rank, gpus=ranks, stage=0, stages=1, microbatches=1)
    folder = None if output is None else Path(output)
    driver = open_driver(choice, layout, gpu, device, clocks=clocks, output=folder, agreement=agreement)
    log = partial(logger.log, logging.INFO if rank == 0 else logging.DEBUG)
    log(
        "%s: the first %d steps measure %d clocks from %d to %d MHz, and take at most %.0f %% longer",
        goal,
        sweep.end,
        len(sweep.clocks_mhz),
        sweep.clocks_mhz[0],
        sweep.clocks_mhz[-1],
        100 * sweep.most_slowdown,
    )
    return StepClock(choice, driver)


def _clocks(gpu: Device, given: Sequence[int] | None) -> tuple[int, ...]:
    if given is None:
        return swept_clocks(gpu.supported_clocks_mhz())
    check_clocks(gpu, given)
    return tuple(sorted(given, reverse=True))


def stepping(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return what says when an optimizer has stepped."""
    inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate's steps only when gradients are complete
    if not isinstance(inner, torch.optim.Optimizer):
        raise EngineError(
            f"optimizer: {type(inner).__name__} is none of PyTorch's, and does not say when it steps; take "
            "`open_step_clock`, and call its `begin_step` and `end_step`."
        )
    return inner
