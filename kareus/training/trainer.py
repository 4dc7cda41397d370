"""The training loop of one rank."""

import logging
import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kareus.errors import EngineError
from kareus.graph.records import Direction
from kareus.launch.compute_device import synchronize
from kareus.launch.process_groups import sum_over_ranks
from kareus.model.weights import draw_weights, load_weights
from kareus.plans.throughput import throughput
from kareus.runtime.fully_sharded import FullyShardedModel
from kareus.runtime.graphs import CudaCapture
from kareus.training import checkpoint
from kareus.training.batches import Batches, DataShare
from kareus.training.bucket_reduction import BucketReduction
from kareus.training.checkpoint import Checkpoint
from kareus.training.checkpoint_files import Header, iteration_folder
from kareus.training.checkpoint_writer import CheckpointWriter
from kareus.training.exporting import check_exportable, export_weights
from kareus.training.full_sharding import FullSharding
from kareus.training.metrics import EventFiles
from kareus.training.optimizer import Optimizer, whole_norm
from kareus.training.optimizer_sharding import OptimizerSharding
from kareus.training.recorder import clock_rows, forget_iterations
from kareus.training.setup import RankSetup, make_chunks, make_fully_sharded, make_pipeline
from kareus.update.collectives import update_directions
from kareus.workload.model_flops import tokens_per_iteration

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Time and energy counter of a GPU at one moment, or what passed between two."""

    time_s: float
    energy_j: float | None

    def since(self, before: "_Reading") -> "_Reading":
        """Return the time and energy that passed after `before`."""
        energy_j = None if self.energy_j is None or before.energy_j is None else self.energy_j - before.energy_j
        return _Reading(self.time_s - before.time_s, energy_j)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Results of one iteration; all but the loss and the norm are of this rank."""

    started_s: float
    """Start, seconds since the epoch."""
    pipeline: _Reading
    """Time and energy up to the last backward of all ranks."""
    reduced: _Reading
    """Time and energy up to the end of this rank's gradient sums."""
    whole: _Reading
    """Time and energy with the optimizer's step."""
    loss: float
    balance: float
    """Loss that balances experts, as it is added; 0 without."""
    norm: float
    learning_rate: float


