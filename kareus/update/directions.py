"""Instructions of the update of the weights on a stage."""

from typing import Protocol

from kareus.graph.records import Direction
from kareus.model.config import Model, Parallelism
from kareus.model.training_options import TrainingOptions


class Replicated(Protocol):
    """A slice of a workload that says how its weights are laid out over GPUs."""

    @property
    def model(self) -> Model:
        """The network."""

    @property
    def parallelism(self) -> Parallelism:
        """Its layout."""

    @property
    def training(self) -> TrainingOptions:
        """What else is trained otherwise than usual."""


def update_directions(config: Replicated, stage: int) -> tuple[Direction, ...]:
    """Return the directions of the instructions that end an iteration on `stage`, in order of execution.

    Gradients are reduced where several ranks hold the same weights for other tokens, by data or context parallelism;
    with sharded gradients every backward reduces its own, and only their shards are summed over the replicas that hold
    the same, once an iteration (`fully_shard` with `set_requires_all_reduce` for the last microbatch).
    """
    parallelism = config.parallelism
    several = parallelism.dp * parallelism.cp > 1
    reduces = several and (not parallelism.shards_gradients or parallelism.copies > 1)
    return (
        *(Direction.GRADIENT_REDUCTION,) * reduces,
        *(Direction.EMBEDDING_EXCHANGE,) * exchanges(config, stage),
        Direction.UPDATE,
    )


def exchanges(config: Replicated, stage: int) -> bool:
    """Return whether `stage` holds a copy of tied embeddings that another stage holds, too."""
    last = config.parallelism.head_stage
    trained = config.model.tie_embeddings and not config.training.trains_adapters
    return trained and last > 0 and stage in (0, last)
