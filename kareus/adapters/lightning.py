"""One clock for the steps of Lightning's Trainer.

trainer = Trainer(..., callbacks=[LightningClock("min-energy", tokens=65536, output="adapters/first")])
"""

from os import PathLike
from typing import Any

from kareus.adapters.steps import StepClock, open_step_clock

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:  # its older name
    from pytorch_lightning import Callback, LightningModule, Trainer


class LightningClock(Callback):  # type: ignore[misc]  # Lightning has no types that mypy may follow
    """Sweeps clocks over the first steps of a training, and goes on at the one that suits a goal best.

    Example:
        >>> from kareus.adapters.lightning import LightningClock
        >>> clock = LightningClock("power=5kW", tokens=65536, output="adapters/first")
        >>> Trainer(callbacks=[clock]).fit(module, batches)
    """

    def __init__(
        self, goal: str, *, tokens: int | None = None, output: str | PathLike[str] | None = None, **options: Any
    ) -> None:
        """Choose for a goal.

        Args:
            goal: a selector, as `kareus.adapters.steps.choose_clock` has it.
            tokens: of a step of the optimizer, over all ranks.
            output: folder of the table `steps`; None to write none.
            options: `clocks_mhz`, `steps_per_clock` and `clocks` of `open_step_clock`.
        """
        self._goal, self._tokens, self._options = goal, tokens, {"output": output, **options}
        self._steps = 0
        self.clock: StepClock | None = None
        """Clock of this rank's steps, once the training has begun."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Claim the GPU."""
        self._close()
        self.clock = open_step_clock(self._goal, pl_module.device, **self._options)
        self._steps = trainer.global_step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Set the clock of a step of the optimizer, which may have several batches."""
        if self.clock is not None:
            self.clock.begin_step()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the step once the optimizer has stepped."""
        if self.clock is not None and trainer.global_step > self._steps:
            self._steps = trainer.global_step
            self.clock.end_step(self._tokens)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the clock and write the table."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restore the clock and write the table."""
        self._close()

    def _close(self) -> None:
        if self.clock is not None:
            self.clock.close()
