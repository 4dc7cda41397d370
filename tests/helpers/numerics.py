"""Pipelines of tiny models whose loss and gradients are compared with those of transformers, on ranks of gloo."""

import dataclasses
import gc
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import Tensor

from helpers.cpu_pipelines import stage_on_cpu
from helpers.hugging_face import LOSS, load_gradients, save_checkpoint, save_gradients
from helpers.trainings import tiny_workload
from helpers.worlds import LLAMA, graph_of, schedules
from kareus.device.controller import DryClocks
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import BlockGraph
from kareus.launch.mesh import coordinate_of
from kareus.launch.process_groups import make_process_groups, sum_over_ranks
from kareus.model.communication import Mesh
from kareus.model.communicators.choice import Library
from kareus.model.published import published, whole_weight
from kareus.model.shards import shard_of
from kareus.model.weights import held_pieces, load_weights, own_part
from kareus.partition.detect import detect_partitions
from kareus.pipeline.config import CHUNKS_OF_V, PipelineConfig, PipelineSchedule
from kareus.profile.programs import Execution, laid_out_shapes
from kareus.runtime.actions import actions_of
from kareus.runtime.boundary import boundary_shapes
from kareus.runtime.chunk_stage import ChunkStage
from kareus.runtime.follower import PlanFollower, planned_steps
from kareus.runtime.pipeline import Pipeline, balances_of
from kareus.runtime.schedules import Microbatch, MicrobatchSchedule, Schedule
from kareus.runtime.stage_chunks import StageChunks, first_layers
from kareus.runtime.stage_model import StageModel
from kareus.schedule.records import Choice
from kareus.training.batches import Batches, DataShare
from kareus.training.bucket_reduction import BucketReduction
from kareus.training.optimizer import whole_norm
from kareus.training.optimizer_sharding import OptimizerSharding
from kareus.training.samples import SyntheticSamples
from kareus.update.collectives import update_directions
from kareus.workload.config import Workload

TOLERANCE = 1e-5
QWEN2 = dataclasses.replace(LLAMA, name="tiny-qwen2", qkv_bias=True, num_key_value_heads=4)
TIED = dataclasses.replace(
    LLAMA, name="tiny-qwen3", qk_norm=True, num_key_value_heads=4, vocab_size=264, tie_embeddings=True
)
FOUR_LAYERS = dataclasses.replace(LLAMA, num_layers=4)
FIVE_LAYERS = dataclasses.replace(LLAMA, num_layers=5)
TIED_LAYERS = dataclasses.replace(TIED, num_layers=4)
GPIPE = PipelineConfig(schedule=PipelineSchedule.GPIPE, chunks=1, deadlines=2)
ZERO_BUBBLE = PipelineConfig(schedule=PipelineSchedule.ZERO_BUBBLE_H1, chunks=1, deadlines=2)
INTERLEAVED = {
    "pipeline": PipelineConfig(schedule=PipelineSchedule.INTERLEAVED, chunks=2, deadlines=2),
    "num_microbatches": 4,
}
UNEVEN = (2, 1, 1, 1)
"""Blocks on each chunk of two stages, in the order in which they are passed."""
Planned = tuple[dict[tuple[int, int], MicrobatchSchedule], ...]
"""Schedules by chunk and microbatch, by stage; what nothing is said of runs sequentially."""


class Case(NamedTuple):
    """A workload, and the graph of its block."""

    workload: Workload
    graph: BlockGraph


class Reference(NamedTuple):
    """Files of transformers."""

    checkpoint: Path
    gradients: Path
    """Loss and gradients in fp32; in bf16 in `bf16.safetensors` beside it, if they were asked for."""

    @property
    def bf16_gradients(self) -> Path:
        return self.gradients.with_name(f"bf16-{self.gradients.name}")


def case(dp: int = 1, pp: int = 1, tp: int = 1, cp: int = 1, **changes: object) -> Case:
    workload = tiny_workload(dp, pp, tp, cp, **changes)
    return Case(workload, graph_of(workload.model, workload.parallelism))


def in_a_v(schedule: PipelineSchedule) -> dict[str, Any]:
    """What microbatches that pass two stages there and back need."""
    pipeline = PipelineConfig(schedule=schedule, chunks=CHUNKS_OF_V, deadlines=2)
    return {"pipeline": pipeline, "num_microbatches": 4}


