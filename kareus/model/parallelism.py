"""Degrees of parallelism, and what replicas share out: the record of Hydra group `parallelism`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kareus.artifacts.ranges import within
from kareus.artifacts.records import ADDED
from kareus.errors import ConfigError

MOST_GPUS = 1_000_000
"""Largest number of GPUs of one job."""
MOST_CHANNELS = 64
"""Channels of an NCCL communicator, at most (MAXCHANNELS of NCCL); each runs on an SM of its own."""
MOST_PREFETCHED = 100
"""Blocks ahead."""
NVLS_CHOICE = "allgather:nvls"
"""Value of NCCL_ALGO by which all-gathers go through the switches (NCCL 2.24 and newer)."""
EXCHANGES = ("gather", "reduce", "copies")
"""What replicas that share out weights exchange: all-gathers, reduce-scatters, and the sum over groups of copies."""


class Sharding(StrEnum):
    """What of the model states data-parallel replicas share out instead of holding it whole (ZeRO, SC 2020)."""

    NONE = "none"
    """Nothing."""
    OPTIMIZER = "optimizer"
    """Master weights and moments of the optimizer (ZeRO stage 1)."""
    GRADIENTS = "gradients"
    """Those and gradients, which are reduce-scattered in every microbatch (ZeRO stage 2)."""
    FULL = "full"
    """Those and weights, which are gathered block by block (ZeRO stage 3, FSDP)."""


HYBRID = "hybrid"
"""Word for what is shared out among the replicas of a node alone (HSDP): `FULL`, with as many `shards`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpSettings:
    """How replicas exchange the weights that they share out; all of it is set in the trainer, and changes no result."""

    gather_sms: int | None = None
    """SMs of all-gathers; null: as many as NCCL takes by itself (`testbed.default_collective_sm_count`), as below."""
    reduce_sms: int | None = None
    """SMs of reduce-scatters; another number than that of all-gathers needs a communicator of their own."""
    copies_sms: int | None = None
    """SMs of the all-reduce over groups of replicas that hold copies (HSDP)."""
    prefetch: int = 1
    """Blocks whose weights are gathered ahead while one runs."""
    nvls: bool = False
    """Whether the switches multicast what is gathered inside a node, from buffers that NCCL has registered (NVLS)."""

    def __post_init__(self) -> None:
        within(self, 1, MOST_CHANNELS, "SMs", *(f"{name}_sms" for name in EXCHANGES if self.sms(name) is not None))
        within(self, 1, MOST_PREFETCHED, "blocks ahead", "prefetch")
        if self.nvls and self.gather_sms is not None:
            raise ConfigError(f"gather_sms={self.gather_sms}: NVLS takes the SMs that it needs; leave it out.")

    def sms(self, exchange: str) -> int | None:
        """Return the SMs of an exchange, of `EXCHANGES`."""
        return getattr(self, f"{exchange}_sms")  # type: ignore[no-any-return]

    @property
    def label(self) -> str:
        """What differs from usual, for names; empty where nothing does.

        Example:
            >>> from kareus.model.parallelism import FsdpSettings
            >>> FsdpSettings(gather_sms=9, prefetch=2).label, FsdpSettings().label
            ('gather9-prefetch2', '')
        """
        parts = [f"{name}{self.sms(name)}" for name in EXCHANGES if self.sms(name) is not None]
        parts += [f"prefetch{self.prefetch}"] * (self.prefetch > 1) + ["nvls"] * self.nvls
        return "-".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Degrees of parallelism; their product is the number of GPUs."""

    dp: int
    """Data-parallel replicas of the pipeline."""
    pp: int
    """Pipeline stages."""
    tp: int
    """GPUs that share every layer's weights (tensor parallelism, inside a node)."""
    cp: int
    """GPUs that share every sequence (context parallelism: keys and values are gathered)."""
    layers_per_stage: tuple[int, ...] | None
    """Blocks on each stage, or on each chunk of all stages in the order in which a microbatch passes them; null takes
    the model's split for `pp`, or computes one. Always set once resolved."""
    sharding: Sharding
    """What of the model states the data-parallel replicas share out among themselves."""
    sequence_parallel: bool = True
    """Whether the GPUs of a tensor-parallel group share the tokens between its matrix products (sequence parallelism):
    an all-gather before and a reduce-scatter after them replace an all-reduce. Resolved to false where tp is 1."""
    ep: int = field(default=1, metadata=ADDED)
    """GPUs that share out the experts of a block (expert parallelism). They are taken from those of data, context and
    tensor parallelism, whose product `ep` x `etp` divides; what is left over holds the same experts."""
    etp: int = field(default=1, metadata=ADDED)
    """GPUs that share every expert's weights (tensor parallelism of experts)."""
    shards: int | None = field(default=None, metadata=ADDED)
    """Replicas that share out model states among themselves, neighbours in the order of ranks; the groups of so many
    hold copies (hybrid sharding, HSDP). Null: all replicas."""

    fsdp: FsdpSettings = field(default=FsdpSettings(), metadata=ADDED)
    """How replicas exchange weights that they share out."""
    folded: bool = field(default=False, metadata=ADDED)
    """Whether blocks pass the stages there and back, in two chunks each, so that the first stage also has the last
    blocks and the LM head. Resolved from the pipeline's schedule."""

    def __post_init__(self) -> None:
        within(self, 1, 1_000_000, "GPUs", "dp", "pp", "tp", "cp", "ep", "etp")
        if self.gpus > MOST_GPUS:
            raise ConfigError(f"dp x pp x tp x cp={self.gpus:,}: must be at most {MOST_GPUS:,} GPUs.")
        if self.shards is not None:
            within(self, 2, 1_000_000, "replicas", "shards")
            if self.sharding is Sharding.NONE:
                raise ConfigError(
                    f"parallelism.shards={self.shards}: nothing is shared out with sharding=none; give "
                    "parallelism.sharding=full, gradients or optimizer."
                )

    @property
    def placed(self) -> tuple[int, ...]:
        """Blocks on each stage of a resolved workload, or on each chunk, as they are given.

        Raises:
            ConfigError: it was not resolved.
        """
        if self.layers_per_stage is None:
            raise ConfigError("parallelism.layers_per_stage: null; use a configuration that `kareus resolve` wrote.")
        return self.layers_per_stage

    @property
    def split(self) -> tuple[int, ...]:
        """Blocks on each stage of a resolved workload, in all of its chunks.

        Raises:
            ConfigError: it was not resolved.
        """
        return self.summed(self.placed, self.pp, folded=self.folded)

    @staticmethod
    def summed(placed: Sequence[int], stages: int, *, folded: bool) -> tuple[int, ...]:
        """Return blocks on each of so many stages of blocks on each chunk, in the order in which they are passed.

        Examples:
            >>> Parallelism.summed((3, 2, 2, 1), 2, folded=False), Parallelism.summed((3, 2, 2, 1), 2, folded=True)
            ((5, 3), (4, 4))
        """
        if len(placed) == stages:
            return tuple(placed)
        passed = [placed[at : at + stages] for at in range(0, len(placed), stages)]
        turned = [blocks[::-1] if folded and chunk % 2 else blocks for chunk, blocks in enumerate(passed)]
        return tuple(map(sum, zip(*turned, strict=True)))

    @property
    def head_stage(self) -> int:
        """Stage that has the LM head."""
        return 0 if self.folded else self.pp - 1

    @property
    def token_shards(self) -> int:
        """Parts in which a tensor-parallel group shares the tokens between its matrix products; 1 where it does not."""
        return self.tp if self.sequence_parallel else 1

    @property
    def sharing(self) -> int:
        """Replicas that share out model states among themselves."""
        return self.dp if self.shards is None else self.shards

    @property
    def copies(self) -> int:
        """Replicas that hold the same shard, whose gradients are summed over them; 1 where all share."""
        return self.dp // self.sharing

    @property
    def shards_states(self) -> bool:
        """Whether replicas hold no more than a part of the optimizer's states: each updates a shard of the weights."""
        return self.dp > 1 and self.sharding is not Sharding.NONE

    @property
    def shards_gradients(self) -> bool:
        """Whether replicas hold no more than a part of the gradients."""
        return self.dp > 1 and self.sharding in (Sharding.GRADIENTS, Sharding.FULL)

    @property
    def shards_weights(self) -> bool:
        """Whether replicas hold no more than a part of the weights."""
        return self.dp > 1 and self.sharding is Sharding.FULL

    def halves(self, microbatch_size: int) -> bool:
        """Whether a microbatch can run as two nanobatches: an even one, where blocks hide no collectives of weights."""
        return microbatch_size % 2 == 0 and not self.shards_gradients

    @property
    def replicas_exchange(self) -> bool:
        """Whether GPUs of several replicas share out experts, so that these wait for one another in every block."""
        return self.ep * self.etp > self.cp * self.tp

    @property
    def expert_replicas(self) -> int:
        """GPUs of a stage that hold the same part of the experts: their own data parallelism.

        Megatron Core folds the ranks of a stage anew for experts: dp x cp x tp = replicas x ep x etp.
        """
        return self.gpus_per_stage // (self.ep * self.etp)

    @property
    def expert_sharing(self) -> int:
        """Those of them that share out the experts' states among themselves: those of one sharing group."""
        return self.expert_replicas // self.copies

    @property
    def gpus_per_stage(self) -> int:
        """GPUs that run one stage, over all replicas."""
        return self.dp * self.cp * self.tp

    def rank(self, stage: int, replica: int = 0, cp: int = 0, tp: int = 0) -> int:
        """Return the rank at a place of the mesh: tensor parallelism varies fastest, then context, data and pipeline.

        That is Megatron-LM's order; it keeps the ranks of a tensor-parallel group on one node.
        """
        return ((stage * self.dp + replica) * self.cp + cp) * self.tp + tp

    def expert_ranks(self, stage: int, place: int = 0) -> list[int]:
        """Return the ranks of an expert-parallel group of a stage, that of its GPU `place`, from 0.

        With `etp` these are every so manieth of neighbours.
        """
        together = self.ep * self.etp
        first = stage * self.gpus_per_stage + place // together * together + place % self.etp
        return [first + self.etp * member for member in range(self.ep)]

    def expert_replica_ranks(self, stage: int, place: int = 0) -> list[int]:
        """Return the ranks of a stage that hold the same part of the experts as its GPU `place`, from 0."""
        apart = self.ep * self.etp
        first = stage * self.gpus_per_stage + place % apart
        return [first + apart * replica for replica in range(self.expert_replicas)]

    def expert_sharing_ranks(self, stage: int) -> list[int]:
        """Return the ranks of a stage that share out the states of the same experts, its first GPU among them."""
        return self.expert_replica_ranks(stage)[: self.expert_sharing]

    def expert_copy_ranks(self, stage: int) -> list[int]:
        """Return the first rank of each sharing group that holds the same shard of the same experts."""
        return self.expert_replica_ranks(stage)[:: self.expert_sharing]

    def sharing_ranks(self, stage: int, *, over_context: bool) -> list[int]:
        """Return the first tensor-parallel rank of each that shares out model states of a stage.

        These are the replicas of a sharing group, and, with `over_context`, the ranks of context parallelism of each,
        which hold the same weights.
        """
        context = range(self.cp if over_context else 1)
        return [self.rank(stage, replica, cp) for replica in range(self.sharing) for cp in context]

    def copy_ranks(self, stage: int) -> list[int]:
        """Return the first rank of each replica of a stage that holds the same shard of model states."""
        return [self.rank(stage, replica) for replica in range(0, self.dp, self.sharing)]

    @property
    def gpus(self) -> int:
        """All GPUs of the job."""
        return self.pp * self.gpus_per_stage
