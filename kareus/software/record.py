"""The software that trains a workload: the record of Hydra group `software`, and the GPU as that software drives it.

A profile says what a framework documents, and has a few numbers that are fitted: none is a factor of a model or of a
family of measurements. The laws of the GPU model take these numbers among the coefficients of the GPU (`OF_SOFTWARE`),
so that one law serves every software; a GPU's own file has none of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from kareus.artifacts.configuration import parse_yaml
from kareus.artifacts.files import read_text
from kareus.artifacts.names import check_product
from kareus.artifacts.ranges import within
from kareus.artifacts.records import ADDED
from kareus.errors import ArtifactError, ConfigError
from kareus.gpu_model.coefficients import OF_SOFTWARE, LaunchesAhead
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.thermal import of_profiles, settled
from kareus.model.config import AttentionKernel
from kareus.model.parallelism import Sharding

GROUP = "software"
USUAL_SOFTWARE = "usual_software"
"""Key of a GPU's file that names the software that is planned for on it; no field of its record."""
WARM = "warm_leakage_w"
SET_BY_SOFTWARE = (*OF_SOFTWARE, WARM)
"""Coefficients that a GPU's file does not have."""
OF_MEMORY = ("kept_excess", "former_logit_bytes", "workspace_gib", "usual_sharding")
"""Fields that memory alone depends on."""
OF_EXPERTS = (
    "dispatcher",
    "dispatch_sms",
    "expert_imbalance",
    "expert_kernels",
    "experts_within_shards",
    "unfused_extras",
    "hidden_exchange",
    "delayed_weight_gradients",
)
"""Fields that, of all models that were measured, mixtures of experts alone depend on."""
CHOSEN_OF_EXPERTS = ("dispatcher", "dispatch_sms", "hidden_exchange", "delayed_weight_gradients")
"""Those of them that a run chooses."""
OLD_ATTENTION = 1.6
"""Time of FlashAttention 2 over that of FlashAttention 3 on an H100, forward and backward (Shah et al. 2024: 1.5 to 2.0
times forward, 1.5 to 1.75 times backward)."""


class TensorOverlap(StrEnum):
    """What collectives of tensor parallelism run beside."""

    NOTHING = "nothing"
    """Nothing: they wait for all that was launched before them."""
    NONE = "none"
    """Weight gradients alone, in backwards."""
    USERBUFFERS = "userbuffers"
    """The matrix products that give their input or take their output, cut in parts (Transformer Engine)."""


class Reduction(StrEnum):
    """When gradients are summed over replicas that hold them whole."""

    BUCKETS = "buckets"
    """In buckets, beside the backward that completes them."""
    WHOLE = "whole"
    """In one piece after the last backward."""


class LossKernels(StrEnum):
    """What computes the cross-entropy of logits and its gradient; `kareus.software.kernels` has the bytes of each."""

    ENGINE = "engine"
    """Kareus' own kernels, as the operator graph has them."""
    FUSED = "fused"
    """One kernel forward, another backward, on logits of 16 bit (flash-attn; a compiled `F.cross_entropy`)."""
    TRANSFORMER_ENGINE = "transformer-engine"
    """One kernel of maxima and sums, another of loss and gradient, which the backward scales (Megatron Core:
    `--cross-entropy-fusion-impl te`)."""
    COMPILED = "compiled"
    """The steps of Megatron's vocabulary-parallel loss, in 32 bit, between its sums over GPUs each compiled to one
    kernel (Megatron Core: `--cross-entropy-loss-fusion`)."""
    SEPARATE = "separate"
    """A kernel for each operation of that loss (Megatron Core, as it is without these options; nanotron)."""
    PYTORCH = "pytorch"
    """`F.cross_entropy` of logits cast to 32 bit, not compiled."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of a logit that the loss keeps for its backward."""
        return LOGIT_BYTES[self][0]

    @property
    def logit_bytes(self) -> int:
        """Bytes of a logit that head and loss have at once."""
        return LOGIT_BYTES[self][1]


