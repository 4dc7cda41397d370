"""The training loop of one rank."""

import logging
import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from kareus.errors import EngineError
from kareus.launch.world import over_all_ranks
from kareus.model.initial import draw_weights
from kareus.model.weights import load_weights
from kareus.plans.run_totals import tokens_per_iteration
from kareus.training import checkpoint
from kareus.training.data.batches import Batches, Share
from kareus.training.exporting import check_exportable, export_weights
from kareus.training.gradients import sum_tied_gradient, sum_weight_gradients
from kareus.training.optimizer import Optimizer, whole_norm
from kareus.training.recorder import clock_rows
from kareus.training.setup import Setup, make_chunks, make_pipeline
from kareus.training.sharding import Division

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Instruments at one moment."""

    time_s: float
    energy_j: float | None

    def since(self, before: "_Reading") -> "_Reading":
        """What passed."""
        energy_j = None if self.energy_j is None or before.energy_j is None else self.energy_j - before.energy_j
        return _Reading(self.time_s - before.time_s, energy_j)


class Trainer:
    """One rank's share of a training."""

    def __init__(self, setup: Setup) -> None:
        """Make the stage and everything around it, at the beginning or where the last checkpoint left off.

        Raises:
            KareusError: weights or a checkpoint cannot be read or are of something else.
        """
        self._setup = setup
        torch.manual_seed(setup.seed)
        workload, place = setup.job.workload, setup.standing.place
        parallelism, mesh = workload.parallelism, setup.standing.groups.mesh
        if setup.settings.export is not None:
            check_exportable(
                workload.model,
                setup.settings.export,
                setup.settings.weights,
                replace=setup.settings.replace_export,
            )
        self.stage = make_chunks(setup)
        self._pipeline = make_pipeline(setup, self.stage)
        self._share = 1 / (workload.num_microbatches * parallelism.dp * parallelism.cp)
        self._tokens = tokens_per_iteration(workload)
        self._data_share = Share(
            microbatch_size=workload.microbatch_size,
            num_microbatches=workload.num_microbatches,
            dp_rank=place.replica,
            dp=parallelism.dp,
            cp_rank=place.cp,
            cp=parallelism.cp,
        )
        self._counts_head = not (workload.model.tie_embeddings and parallelism.pp > 1)
        found = checkpoint.last_whole(setup.checkpoints, setup.world.share)
        if found is None:
            if setup.settings.weights is None:
                draw_weights(self.stage, workload.model, setup.seed, 0, mesh.tp)
            else:
                load_weights(self.stage, workload.model, setup.settings.weights, 0, mesh.tp)
        self._division = Division(self.stage, setup.standing.lines.sharers)
        self._optimizer = Optimizer(self._division, setup.optimizer)
        self.iteration = 0
        self._batches = Batches(setup.samples, self._data_share)
        if found is not None:
            self._resume(found)

    def run(self) -> None:
        """Train to the last iteration.

        Raises:
            EngineError: the loss is not a number.
            KareusError: as the parts raise.
        """
        settings = self._setup.settings
        saved = self.iteration
        try:
            while self.iteration < settings.iterations:
                self._iterate(saved)
                due = settings.checkpoint_every and self.iteration % settings.checkpoint_every == 0
                if due or self.iteration == settings.iterations:
                    self._save(saved)
                    saved = self.iteration
        finally:
            self._setup.recorder.write()
        if settings.export is not None:
            self._setup.progress("the export")
            export_weights(self.stage, self._setup, settings.export)

    def _iterate(self, saved: int) -> None:
        setup = self._setup
        mesh, lines = setup.standing.groups.mesh, setup.standing.lines
        setup.progress(f"iteration {self.iteration}")
        started_s, start = time.time(), self._read()
        loss = self._pipeline.run(self._batches.next_iteration(), self._share)
        setup.world.wait()
        (mean_loss,) = over_all_ranks(self._own_loss(loss))
        done = self._read().since(start)
        if not math.isfinite(mean_loss):
            raise EngineError(f"iteration {self.iteration}: the loss is {mean_loss}; {_remedy(saved)}")
        setup.progress(f"the optimizer's step of iteration {self.iteration}")
        sum_weight_gradients(self.stage, mesh, setup.standing.groups.replicas)
        if lines.ends is not None:
            sum_tied_gradient(self.stage.tied_gradient, lines)
        self._division.reduce()
        norm = whole_norm(self._division, setup.job.workload.model, lines, counts_head=self._counts_head)
        if not torch.isfinite(norm):
            raise EngineError(f"gradient: its norm is {norm.item()} in iteration {self.iteration}; {_remedy(saved)}")
        rate = setup.learning_rate.at(self.iteration)
        self._optimizer.step(norm, rate)
        setup.world.wait()
        whole = self._read().since(start)
        setup.recorder.rows.append(
            {
                "method": setup.job.method,
                "selector": setup.job.selector,
                "rank": setup.world.rank,
                "gpus": 1,
                "stage": setup.standing.place.stage,
                "iteration": self.iteration,
                "pipeline_time_s": done.time_s,
                "pipeline_energy_j": done.energy_j,
                "time_s": whole.time_s,
                "energy_j": whole.energy_j,
                "tokens": self._tokens,
                "loss": mean_loss,
                "clocks": clock_rows(setup.clocks.drain(), started_s),
            }
        )
        self._say(mean_loss, float(norm), rate, whole)
        self.iteration += 1

    def _say(self, loss: float, norm: float, rate: float, whole: _Reading) -> None:
        """The progress line, on rank 0."""
        energy = ""
        if self._setup.device is not None:
            (energy_j,) = over_all_ranks(whole.energy_j or 0.0)
            energy = f"  {energy_j:,.1f} J"
        if self._setup.world.rank == 0:
            logger.info(
                "iteration %d/%d  loss %.4f  norm %.3f  rate %.2e  %s tokens/s  %.3f s%s",
                self.iteration + 1,
                self._setup.settings.iterations,
                loss,
                norm,
                rate,
                f"{self._tokens / whole.time_s:,.0f}",
                whole.time_s,
                energy,
            )

    def _own_loss(self, loss: Tensor | None) -> float:
        """This rank's part of the mean loss; the ranks of a tensor-parallel group all know the same one."""
        return 0.0 if loss is None or self._setup.standing.place.tp else float(loss)

    def _read(self) -> _Reading:
        device = self._setup.device
        return _Reading(time.perf_counter(), None if device is None else device.energy_j())

    def _save(self, saved: int) -> None:
        """Write a checkpoint, unless a rank's weights or moments are no finite numbers: nobody can go on from those."""
        self._setup.progress(f"the checkpoint of iteration {self.iteration}")
        (ranks_without,) = over_all_ranks(float(not self._optimizer.is_finite()))
        if ranks_without:
            raise EngineError(
                f"iteration {self.iteration - 1}: weights or their moments are infinite or not a number, no checkpoint "
                f"is written; {_remedy(saved)}"
            )
        self._setup.recorder.write()
        state = checkpoint.Checkpoint(
            iteration=self.iteration,
            model=self._optimizer.weights(),
            optimizer=self._optimizer.state(),
            random=checkpoint.random_state(),
            data=self._batches.position,
        )
        checkpoint.save(self._setup.checkpoints, state)
        over_all_ranks(0.0)  # all have written theirs
        self._setup.keep()
        if self._setup.world.rank == 0:
            checkpoint.prune(self._setup.checkpoints, self.iteration, self._setup.settings.keep)

    def _resume(self, state: checkpoint.Checkpoint) -> None:
        iteration = state.iteration
        self._optimizer.load(state.model, state.optimizer)
        checkpoint.restore_random_state(state.random)
        self._batches = Batches(self._setup.samples, self._data_share, state.data)
        self._setup.recorder.resume(iteration)
        self.iteration = iteration
        self._setup.keep()
        if self._setup.world.rank == 0:
            logger.info("resumed after iteration %d of %s", iteration, self._setup.checkpoints.folder)


def _remedy(saved: int) -> str:
    """How to go on from the checkpoint after `saved` iterations."""
    start = f"it goes on after iteration {saved}" if saved else "there is no checkpoint yet"
    return f"lower --learning-rate, --weight-decay or --clip and start it again ({start})."
