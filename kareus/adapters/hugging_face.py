"""Plans, or one clock for all steps, in Hugging Face's Trainer.

trainer = Trainer(..., callbacks=[TrainerPlan("plan/straggler=1.05x_sequential+perseus.json", output="adapters/first")])
trainer = Trainer(..., callbacks=[TrainerClock("min-energy", output="adapters/first")])
"""

from os import PathLike
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from kareus.adapters import fsdp
from kareus.adapters.fsdp import PlannedTraining
from kareus.adapters.sources import PlanSource, check_source
from kareus.adapters.steps import StepClock, only_device, open_step_clock
from kareus.errors import EngineError


class TrainerPlan(TrainerCallback):  # type: ignore[misc]  # as below
    """Gives every forward, backward and update of a training the clock that a plan has for it.

    Example:
        >>> from kareus.adapters.hugging_face import TrainerPlan
        >>> trainer = Trainer(**arguments, callbacks=[TrainerPlan("plan/fastest_sequential+perseus.json")])
    """

    def __init__(self, plan: PlanSource, **options: Any) -> None:
        """Follow a plan.

        Args:
            plan: as `kareus.adapters.fsdp.obey` has it.
            options: `clocks`, `output` and `tokens` of it.

        Raises:
            KareusError: the plan is missing, or cannot be read.
        """
        check_source(plan)
        self._plan, self._options = plan, options
        self.planned: PlannedTraining | None = None
        """What follows the plan on this rank, once the training has begun."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Claim the GPU and hook the model.

        Raises:
            EngineError: the plan is of another layout, or this process computes on several GPUs.
        """
        _check_one_gpu(args)
        self._close()
        self.planned = fsdp.obey(
            kwargs["model"],
            kwargs["optimizer"],
            self._plan,
            microbatches=args.gradient_accumulation_steps,
            **self._options,
        )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the clock and write the tables."""
        self._close()

    def _close(self) -> None:
        if self.planned is not None:
            self.planned.close()


class TrainerClock(TrainerCallback):  # type: ignore[misc]  # transformers has no types that mypy may follow
    """Sweeps clocks over the first steps of a training, and goes on at the one that suits a goal best.

    Example:
        >>> from kareus.adapters.hugging_face import TrainerClock
        >>> trainer = Trainer(**arguments, callbacks=[TrainerClock("min-energy", output="adapters/first")])
    """

    def __init__(self, goal: str, *, output: str | PathLike[str] | None = None, **options: Any) -> None:
        """Choose for a goal.

        Args:
            goal: a selector, as `kareus.adapters.steps.choose_clock` has it. It is of energy per token if the Trainer
                counts tokens (`include_num_input_tokens_seen`).
            output: folder of the table `steps`; None to write none.
            options: `clocks_mhz`, `steps_per_clock` and `clocks` of `open_step_clock`.
        """
        self._goal, self._options = goal, {"output": output, **options}
        self._tokens = 0
        self.clock: StepClock | None = None
        """Clock of this rank's steps, once the training has begun."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Claim the GPU.

        Raises:
            EngineError: this process computes on several GPUs, of which it would set the clock of one.
        """
        _check_one_gpu(args)
        only_device(kwargs["model"].parameters())
        self._close()
        self.clock = open_step_clock(self._goal, args.device, **self._options)
        self._tokens = state.num_input_tokens_seen

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the clock of a step of the optimizer."""
        if self.clock is not None:
            self.clock.begin_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """End the step; what comes between two steps, as an evaluation does, counts for neither."""
        if self.clock is not None:
            seen, self._tokens = state.num_input_tokens_seen - self._tokens, state.num_input_tokens_seen
            self.clock.end_step(int(seen) or None)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the clock and write the table."""
        self._close()

    def _close(self) -> None:
        if self.clock is not None:
            self.clock.close()


def _check_one_gpu(args: TrainingArguments) -> None:
    if args.n_gpu > 1:
        raise EngineError(
            f"one clock: this process computes on {args.n_gpu} GPUs; start one for each GPU, as torchrun does."
        )
