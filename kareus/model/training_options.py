"""Options of a training: the record of the key `training` of a workload.

Low-rank adapters (`low_rank.py`), documents in a sequence (`packed_documents.py`), formats of states, what is computed
again by module or block, what is kept on the host, a loss in chunks, a batch that grows. At its defaults every weight
is trained in mixed precision on sequences of one document each, and it says nothing: names and files of a workload do
not have it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Protocol

from kareus.artifacts.ranges import check_within, within
from kareus.artifacts.records import ADDED, suggest
from kareus.errors import ConfigError, RefusedWorkloadError, described_in
from kareus.graph.number_formats import BF16_BYTES, FP32_BYTES
from kareus.model.config import MOST_TOKENS, Model
from kareus.model.parallelism import Parallelism

MOST_LENGTHS = 1_000_000
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Products of a block by Hugging Face's names."""
FUSED_PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_fc1": ("gate_proj", "up_proj"),
}
"""Megatron's products that are several of Hugging Face's: one adapter for all of them."""
RENAMED_PRODUCTS: Mapping[str, str] = {"linear_proj": "o_proj", "linear_fc2": "down_proj"}
"""Megatron's names of the others."""
TARGETS = (*LINEAR, *FUSED_PRODUCTS, *RENAMED_PRODUCTS)
"""Products that may have an adapter, by all of these names."""


class MasterWeights(StrEnum):
    """What the optimizer keeps of weights beside those in 16 bits that products read."""

    FP32 = "fp32"
    """All of them in 32 bits."""
    REMAINDER = "remainder"
    """The 16 bits that bf16 leaves out of fp32 (Transformer Engine's `store_param_remainders`)."""
    NONE = "none"
    """Nothing: the weights in 16 bits are updated themselves."""


class FrozenWeights(StrEnum):
    """Format of weights that are frozen."""

    BF16 = "bf16"
    NF4 = "nf4"
    """4 bits with scales that are quantised again, 4.127 bits a weight in all; those of a product are cast to 16 bits
    each time (Dettmers et al., QLoRA, NeurIPS 2023, section 3: 0.127 bits of scales)."""

    @property
    def value_bytes(self) -> float:
        """Bytes of a weight."""
        return BF16_BYTES if self is FrozenWeights.BF16 else 4.127 / 8


class StateFormat(StrEnum):
    """Number format of what is kept for each parameter."""

    FP32 = "fp32"
    BF16 = "bf16"
    EIGHT_BIT = "8bit"
    """8 bits with a scale in 32 for each block of 256 (Dettmers et al., ICLR 2022, section 2)."""

    @property
    def value_bytes(self) -> float:
        """Bytes of a value."""
        return {StateFormat.FP32: FP32_BYTES, StateFormat.BF16: BF16_BYTES}.get(self, 1 + FP32_BYTES / 256)


MASTER_BYTES: Mapping[MasterWeights, int] = {
    MasterWeights.FP32: FP32_BYTES,
    MasterWeights.REMAINDER: FP32_BYTES - BF16_BYTES,
    MasterWeights.NONE: 0,
}