LOGIT_BYTES: Mapping[LossKernels, tuple[int, int]] = {
    LossKernels.ENGINE: (2, 2 + 4),
    LossKernels.FUSED: (2, 2 + 2),
    LossKernels.TRANSFORMER_ENGINE: (2, 2),
    LossKernels.COMPILED: (4, 4 + 4 + 2),
    LossKernels.SEPARATE: (4, 2 + 4),
    LossKernels.PYTORCH: (4, 4 + 4 + 4),
}
"""Bytes of a logit that a loss keeps for its backward, and that head and loss have at once.

The engine's eager operations copy 16-bit logits to 32 bit, and write the gradient into the former; flash-attn's loss
has the gradient beside logits, Transformer Engine's in their place. Of Megatron's the 16-bit logits are there while
their 32-bit copy becomes probabilities; these become the gradient in place, and are cast. Compiled, the gradient begins
as a copy of them, and is cast before either is gone (Inductor; Megatron Core's test of the option takes 20 % more than
with 6 bytes, 3 % less than with 10). PyTorch has logarithms of probabilities beside gradients by these and by logits.
"""


class Dispatcher(StrEnum):
    """How tokens get to their experts on other GPUs."""

    ALL_TO_ALL = "alltoall"
    """A copy for each expert, by an all-to-all of NCCL."""
    FLEX = "flex"
    """One copy for all experts of a node, which is copied there (DeepEP, HybridEP; Megatron's `flex` dispatcher)."""

    @property
    def usual_sms(self) -> int | None:
        """SMs that an exchange takes where nobody says how many; None: as other collectives.

        DeepEP's own number (`Buffer.num_sms`); DeepSeek-V3 trained with as many (DeepSeek-AI, 2024, section 3.2.2).
        """
        return 20 if self is Dispatcher.FLEX else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRuns:
    """Runs that the numbers of a profile were calibrated to, and the errors of their predictions, each left out."""

    gpu: str
    """Name of the GPU that they ran on."""
    runs: int
    percent_90: float
    """Error of time that 90 % of the runs do not exceed; of fewer than ten runs the largest."""
    mean_percent: float
    median_percent: float
    """Median of predicted less measured time."""
    tau: float
    """Kendall's tau of measured and predicted times."""
    may_rank: bool
    """Whether layouts may be ranked by the numbers."""
    made_for: str
    """Name of the numbers that the errors are of (`kareus.prediction.errors.numbers_for`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A training framework."""

    name: str
    """Name of the software in tables and pages."""
    fused_attention: bool
    """Whether attention is one kernel; else scores are written to HBM and read again."""
    attention_dropout: bool
    """Whether attention that is not fused drops probabilities, by a kernel of its own."""
    reads_alibi_mask: bool
    """Whether attention with ALiBi reads a mask that is made once, as in Kareus' engine; else it computes biases."""
    stream_dropout: bool
    """Whether it drops values that attention and MLP add to the residual stream, in the kernel of the addition."""
    softmax_multiple: int
    """What sequences times heads of a GPU must be a multiple of for softmax to be one kernel, where it is not fused."""
    attention_library: str | None
    """Kernel library whose attention the GPU's file has coefficients of; null: the GPU's own coefficients."""
    hopper_attention: bool
    """Whether its fused attention uses the instructions that Hopper's tensor cores have of their own (FlashAttention 3,
    cuDNN 9); FlashAttention 2 does not."""
    tensor_overlap: TensorOverlap
    """What collectives of tensor parallelism run beside."""
    gather_beside_dgrad: bool
    """Whether sequence parallelism gathers the input of a product again beside the product's input gradient, as
    Megatron does; else together with the gradient that comes before. Userbuffers run both beside products."""
    context_overlap: bool
    """Whether keys and values of context parallelism travel beside attention (ring attention)."""
    reduction: Reduction
    """When gradients are summed over replicas that hold them whole."""
    gather_beside_forward: bool
    """Whether a sharded optimizer's new weights are gathered beside the next forward."""
    gradient_bytes: int
    """Bytes of a gradient that is kept and summed over replicas."""
    shares_over_context: bool
    """Whether ranks of context parallelism share out what replicas do, such as states of the optimizer."""
    vocabulary_multiple: int
    """The vocabulary is padded to a multiple of it for each GPU of a tensor-parallel group; with 1 it has to divide as
    it is, and with 0 what does not divide is left out."""
    launches_ahead: LaunchesAhead
    """How far its host launches ahead of the GPU: where it waits for the GPU, both begin anew."""
    host_launch_s: float
    """Time of the host for each kernel of a pass through the model."""
    host_collective_s: float
    """Further time of the host for each collective: its streams and events, and ranks that come later."""
    instruction_overhead_s: float
    """Host, pipeline and allocator work around a whole instruction, for which the GPU waits."""
    isolation_overhead: float
    """What operators of blocks cost within an instruction beyond what they cost alone, as a share of the latter."""
    streaming_kernels: float
    """Kernels in which an operator that HBM bounds runs, where gaps and launches of them show."""
    traffic: float
    """Bytes that operators bound by HBM move, over those of kernels that fuse all that can be fused."""
    attention_slowdown: float
    """Time of its fused attention over that of the library that the GPU's coefficients are of."""
    collective_slowdown: float
    """Time of its collectives of tensor parallelism over that of the library that the GPU's coefficients are of."""
    loss_kernels: LossKernels = field(default=LossKernels.ENGINE, metadata=ADDED)
    """What computes the loss."""
    fused_accumulation: bool = field(default=True, metadata=ADDED)
    """Whether products add weight gradients to those of other microbatches; else a kernel adds them in 32 bit."""
    host_rank_s: float = field(default=0.0, metadata=ADDED)
    """Further time of the host for a collective of tensor parallelism, for each GPU of its group, in a job whose
    pipeline spans nodes."""
    hidden_reduction: float = field(default=1.0, metadata=ADDED)
    """Share of each reduction in buckets that runs beside the backward, as far as that lasts."""
    hidden_gather: float = field(default=1.0, metadata=ADDED)
    """Share of the gathers of new weights that runs beside forwards, where these wait for buckets alone."""
    sums_whole: bool = field(default=False, metadata=ADDED)
    """Whether replicas that share out the optimizer each sum all gradients, in one piece after the last backward; else
    each sums its shard, when `reduction` says."""
    network_slowdown: float = field(default=1.0, metadata=ADDED)
    """Time of bytes between nodes over that of NICs which reach the same share of their bandwidth as links: of the
    cluster, and of the cuts that the trainer makes."""
    block_messages: float = field(default=0.0, metadata=ADDED)
    """Further messages for each block, embedding and head of reduce-scatters and gathers of a sharded optimizer: where
    every tensor has its own."""
    fills_stages: bool = field(default=False, metadata=ADDED)
    """Whether it fills one stage after the other until each has its share of the work, head included; else what nobody
    splits is split as evenly as can be."""
    dispatcher: Dispatcher = field(default=Dispatcher.ALL_TO_ALL, metadata=ADDED)
    """How tokens get to their experts on other GPUs."""
    expert_imbalance: float = field(default=1.0, metadata=ADDED)
    """Copies of tokens on the GPU whose experts get most, over the mean: all GPUs wait for that one. 1 is what routers
    with an auxiliary loss aim at, and benchmarks force (Megatron: `--moe-router-force-load-balancing`); none are
    dropped."""
    expert_kernels: int = field(default=0, metadata=ADDED)
    """Kernels that a block's experts launch beyond those of the operator graph, in a forward and again in a backward:
    of routing that is not fused, of products of single experts, of counts that the host waits for."""
    experts_within_shards: bool = field(default=False, metadata=ADDED)
    """Whether experts are shared out over the GPUs that share out weights alone, and not over replicas that hold all
    of them (torchtitan: `ParallelDims._validate`)."""
    unfused_extras: bool = field(default=False, metadata=ADDED)
    """Whether what gpt-oss has and fused kernels have not is run by kernels of its own (Megatron Core): biases of
    experts' results (`TEGroupedMLP._apply_bias`), the clamp before their activation (`weighted_bias_quick_geglu_impl`),
    the rotation of YaRN, which scales what it turns (`apply_rotary_pos_emb`)."""
    hidden_exchange: float = field(default=0.0, metadata=ADDED)
    """Share of each exchange of tokens between experts that runs beside other computation, as Megatron runs a forward
    beside a backward (`overlap_moe_expert_parallel_comm`)."""
    delayed_weight_gradients: bool = field(default=False, metadata=ADDED)
    """Whether gradients of weights wait for the next exchange of tokens of their backward and run beside it
    (`delay_wgrad_compute`)."""
    dispatch_sms: int | None = field(default=None, metadata=ADDED)
    """SMs that an exchange of tokens takes from what runs beside it, where plans choose none; null: those of its
    dispatcher."""
    kept_excess: float = field(default=1.0, metadata=ADDED)
    """Bytes that its blocks keep for their backward, over those of kernels that fuse all that can be fused."""
    former_logit_bytes: int = field(default=0, metadata=ADDED)
    """Bytes of a logit of one microbatch that are still there when the head of the next runs; of eager software whose
    loop names a loss, and with it the copy in 32 bit, until the next has been computed."""
    workspace_gib: float = field(default=0.0, metadata=ADDED)
    """Memory of its allocator on every GPU that no tensor of the model takes: workspaces of kernel libraries, batches
    of the data loader."""
    usual_sharding: Sharding = field(default=Sharding.NONE, metadata=ADDED)
    """What its recipes share out among replicas, where nobody says it and what is held whole does not fit."""
    measured: MeasuredRuns | None = field(default=None, metadata=ADDED)
    """What a user's own runs tell of the errors of these numbers; null where they were not calibrated so."""

    @property
    def attention_kernel(self) -> AttentionKernel | None:
        """What computes attention; None where it is fused and reads a mask for ALiBi."""
        if self.fused_attention:
            return None if self.reads_alibi_mask else AttentionKernel.FUSED
        return AttentionKernel.UNFUSED_DROPOUT if self.attention_dropout else AttentionKernel.UNFUSED

    def exchange_sms(self, usual: int) -> int:
        """Return the SMs of an exchange of tokens, where other collectives have `usual` ones."""
        return self.dispatch_sms or self.dispatcher.usual_sms or usual

    def padded(self, vocabulary: int, tp: int) -> int:
        """Return the rows of an embedding of `vocabulary` tokens over `tp` GPUs."""
        if self.vocabulary_multiple == 1:
            return vocabulary
        if not self.vocabulary_multiple:
            return vocabulary // tp * tp
        multiple = tp * self.vocabulary_multiple
        return -(-vocabulary // multiple) * multiple

    def __post_init__(self) -> None:
        check_product(self.name, "name")
        within(self, 1, 4, "bytes", "gradient_bytes")
        within(self, 0, 1_000_000, "rows", "vocabulary_multiple")
        within(self, 1, 1_000, "heads", "softmax_multiple")
        within(self, 0, 1e-3, "s", "host_launch_s")
        within(self, 0, 0.1, "s", "instruction_overhead_s")
        within(self, 0, 10, "share of a time", "isolation_overhead")
        within(self, 1, 1_000, "kernels", "streaming_kernels")
        within(self, 0.1, 10, "times", "collective_slowdown", "attention_slowdown")
        within(self, 1, 10, "times", "traffic")
        within(self, 0.5, 10, "times", "kept_excess")
        within(self, 0, 32, "bytes", "former_logit_bytes")
        within(self, 0, 1_000, "GiB", "workspace_gib")
        within(self, 0, 1e-2, "s", "host_collective_s", "host_rank_s")
        within(self, 0, 1, "share of a time", "hidden_reduction", "hidden_gather", "hidden_exchange")
        within(self, 1, 1_000, "times", "expert_imbalance")
        within(self, 0, 100_000, "kernels", "expert_kernels")
        if self.dispatch_sms is not None:
            within(self, 1, 1_000, "SMs", "dispatch_sms")
        within(self, 0.5, 100, "times", "network_slowdown")
        within(self, 0, 100, "messages", "block_messages")
        if self.host_rank_s and self.launches_ahead is LaunchesAhead.STEP:
            raise ConfigError("host_rank_s: must be 0 where launches_ahead is step; use part or pass.")


def of_times(software: Software, *, experts: bool) -> Software:
    """Return the software with only the numbers that times of some models depend on; the others are the usual ones.

    Usual are in any case those of memory, and what a run chooses of experts' exchanges; all of experts where the
    models have none (`experts` false).
    """
    others = (*OF_MEMORY, *(CHOSEN_OF_EXPERTS if experts else OF_EXPERTS))
    usual: dict[str, Any] = {f.name: f.default for f in fields(software) if f.name in others}
    return replace(software, **usual)


def gpu_values(gpu: Mapping[str, Any], software: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a GPU's file with those that a software sets, as the record `Gpu` wants them.

    Args:
        gpu: values of the file.
        software: values of the profile.
    """
    values = {key: value for key, value in gpu.items() if key != USUAL_SOFTWARE}
    if isinstance(values.get("coefficients"), Mapping):
        numbers = {name: software[name] for name in OF_SOFTWARE if name in software}
        values["coefficients"] = {**values["coefficients"], **numbers, WARM: 0.0}
    return values


def numbers_of(software: Software, gpu: Gpu) -> dict[str, float]:
    """Return the coefficients of the GPU model that a software has on a GPU, by name.

    GPUs since Hopper are told by their fp8 tensor cores.
    """
    numbers = {name: getattr(software, name) for name in OF_SOFTWARE}
    if gpu.fp8_speedup > 1 and not software.hopper_attention:
        numbers["attention_slowdown"] *= OLD_ATTENTION
    return numbers


def driven(gpu: Gpu, software: Software, gpus: int, pp: int = 1) -> Gpu:
    """Return a GPU as a software drives it in a job.

    Args:
        gpu: of any software; what it has of another one's numbers is replaced.
        software: that launches its kernels.
        gpus: of the job, which wait for the slowest among them.
        pp: stages of its pipeline.
    """
    numbers: dict[str, Any] = numbers_of(software, gpu)
    if not spans_nodes(gpu, gpus, pp):
        numbers["host_rank_s"] = 0.0
    library = gpu.libraries.get(software.attention_library or "", {})
    whole = of_profiles(gpu)
    coefficients = replace(whole.coefficients, **{**library, **numbers})
    whole = replace(whole, coefficients=coefficients, launches_ahead=software.launches_ahead)
    steps = software.launches_ahead is LaunchesAhead.STEP  # as the paper's trainer, in jobs of 16 GPUs
    if steps and not coefficients.limiter_s:  # as the A100 40GB, whose limit of phases was fitted to profiles
        return replace(whole, job_gpus=1)
    return replace(settled(whole), job_gpus=1 if steps else gpus)


def spans_nodes(gpu: Gpu, gpus: int, pp: int) -> bool:
    """Return whether a pipeline of `pp` stages sends messages over the network."""
    return pp > 1 and gpus > gpu.linked_gpus(gpus)


def with_numbers(software: Software, values: Mapping[str, float]) -> Software:
    """Return the software with other numbers, by name."""
    numbers: dict[str, Any] = dict(values)
    return replace(software, **numbers)


def is_software(path: Path) -> bool:
    """Return whether a file is a profile of software, which a fit may replace."""
    try:
        content = parse_yaml(read_text(path))
    except (ArtifactError, ConfigError):
        return False
    return isinstance(content, dict) and "launches_ahead" in content