def uneven(of: Case) -> Case:
    """The same with other blocks on each chunk."""
    parallelism = dataclasses.replace(of.workload.parallelism, layers_per_stage=UNEVEN)
    return of._replace(workload=dataclasses.replace(of.workload, parallelism=parallelism))


def with_references(cases: Sequence[Case], folder: Path, *, bf16: bool = False) -> list[tuple[Case, Reference]]:
    """Let transformers compute what the cases are compared with, once for each model and batch."""
    made: dict[object, Reference] = {}
    given = []
    for of in cases:
        workload = of.workload
        replicas, length = workload.parallelism.dp, workload.sequence_length
        key = (repr(workload.model), length, workload.microbatch_size, workload.num_microbatches, replicas)
        if key not in made:
            own = made[key] = Reference(folder / f"{len(made)}", folder / f"{len(made)}.safetensors")
            save_checkpoint(workload.model, length, own.checkpoint)
            everything = [m for replica in range(replicas) for m in microbatches(workload, replica, 0, 1)]
            save_gradients(own.checkpoint, everything, torch.float32, own.gradients)
            if bf16:
                save_gradients(own.checkpoint, everything, torch.bfloat16, own.bf16_gradients)
        given.append((of, made[key]))
    return given


def plans(of: Case) -> st.SearchStrategy[Planned]:
    """Any legal plan of the pipeline: each microbatch runs as it likes through each chunk."""
    recomputation, split_backward = of.workload.recomputation, of.workload.split_backward
    one = schedules(of.graph, recomputation=recomputation, split_backward=split_backward)
    passes = itertools.product(range(of.workload.chunks), range(of.workload.num_microbatches))
    stage = st.fixed_dictionaries(dict.fromkeys(passes, one))
    return st.tuples(*[stage] * of.workload.parallelism.pp)


def overlapped(of: Case) -> MicrobatchSchedule:
    """Every collective launched beside the last operator of its partition; nanobatching where there is none."""
    recomputation, split_backward = of.workload.recomputation, of.workload.split_backward
    choices = tuple(
        Choice(partition=p.name, sm_count=3, launch=p.operators[-1].name)
        for p in detect_partitions(of.graph, recomputation=recomputation, split_backward=split_backward)
    )
    schedule = Schedule(Execution.OVERLAP, choices) if choices else Schedule(Execution.NANOBATCHING)
    return MicrobatchSchedule(schedule, schedule)


def microbatches(workload: Workload, dp_rank: int, cp_rank: int, cp: int) -> list[Microbatch]:
    share = DataShare(
        microbatch_size=workload.microbatch_size,
        num_microbatches=workload.num_microbatches,
        dp_rank=dp_rank,
        dp=workload.parallelism.dp,
        cp_rank=cp_rank,
        cp=cp,
    )
    samples = SyntheticSamples(workload.model.vocab_size, workload.sequence_length, seed=1)
    return Batches(samples, share).next_iteration()


def own_shard(gradients: dict[str, Tensor], workload: Workload, name: str, mesh: Mesh) -> Tensor:
    """Return the part of transformers' gradients that is this rank's of our weight `name`."""
    held = held_pieces(workload.model, name, 0, mesh)
    places = [published(workload.model, piece.name) for piece in held]
    whole = [whole_weight(place, p.shape, gradients[place.name]) for place, p in zip(places, held, strict=True)]
    return torch.cat([each[own_part(piece, mesh)] for each, piece in zip(whole, held, strict=True)])