class RecomputedModule(StrEnum):
    """Part of a block that its backward runs again, by the names of Megatron's `--recompute-modules`.

    Attention itself (`core_attn`) is `recomputation=selective`.
    """

    LAYER_NORM = "layernorm"
    """The norms before attention and MLP: what they give is not kept."""
    MLP = "mlp"
    """The MLP of blocks without experts, with the norm before it: their input is kept."""
    MOE = "moe"
    """Experts with their exchanges of tokens, shared ones too: their input is kept."""
    MLA_UP_PROJECTION = "mla_up_proj"
    """What makes queries, keys and values of latent vectors: these are kept."""
    MOE_ACTIVATION = "moe_act"
    """The activation of experts: its input is kept, its output is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Options of a training; each by itself, and all of them predicted by formula, not measured."""

    lora_rank: int = field(default=0, metadata=ADDED)
    """Rank of low-rank adapters beside frozen weights (Hu et al., ICLR 2022); 0: all weights are trained."""
    lora_targets: tuple[str, ...] = field(default=LINEAR, metadata=ADDED)
    """Products of a block that have an adapter, by Hugging Face's names or Megatron's."""
    frozen_weights: FrozenWeights = field(default=FrozenWeights.BF16, metadata=ADDED)
    """Format of the frozen weights of blocks beside adapters."""
    cast_weights: bool = field(default=False, metadata=ADDED)
    """Whether weights of blocks are kept and gathered only as products of fewer bits take them, not in 16 bits besides
    (Megatron's `--fp8-param-gather`)."""
    gradients: StateFormat | None = field(default=None, metadata=ADDED)
    """Format in which gradients are summed, kept and reduced: fp32 or bf16; null: as the software does."""
    master_weights: MasterWeights = field(default=MasterWeights.FP32, metadata=ADDED)
    """What the optimizer keeps of the weights."""
    moments: StateFormat = field(default=StateFormat.FP32, metadata=ADDED)
    """Format of both moments of the optimizer."""
    offload_optimizer: float = field(default=0.0, metadata=ADDED)
    """Share of the optimizer's states that is on the host, whose processors update it."""
    offload_blocks: int = field(default=0, metadata=ADDED)
    """Blocks of each stage, or of its chunk, whose activations wait on the host for their backward."""
    recompute_every: int = field(default=1, metadata=ADDED)
    """Every so manieth block of a stage is recomputed, the others keep all; 1: all are."""
    recompute_blocks: int | None = field(default=None, metadata=ADDED)
    """First blocks of each stage, or of its chunk, that are recomputed, the others keep all; null: all are."""
    recompute_modules: tuple[RecomputedModule, ...] = field(default=(), metadata=ADDED)
    """Parts of every block that are recomputed besides what `recomputation` says."""
    loss_chunks: int = field(default=1, metadata=ADDED)
    """Parts of the tokens of a microbatch whose logits are computed, with their gradients, one after the other."""
    document_tokens: float | None = field(default=None, metadata=ADDED)
    """Mean length of the documents that are packed in a sequence, each attending to itself alone; null: one alone."""
    document_spread: float = field(default=0.0, metadata=ADDED)
    """Standard deviation of these lengths over their mean; they are log-normal. 0: all are alike."""
    document_lengths: tuple[int, ...] = field(default=(), metadata=ADDED)
    """Lengths of such documents, each as likely as another, in the place of mean and spread; or the path of a file with
    one a line."""
    batch_ramp: tuple[int, ...] = field(default=(), metadata=ADDED)
    """Sequences of the first batch, those by which it grows, and those over which it does (Megatron-LM's
    `--rampup-batch-size`); empty: all batches are whole."""

    def __post_init__(self) -> None:
        within(self, 0, 65_536, "of a matrix", "lora_rank")
        within(self, 0, 1, "share of the states", "offload_optimizer")
        within(self, 0, 10_000, "blocks", "offload_blocks")
        within(self, 1, 10_000, "blocks", "recompute_every")
        within(self, 1, 100_000, "chunks", "loss_chunks")
        within(self, 0, 100, "times the mean", "document_spread")
        if self.recompute_blocks is not None:
            within(self, 0, 10_000, "blocks", "recompute_blocks")
        if self.gradients is StateFormat.EIGHT_BIT:
            raise ConfigError("gradients=8bit: must be fp32 or bf16; 8bit is for training.moments.")
        for name in self.lora_targets:
            if name not in TARGETS:
                raise ConfigError(f"lora_targets: {name!r} is not known; {suggest(name, TARGETS)}.")
        if self.frozen_weights is not FrozenWeights.BF16 and not self.lora_rank:
            raise ConfigError(
                f"frozen_weights={self.frozen_weights}: no weights are frozen; give training.lora_rank, such as 16."
            )
        self._check_targets()
        if not self.lora_targets:
            raise ConfigError("lora_targets=[]: must name a product, such as [q_proj, v_proj].")
        if self.lora_targets != LINEAR and not self.lora_rank:
            raise ConfigError("lora_targets: nothing has an adapter; give training.lora_rank, such as 16, with it.")
        self._check_documents()
        if self.batch_ramp and (len(self.batch_ramp) != 3 or min(self.batch_ramp) < 1):  # noqa: PLR2004 - as named
            raise ConfigError(
                f"batch_ramp={list(self.batch_ramp)}: must be three whole numbers, 1 or more: sequences of the first "
                "batch, by which it grows, and over which it does, such as [32, 32, 100000]."
            )

    def _check_targets(self) -> None:
        """Check that no product has two adapters, by names of both kinds."""
        by_product: dict[str, str] = {}
        for target in self.lora_targets:
            name = RENAMED_PRODUCTS.get(target, target)
            for product in FUSED_PRODUCTS.get(name, (name,)):
                other = by_product.setdefault(product, target)
                if other != target:
                    raise ConfigError(
                        f"lora_targets: {product} would have two adapters, by {other} and by {target}; name one."
                    )

    def _check_documents(self) -> None:
        if self.document_tokens is not None:
            check_within("document_tokens", self.document_tokens, 1, MOST_TOKENS, "tokens")
        if len(self.document_lengths) > MOST_LENGTHS:
            raise ConfigError(f"document_lengths: has {len(self.document_lengths):,}; at most {MOST_LENGTHS:,}.")
        for length in self.document_lengths:
            check_within("document_lengths", length, 1, MOST_TOKENS, "tokens")
        if self.document_lengths and (self.document_tokens is not None or self.document_spread):
            raise ConfigError("document_lengths: with document_tokens or document_spread; leave one of both out.")
        if self.document_spread and self.document_tokens is None:
            raise ConfigError(f"document_spread={self.document_spread:g}: needs document_tokens, their mean length.")

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the options that are not the usual ones."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != f.default)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Those of them that an iteration depends on, by formulas that nothing was measured for."""
        return tuple(name for name in self.changed if name != "batch_ramp")

    @property
    def trains_adapters(self) -> bool:
        """Whether weights are frozen, and adapters beside them are trained."""
        return self.lora_rank > 0

    @property
    def packs(self) -> bool:
        """Whether a sequence has several documents."""
        return bool(self.document_lengths) or self.document_tokens is not None

    @property
    def recomputes_part(self) -> bool:
        """Whether some blocks are recomputed and others are not."""
        return self.recompute_every > 1 or self.recompute_blocks is not None

    @property
    def state_bytes(self) -> float:
        """Bytes of master weight and both moments of a parameter."""
        return MASTER_BYTES[self.master_weights] + 2 * self.moments.value_bytes

    def gradient_bytes(self, usual: int) -> int:
        """Return the bytes of a gradient, of software that uses `usual` of them."""
        return usual if self.gradients is None else int(self.gradients.value_bytes)


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


UNPLANNED = {"recompute_every": "1", "recompute_blocks": "null", "recompute_modules": "[]", "offload_blocks": "0"}
"""Options that are predicted alone, with what leaves each out; of a batch that grows plans are of whole batches."""
PLAIN = TrainingOptions()
"""The usual options."""


def check_options(options: TrainingOptions) -> None:
    """Check that plans have what a training does.

    Raises:
        RefusedWorkloadError: an option is predicted alone.
    """
    for name, usual in UNPLANNED.items():
        if name in options.changed:
            raise RefusedWorkloadError(
                f"training.{name}: predicted, not planned, since plans take all blocks of a stage as alike; use "
                f"`kareus predict`, plan without it (training.{name}={usual}), or profile a job of a trainer in place "
                f"({described_in('howto/inplace.md')})."
            )