class Trainer:
    """The model, optimizer and data of one rank, and the loop over iterations."""

    def __init__(self, setup: RankSetup) -> None:
        """Make the model, optimizer and data, at the beginning or at the last checkpoint.

        Raises:
            KareusError: weights or a checkpoint cannot be read or are of another training.
        """
        self._setup = setup
        torch.manual_seed(setup.seed)
        workload, settings = setup.job.workload, setup.settings
        parallelism = workload.parallelism
        if settings.export is not None:
            check_exportable(workload.model, settings.export, settings.weights, replace=settings.replace_export)
        self.stage = make_chunks(setup)
        self._loss_weight = 1 / (workload.num_microbatches * parallelism.dp * parallelism.cp)
        self._tokens = tokens_per_iteration(workload)
        self._data_share = DataShare(
            microbatch_size=workload.microbatch_size,
            num_microbatches=workload.num_microbatches,
            dp_rank=setup.coordinate.replica,
            dp=parallelism.dp,
            cp_rank=setup.coordinate.cp,
            cp=parallelism.cp,
        )
        # tied embeddings are on two stages and count once in the gradient's norm
        self._counts_head = not (workload.model.tie_embeddings and parallelism.pp > 1)
        last = checkpoint.last_whole(setup.checkpoints, setup.rendezvous.all_gather)
        fill = self._first_weights if last is None else _later_weights
        self._fully_sharded: FullyShardedModel | None = None
        self._sharding: OptimizerSharding | FullSharding
        self._reduction: BucketReduction | FullSharding
        if not parallelism.shards_gradients:
            fill(self.stage)
            self._sharding = OptimizerSharding(self.stage, setup.groups.optimizer_shards, setup.groups.expert_shards)
            self._reduction = BucketReduction(self.stage, self._sharding, setup.groups)
            self._pipeline = make_pipeline(setup, self.stage.chunks, self._reduction.ready)
        else:
            self._fully_sharded = make_fully_sharded(setup, self.stage, fill)
            self._sharding = self._reduction = FullSharding(self.stage, self._fully_sharded)
            self._pipeline = make_pipeline(setup, [self._fully_sharded], self._reduction.ready)
        planned = workload.iteration.include_update
        self._planned = update_directions(workload, setup.coordinate.stage) if planned else ()
        self._optimizer = Optimizer(self._sharding, settings.optimizer, workload.model.experts, self._tokens)
        self._writer = CheckpointWriter(setup.checkpoints)
        self.iteration = 0
        self._saved = 0
        """Iterations of the last checkpoint that is known to be complete."""
        self._begun = 0
        """Iterations of the last checkpoint that was begun."""
        self._batches = Batches(setup.samples, self._data_share)
        if last is not None:
            self._resume(last)
        self._events: EventFiles | None = None
        if settings.metrics is not None and setup.rendezvous.rank == 0:
            self._events = EventFiles(settings.metrics, self.iteration)

    def run(self) -> None:
        """Train to the last iteration.

        Raises:
            EngineError: the loss is not a number.
            KareusError: reading data, setting clocks or writing files failed.
        """
        settings = self._setup.settings
        captures = settings.cuda_graphs and self._setup.device.type == "cuda"
        try:
            while self.iteration < settings.iterations:
                self._writer.check()
                measured = self._iterate()
                self._record(measured)
                self._report(measured)
                self.iteration += 1
                if captures and self.iteration < settings.iterations:
                    captures = False
                    self._capture()
                due = settings.checkpoint_every and self.iteration % settings.checkpoint_every == 0
                if due or self.iteration == settings.iterations:
                    self._save()
            self._complete_checkpoint()
        finally:
            self._setup.recorder.write()
            if self._events is not None:
                self._events.close()
        if settings.export is not None:
            self._setup.monitor.progress("the export")
            if self._fully_sharded is not None:
                self._fully_sharded.unshard_all()
            export_weights(self.stage, self._setup, settings.export)
        if self._setup.rendezvous.rank == 0:
            self._report_end()

    def _capture(self) -> None:
        """Have later iterations launch blocks by CUDA graphs, now that the first has compiled and connected all."""
        setup, parallelism = self._setup, self._setup.job.workload.parallelism
        setup.monitor.progress("capturing CUDA graphs")
        synchronize(setup.device)
        sum_over_ranks(0.0)  # messages and collectives of all ranks have ended
        torch.cuda.empty_cache()  # what blocks took in the first iteration, the pool of the graphs takes
        count = self._pipeline.capture(CudaCapture(setup.device), reduces=parallelism.dp * parallelism.cp > 1)
        if setup.rendezvous.rank == 0:
            logger.info("captured CUDA graphs of %d microbatches", count)

    def _iterate(self) -> _Measured:
        """Train one iteration.

        Raises:
            EngineError: the loss or the gradient's norm is not finite; weights are as before the iteration.
        """
        setup, groups = self._setup, self._setup.groups
        setup.monitor.progress(f"iteration {self.iteration}")
        started_s, start = time.time(), self._read()
        # forward and backward of all microbatches
        loss = self._pipeline.run(self._batches.next_iteration(), self._loss_weight)
        synchronize(setup.device)
        mean_loss, balance = sum_over_ranks(self._own_loss(loss), self._pipeline.take_balance_loss())
        pipeline = self._read().since(start)
        if not math.isfinite(mean_loss):
            raise EngineError(f"iteration {self.iteration}: the loss is {mean_loss}; {self._remedy()}")
        # what of the gradient sums is left, and the optimizer's step
        setup.monitor.progress(f"the optimizer's step of iteration {self.iteration}")
        self._announce(Direction.GRADIENT_REDUCTION)
        self._reduction.finish()
        if groups.tied_embeddings is not None:
            self._announce(Direction.EMBEDDING_EXCHANGE)
            assert isinstance(self._reduction, BucketReduction), "a model on one stage has one embedding"
            self._reduction.exchange()
        synchronize(setup.device)
        reduced = self._read().since(start)
        self._announce(Direction.UPDATE)
        norm = whole_norm(self._sharding, setup.job.workload.model, groups, counts_head=self._counts_head)
        if not torch.isfinite(norm):
            raise EngineError(f"gradient: its norm is {norm.item()} in iteration {self.iteration}; {self._remedy()}")
        rate = setup.settings.learning_rate.at(self.iteration)
        self._optimizer.step(norm, rate)
        synchronize(setup.device)
        self._pipeline.end_iteration()
        return _Measured(
            started_s=started_s,
            pipeline=pipeline,
            reduced=reduced,
            whole=self._read().since(start),
            loss=mean_loss,
            balance=balance,
            norm=float(norm),
            learning_rate=rate,
        )

    def _announce(self, direction: Direction) -> None:
        """Announce an instruction of the update to the plan follower, where it is planned."""
        if direction in self._planned:
            self._pipeline.begin_update(direction)

    def _own_loss(self, loss: Tensor | None) -> float:
        """Return this rank's part of the mean loss; all ranks of a tensor-parallel group have the same one."""
        return 0.0 if loss is None or self._setup.coordinate.tp else float(loss)

    def _read(self) -> _Reading:
        gpu = self._setup.gpu
        return _Reading(time.perf_counter(), None if gpu is None else gpu.energy_j())

    def _record(self, measured: _Measured) -> None:
        """Add a row of the table `ITERATIONS`."""
        setup = self._setup
        reduction, update = measured.reduced.since(measured.pipeline), measured.whole.since(measured.reduced)
        setup.recorder.rows.append(
            {
                "method": setup.job.method,
                "selector": setup.job.selector,
                "rank": setup.rendezvous.rank,
                "gpus": 1,
                "stage": setup.coordinate.stage,
                "iteration": self.iteration,
                "pipeline_time_s": measured.pipeline.time_s,
                "pipeline_energy_j": measured.pipeline.energy_j,
                "reduction_time_s": reduction.time_s,
                "reduction_energy_j": reduction.energy_j,
                "update_time_s": update.time_s,
                "update_energy_j": update.energy_j,
                "time_s": measured.whole.time_s,
                "energy_j": measured.whole.energy_j,
                "includes_update": setup.job.workload.iteration.include_update,
                "tokens": self._tokens,
                "loss": measured.loss,
                "clocks": clock_rows(setup.clocks.drain(), measured.started_s),
            }
        )

    def _report(self, measured: _Measured) -> None:
        """Log the line of an iteration and add it to the event files, on rank 0; every rank calls this."""
        setup, energy_j = self._setup, None
        if setup.gpu is not None:
            (energy_j,) = sum_over_ranks(measured.whole.energy_j or 0.0)
        if setup.rendezvous.rank:
            return
        reached = throughput(setup.job.workload, measured.whole.time_s, energy_j)
        logger.info(
            "iteration %d/%d  loss %.4f%s  norm %.3f  rate %.2e  %s",
            self.iteration + 1,
            setup.settings.iterations,
            measured.loss,
            f"  balance {measured.balance:.2e}" if measured.balance else "",
            measured.norm,
            measured.learning_rate,
            reached,
        )
        if self._events is not None:
            scalars = {
                "train/loss": measured.loss,
                **({"train/balance_loss": measured.balance} if measured.balance else {}),
                "train/gradient_norm": measured.norm,
                "train/learning_rate": measured.learning_rate,
                "iteration/time_s": reached.time_s,
                "iteration/energy_j": reached.energy_j,
                "throughput/tokens_per_s": reached.tokens_per_s,
                "throughput/mfu": reached.mfu,
                "throughput/joules_per_token": reached.joules_per_token,
            }
            self._events.add(self.iteration, scalars)

    def _report_end(self) -> None:
        """Log where the last checkpoint and the exported weights are."""
        settings = self._setup.settings
        written = iteration_folder(self._setup.checkpoints.folder, self._saved)
        logger.info("checkpoint %s (after iteration %d)", written, self._saved)
        if settings.export is not None:
            logger.info("weights    %s (Hugging Face)", settings.export)

    def _save(self) -> None:
        """Begin to write a checkpoint, once the one before is complete; every rank calls this.

        Raises:
            EngineError: weights or moments of a rank are not finite. No training could go on from them.
            KareusError: the checkpoint before could not be written.
        """
        setup = self._setup
        setup.monitor.progress(f"the checkpoint of iteration {self.iteration}")
        unusable, writing = sum_over_ranks(float(not self._optimizer.is_finite()), float(self._writer.is_busy))
        if unusable:
            raise EngineError(
                f"iteration {self.iteration - 1}: weights or their moments are infinite or not a number, no checkpoint "
                f"is written; {self._remedy()}"
            )
        if writing and setup.rendezvous.rank == 0:
            logger.warning(
                "the checkpoint of iteration %d waits, since that of iteration %d is still being written; raise "
                "--checkpoint-every, or write to a faster disk.",
                self.iteration,
                self._begun,
            )
        self._complete_checkpoint()
        setup.recorder.write()
        if self._events is not None:
            self._events.flush()
        state = Checkpoint(
            iteration=self.iteration,
            tensors=self._optimizer.slices(setup.job.workload.model, setup.groups.mesh),
            random=checkpoint.random_state(),
            data=self._batches.position,
        )
        self._writer.start(state)
        self._begun = self.iteration

    def _complete_checkpoint(self) -> None:
        """Wait until all ranks have written the last checkpoint that was begun; every rank calls this.

        Raises:
            KareusError: it could not be written.
        """
        if self._begun == self._saved:
            return
        setup = self._setup
        self._writer.wait()
        sum_over_ranks(0.0)  # all have written theirs
        self._saved = self._begun
        setup.monitor.keep()
        if setup.rendezvous.rank == 0:
            checkpoint.prune(setup.checkpoints, self._saved, setup.settings.keep)

    def _first_weights(self, module: nn.Module) -> None:
        """Draw or read the weights of a part of the stage."""
        model, mesh = self._setup.job.workload.model, self._setup.groups.mesh
        if self._setup.settings.weights is None:
            draw_weights(module, model, self._setup.seed, 0, mesh)
        else:
            load_weights(module, model, self._setup.settings.weights, 0, mesh)

    def _resume(self, last: Header) -> None:
        """Go on from a checkpoint, which any number of ranks may have written."""
        setup = self._setup
        self._optimizer.resume(steps=last.iteration)
        targets = self._optimizer.slices(setup.job.workload.model, setup.groups.mesh)
        random = checkpoint.load(setup.checkpoints, last, targets)
        self._optimizer.publish()
        checkpoint.restore_random_state(random)
        self._batches = Batches(setup.samples, self._data_share, last.data)
        setup.recorder.resume(last.iteration)
        self.iteration = self._begun = self._saved = last.iteration
        setup.monitor.keep()
        if setup.rendezvous.rank == 0:
            ranks = range(setup.rendezvous.world_size, last.ranks)
            forget_iterations(setup.settings.output, ranks, last.iteration)
            rest = "" if last.iteration < setup.settings.iterations else "; there is nothing left to train"
            logger.info("resumed after iteration %d of %s%s", last.iteration, setup.checkpoints.folder, rest)

    def _remedy(self) -> str:
        """Return how to go on from the last checkpoint, once it is complete; every rank calls this.

        Before any update nothing that sets updates is at fault, but what the training began with.
        """
        if self.iteration == 0:
            given = self._setup.settings.weights
            began_with = "the drawn weights give" if given is None else f"--weights {given}: these weights give"
            return f"nothing was updated before it; {began_with} no finite loss or gradient, so begin with others."
        self._complete_checkpoint()
        start = f"it goes on after iteration {self._saved}" if self._saved else "there is no checkpoint yet"
        return f"lower --learning-rate, --weight-decay or --clip and start it again ({start})."


def _later_weights(_module: nn.Module) -> None:
    """Leave weights as they are, which come from a checkpoint."""