class PipelineRank:
    """One rank of a pipeline that runs an iteration by any plan, and what its loss and gradients are compared with."""

    def __init__(self, rank: int, of: Case, reference: Reference, dtype: torch.dtype = torch.float32) -> None:
        workload = self.workload = of.workload
        parallelism = workload.parallelism
        place = self.place = coordinate_of(rank, parallelism, dist.get_world_size())
        ties = workload.model.tie_embeddings
        groups = self.groups = make_process_groups(
            place,
            parallelism,
            Library.GLOO,
            scratch_bytes=0,
            tie_embeddings=ties,
            has_experts=workload.model.experts is not None,
        )
        models = self._models(of, dtype)
        first = first_layers(laid_out_shapes(workload), place.stage, folded=parallelism.folded)
        self.stage = StageChunks(models, first)
        load_weights(self.stage, workload.model, reference.checkpoint, 0, groups.mesh)
        self.scheduled: dict[tuple[int, int], MicrobatchSchedule] = {}
        self.follower = Watching(planned_steps(workload, None, place.stage), DryClocks(), lambda: None)
        self.sharding = OptimizerSharding(self.stage, groups.optimizer_shards, groups.expert_shards)
        self.reduction = BucketReduction(self.stage, self.sharding, groups)
        self.pipeline = Pipeline(
            models,
            stage_on_cpu(place.stage, parallelism.pp, groups, folded=parallelism.folded),
            boundary_shapes(workload, dtype),
            actions_of(workload, None),
            self.scheduled,
            self.follower,
            self.reduction.ready,
            balances_of(workload, groups.balance),
        )
        self.follower.stages = self.pipeline._runtime._stages
        self.norm = torch.zeros(())
        """Of the whole model's gradient in the last iteration."""
        self.microbatches = microbatches(workload, place.replica, place.cp, parallelism.cp)

    def ran(self, planned: Planned) -> dict[str, Tensor]:
        """Run one iteration; the loss, and the gradients of what this rank optimizes."""
        self.scheduled.clear()
        self.scheduled.update(planned[self.place.stage])
        parallelism = self.workload.parallelism
        share = 1 / (self.workload.num_microbatches * parallelism.dp * parallelism.cp)
        loss = self.pipeline.run(self.microbatches, share)
        assert sorted(self.reduction.in_flight) == sorted(self.sharding.buckets), "all began in backwards"
        self.reduction.finish()
        if self.groups.tied_embeddings is not None:
            self.reduction.exchange()
        for direction in update_directions(self.workload, self.place.stage):
            self.pipeline.begin_update(direction)
        self.pipeline.end_iteration()
        balance = self.pipeline.take_balance_loss()
        (summed,) = sum_over_ranks(balance + (0.0 if loss is None or self.place.tp else float(loss)))
        self.norm = whole_norm(
            self.sharding,
            self.workload.model,
            self.groups,
            counts_head=not (self.workload.model.tie_embeddings and parallelism.pp > 1),
        )
        gradients = {shard.name: shard.gradient.clone() for shard in self.sharding.shards if shard.gradient.numel()}
        self.sharding.zero_gradients()
        return {LOSS: torch.tensor(summed), **gradients}

    def expected(self, gradients: Path) -> dict[str, Tensor]:
        """What transformers wrote there of what `ran` returns."""
        theirs = load_gradients(gradients)
        own = {
            shard.name: own_shard(theirs, self.workload, shard.name, self.groups.mesh).flatten()[
                shard.start : shard.start + shard.gradient.numel()
            ]
            for shard in self.sharding.shards
            if shard.gradient.numel()
        }
        return {LOSS: theirs[LOSS], **own}

    def _models(self, of: Case, dtype: torch.dtype) -> list[StageModel]:
        workload, parallelism = of.workload, of.workload.parallelism
        shard = shard_of(workload.model, parallelism, workload.sequence_length)
        shapes = laid_out_shapes(workload)
        return [
            StageModel(
                workload.model,
                shard,
                self.groups.mesh,
                shapes[self.place.stage, chunk],
                dtype,
                recomputation=workload.recomputation,
                graph=of.graph,
                default_sm_count=20,
            )
            for chunk in range(workload.chunks)
        ]


class Watching(PlanFollower):
    """Notes how much memory the outputs of microbatches in flight take whenever an instruction begins."""

    stages: Sequence[ChunkStage] = ()
    most_bytes = 0

    def begin(self, key: InstructionKey) -> None:
        super().begin(key)
        for outputs, _ in (passed for stage in self.stages for passed in stage.fwd_cache.values()):
            self.most_bytes = max([self.most_bytes, *(t.untyped_storage().nbytes() for t in outputs)])


def activations(workload: Workload) -> list[Tensor]:
    """Tensors that have the size of what passes between stages; shards of weights may have it, too."""
    shapes = boundary_shapes(workload, torch.float32)
    tensors = [t for t in gc.get_objects() if type(t) is Tensor and t.device.type == "cpu"]
    return [t for t in tensors if t.shape in (shapes.hidden, shapes.message)]
