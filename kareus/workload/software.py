"""What a training framework does beside computing a model: the record of Hydra group `software`.

Plans are made for Kareus' own engine. Other software is predicted only, so that measurements of it check the GPU model.
A profile says what a framework documents, and has at most three numbers that are fitted: none is a factor of a
model or of a family of measurements.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kareus.artifacts.configuration import parse_yaml
from kareus.artifacts.files import read_text
from kareus.artifacts.names import check_product
from kareus.artifacts.ranges import within
from kareus.artifacts.records import from_plain
from kareus.errors import ArtifactError, ConfigError
from kareus.model.config import AttentionKernel
from kareus.workload.compose import compose_file
from kareus.workload.config import Workload

GROUP = "software"


class Accounting(StrEnum):
    """How time between kernels is charged."""

    SHARE = "share"
    """As a share of the blocks' operators (`isolation_overhead` of the GPU): as fits to Kareus' schedules have it."""
    HOST = "host"
    """By the host, which launches ahead of the GPU: an instruction takes what the slower of both takes."""
    TRACES = "traces"
    """As simulators put iterations together from traces of single parts of a model: blocks and the rest of a pass take
    what the slower of host and GPU takes, each by itself, and nothing hides a collective."""


class TensorOverlap(StrEnum):
    """What collectives of tensor parallelism run beside."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A training framework."""

    name: str
    """Name of the software in tables and pages."""
    accounting: Accounting
    """How time between kernels is charged."""
    fused_attention: bool
    """Whether attention is one kernel; else scores are written to HBM and read again."""
    attention_dropout: bool
    """Whether attention that is not fused drops probabilities, by a kernel of its own."""
    stream_dropout: bool
    """Whether it drops values that attention and MLP add to the residual stream, in the kernel of the addition."""
    softmax_multiple: int
    """What sequences times heads of a GPU must be a multiple of for softmax to be one kernel, where it is not fused."""
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
    """Bytes of a gradient that is summed over replicas."""
    vocabulary_multiple: int
    """The vocabulary is padded to a multiple of it for each GPU of a tensor-parallel group; with 0 it is not padded,
    and what does not divide is left out."""
    synchronises_stages: bool
    """Whether the host waits for messages between stages, so that it cannot launch ahead from one pass to the next."""
    host_launch_s: float
    """Time of the host for each kernel of a pass through the model."""
    host_collective_s: float
    """Further time of the host for each collective: its streams and events, and ranks that come later."""
    host_microbatch_s: float
    """Time in which the GPU waits at the beginning of a forward: its host broadcasts the microbatch and makes masks."""
    collective_slowdown: float
    """Time of its collectives of tensor parallelism over that of the library that the GPU's coefficients are of."""
    hopper_attention: bool
    """Whether its fused attention uses the instructions that Hopper's tensor cores have of their own (FlashAttention 3,
    cuDNN 9); FlashAttention 2 does not."""
    attention_slowdown: float
    """Time of its fused attention over that of the library that the GPU's coefficients are of."""
    traffic: float
    """Bytes that operators bound by HBM move, over those of kernels that fuse all that can be fused."""

    @property
    def attention_kernel(self) -> AttentionKernel:
        """What computes attention."""
        if self.fused_attention:
            return AttentionKernel.FUSED
        return AttentionKernel.UNFUSED_DROPOUT if self.attention_dropout else AttentionKernel.UNFUSED

    def __post_init__(self) -> None:
        check_product(self.name, "name")
        within(self, 1, 4, "bytes", "gradient_bytes")
        within(self, 0, 1_000_000, "rows", "vocabulary_multiple")
        within(self, 1, 1_000, "heads", "softmax_multiple")
        within(self, 0, 1e-3, "s", "host_launch_s", "host_collective_s")
        within(self, 0, 0.1, "s", "host_microbatch_s")
        within(self, 0.1, 10, "times", "collective_slowdown", "attention_slowdown")
        within(self, 1, 10, "times", "traffic")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedWorkload(Workload):
    """A workload and the software that runs it: what `config/software.yaml` composes."""

    software: Software


def names_software(overrides: Sequence[str]) -> bool:
    """Return whether an override chooses software, or changes a number of it."""
    return any(text.split("=")[0].split(".")[0] == GROUP for text in overrides)


def read_software(option: str, config_dir: Path) -> Software:
    """Return an option of the group.

    Raises:
        ConfigError: there is no such option, or it cannot be used.
    """
    return from_plain(Software, compose_file(f"{GROUP}/{option}", config_dir)[GROUP], GROUP)


def is_software(path: Path) -> bool:
    """Return whether a file is a profile of software, which a fit may replace."""
    try:
        content = parse_yaml(read_text(path))
    except (ArtifactError, ConfigError):
        return False
    return isinstance(content, dict) and "accounting" in content
