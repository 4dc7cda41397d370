"""The resolved configuration of a workload: one frozen record for each Hydra group, each in the room of its owner.

Values live in `config/`; these records give them names, units and legal ranges. A record raises
`ConfigError` with the key, the value and the allowed range as soon as it is made.
"""

from dataclasses import dataclass, field, replace

from kareus.artifacts.ranges import within
from kareus.artifacts.records import ADDED
from kareus.errors import ConfigError
from kareus.frontiers.config import IterationConfig
from kareus.gpu_model.gpu import Gpu
from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.model.config import MOST_TOKENS, Model
from kareus.model.parallelism import Parallelism
from kareus.model.training_options import PLAIN, TrainingOptions
from kareus.pipeline.config import PipelineConfig
from kareus.profile.config import MeasurementProtocol
from kareus.schedule.config import MOST_CANDIDATES, SearchSpaceConfig
from kareus.search.config import SearchConfig
from kareus.software.record import Software, driven
from kareus.testbed.config import CudaCollectives, TestbedConfig

MOST_PRODUCTS = 2**60
"""Multiplications of a matrix product; tables count twice as many FLOPs in 64 bits."""
MOST_PASSES = 100_000
"""Microbatches times stages times chunks. A frontier of 2,560, the largest of the paper, takes half a minute."""
MOST_SEED = 2**63 - 1
"""Largest whole number that files hold."""

NO_HALVES = "Nothing overlaps: a microbatch of an odd size, or of sharded gradients, cannot be halved."
NO_COLLECTIVES = "Nothing overlaps: without tensor, context or expert parallelism a block has no collectives."


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything that decides what a plan is made for.

    Example:
        >>> import kareus
        >>> (workload,) = kareus.resolve(["model=qwen3-1.7b", "gpu=h200", "sequence_length=8192"])
        >>> workload.gpu.name, workload.software.name, workload.sequence_length
        ('H200', 'megatron-core', 8192)
    """

    model: Model
    """The network that is trained."""
    parallelism: Parallelism
    """How the network and the batch are laid out over GPUs."""
    gpu: Gpu
    """The GPU and its node."""
    software: Software
    """The software that trains: kernels, what runs beside what, and its host; its numbers are among the GPU's."""
    testbed: TestbedConfig
    """Where programs are measured."""
    protocol: MeasurementProtocol
    """How one measurement is taken."""
    space: SearchSpaceConfig
    """SM counts that collectives may take."""
    search: SearchConfig
    """Strategy by which the candidates of a partition are chosen."""
    pipeline: PipelineConfig
    """Pipeline schedule, and for how many deadlines an iteration is planned."""
    iteration: IterationConfig
    """Parts of an iteration that are planned besides forwards and backwards."""
    microbatch_size: int
    """Sequences of one microbatch."""
    num_microbatches: int
    """Microbatches of one pipeline in one iteration."""
    sequence_length: int
    """Tokens of a sequence."""
    precision: Precision
    """Of the products of blocks (`kareus.graph.number_formats`)."""
    recomputation: Recomputation
    """What a backward recomputes of its forward instead of keeping it."""
    memory_reserve_gib: float
    """The one calibrated term of the memory estimate: what CUDA, NCCL and fragmentation take."""
    confirmations: int
    """Further measurements of a whole instruction at each clock that is about as fast as its fastest."""
    seed: int
    """Seed of the simulated testbed's noise and of random choices of the search."""
    training: TrainingOptions = field(default=PLAIN, metadata=ADDED)
    """Adapters, packed documents, formats of states and what else is trained otherwise than usual."""

    @property
    def split_backward(self) -> bool:
        """Whether a backward is two instructions; what the stages before the pipeline see of its schedule."""
        return self.pipeline.schedule.splits_backward

    @property
    def chunks(self) -> int:
        """Chunks of each stage's layers; seen like `split_backward`."""
        return self.pipeline.chunks

    @property
    def default_collective_sm_count(self) -> int:
        """SMs of collectives that nothing is chosen for; seen like `split_backward`."""
        return self.testbed.default_collective_sm_count

    @property
    def linked_gpus(self) -> int:
        """Consecutive ranks that NVLink connects; seen like `split_backward`."""
        return self.gpu.linked_gpus(self.parallelism.gpus)

    @property
    def gpus_to_measure(self) -> int:
        """GPUs of one machine that a job that measures takes; none on a simulated testbed."""
        if self.testbed.cuda is None:
            return 0
        alone = self.testbed.cuda.collectives is CudaCollectives.LOOPBACK
        return 1 if alone else self.parallelism.cp * self.parallelism.tp

    def __post_init__(self) -> None:
        within(self, 1, 1_000_000, "sequences", "microbatch_size")
        within(self, 1, MOST_PASSES, "microbatches", "num_microbatches")
        within(self, 1, MOST_TOKENS, "tokens", "sequence_length")
        within(self, 0, 1_000_000, "GiB", "memory_reserve_gib")
        within(self, 0, 1_000, "measurements", "confirmations")
        within(self, 0, MOST_SEED, "seed", "seed")
        passes = self.parallelism.pp * self.num_microbatches * self.chunks
        if passes > MOST_PASSES:
            raise ConfigError(
                f"parallelism.pp x num_microbatches x pipeline.chunks={passes:,}: must be at most {MOST_PASSES:,}, the "
                "passes of microbatches through chunks for which an iteration can be planned."
            )
        model = self.model
        width = max(model.intermediate_size, model.vocab_size, model.num_attention_heads * model.head_dim)
        if self.microbatch_size * self.sequence_length * model.hidden_size * width > MOST_PRODUCTS:
            raise ConfigError(
                f"microbatch_size={self.microbatch_size}, sequence_length={self.sequence_length}: with these widths of "
                f"the model a matrix product has more than {MOST_PRODUCTS:g} multiplications; use smaller ones."
            )
        clocks, counts = self.gpu.search_frequencies.clocks_mhz, self.space.sm_max // self.space.sm_stride
        if len(clocks) * counts > MOST_CANDIDATES:
            raise ConfigError(
                f"space.sm_stride={self.space.sm_stride}: gives {counts:,} SM counts for {len(clocks):,} clocks; "
                f"must be at most {MOST_CANDIDATES:,} candidates; use wider strides."
            )
        sm_counts = {
            "space.sm_max": self.space.sm_max,
            "space.small_group_sm_max": self.space.small_group_sm_max,
            "testbed.default_collective_sm_count": self.testbed.default_collective_sm_count,
        }
        for key, sm_count in sm_counts.items():
            if sm_count >= self.gpu.sm_count:
                raise ConfigError(f"{key}={sm_count}: must be less than gpu.sm_count ({self.gpu.sm_count}).")


def run_by(workload: Workload, software: Software) -> Workload:
    """Return the same training by a software, with the GPU as it drives it in this job."""
    layout = workload.parallelism
    return replace(workload, software=software, gpu=driven(workload.gpu, software, layout.gpus, layout.pp))


def with_sm_count(workload: Workload, sm_count: int) -> Workload:
    """Return the workload with collectives that nothing is chosen for on so many SMs."""
    return replace(workload, testbed=replace(workload.testbed, default_collective_sm_count=sm_count))


def nothing_to_overlap(workload: Workload) -> str | None:
    """Return why nothing overlaps, or None where something can."""
    if not workload.parallelism.halves(workload.microbatch_size):
        return NO_HALVES
    layout = workload.parallelism
    return None if max(layout.tp, layout.cp, layout.ep, layout.etp) > 1 else NO_COLLECTIVES
