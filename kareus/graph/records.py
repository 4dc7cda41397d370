"""The operator graph of a block: operators, collectives, and the segments that collectives cut it into.

Plain records without torch: extraction writes them, every later stage reads them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from operator import attrgetter

from kareus.artifacts.records import ADDED
from kareus.errors import ArtifactError
from kareus.graph.number_formats import Precision


class CollectiveKind(StrEnum):
    """Collectives that a block issues."""

    ALL_REDUCE = "allreduce"
    ALL_GATHER = "allgather"
    REDUCE_SCATTER = "reducescatter"
    ALL_TO_ALL = "alltoall"
    """Each GPU sends every other a part of its buffer: tokens go to their experts, or come back."""


TENSOR_PARALLEL, CONTEXT_PARALLEL = "tp", "cp"
EXPERT_PARALLEL, EXPERT_TENSOR_PARALLEL = "ep", "etp"
"""Process groups of a block's collectives."""


class Direction(StrEnum):
    """What an instruction does: a direction of a pass through the model, or a step of the iteration's update."""

    FORWARD = "forward"
    BACKWARD = "backward"
    """The whole backward; what extraction records, and where it is split the next two are cut from."""
    INPUT_GRADIENT = "input-gradient"
    """Part of a split backward that the previous stage waits for; it has all collectives."""
    WEIGHT_GRADIENT = "weight-gradient"
    """Part of a split backward that only the optimizer waits for; it has no collectives."""
    GRADIENT_REDUCTION = "gradient-reduction"
    """What summing a stage's weight gradients over its replicas adds to its last backward."""
    EMBEDDING_EXCHANGE = "embedding-exchange"
    """Sum of the gradients of a tied embedding over the first and the last stage, which both hold it."""
    UPDATE = "update"
    """Norm of the whole gradient, optimizer step and, with a sharded optimizer, the gathering of the new weights."""


TRACED = (Direction.FORWARD, Direction.BACKWARD)
"""Directions of which segments are extracted."""
UPDATING = (Direction.GRADIENT_REDUCTION, Direction.EMBEDDING_EXCHANGE, Direction.UPDATE)
"""Directions of the update of the weights, in order: instructions of a stage that belong to no microbatch."""
MEETING = (Direction.EMBEDDING_EXCHANGE, Direction.UPDATE)
"""Directions whose instructions, one on each stage that has one, begin together: none before all are ready."""
COMPLETING = (Direction.BACKWARD, Direction.WEIGHT_GRADIENT)
"""Directions that complete the weight gradients of a microbatch."""
RECOMPUTING = (Direction.BACKWARD, Direction.INPUT_GRADIENT)
"""Directions that recompute their forward, where anything is recomputed."""


def instruction_directions(*, split_backward: bool) -> tuple[Direction, ...]:
    """Return the directions of the instructions of a pipeline, in the order in which a microbatch passes them."""
    return (Direction.FORWARD, Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT) if split_backward else TRACED


class OperatorKind(StrEnum):
    """Kind of an operator: what limits it, and so which law gives its time."""

    GEMM = "gemm"
    """Dense matrix product on tensor cores; shape (m, n, k). One for each head has the rows of all heads as m."""
    ATTENTION = "attention"
    """Fused attention; shape (batch, query heads, key-value heads, query length, key length, head dimension), and the
    mean window of the blocks where some have one."""
    ATTENTION_BACKWARD = "attention-backward"
    """Its gradient: five matrix products instead of two; the same shape."""
    GROUPED_GEMM = "grouped-gemm"
    """Products of several groups of rows, each with a matrix of its own, in one launch: experts' of their tokens; shape
    (groups, rows of all groups, n, k). As a gradient of weights it is the product of k and n columns over the rows."""
    MEMORY = "memory"
    """Bound by HBM bandwidth; shape of its largest output."""


class Batch(StrEnum):
    """Part of the batch that a pass handles at once."""

    MICROBATCH = "microbatch"
    """All sequences of a microbatch: sequential execution."""
    NANOBATCH = "nanobatch"
    """Half of them: nanobatching and partitioned overlap."""


class Scope(StrEnum):
    """Part of a stage that a segment belongs to."""

    BLOCK = "block"
    """Repeated for every layer; of a mixture of experts, for every layer that has them."""
    DENSE_BLOCK = "dense-block"
    """Likewise of the layers of a mixture of experts that have an MLP in their place."""
    EMBEDDING = "embedding"
    """First stage only."""
    HEAD = "head"
    """Last stage only: final norm, LM head and loss."""


WEIGHT_GRADIENT_SUFFIX = ".wgrad"
"""Ends the names of operators that are gradients of weight matrices and of biases."""
BIAS_GRADIENT_SUFFIX = f".bias{WEIGHT_GRADIENT_SUFFIX}"
"""Ends the names of gradients of biases: sums of the output gradient over all tokens."""
INPUT_GRADIENT_SUFFIX = ".dgrad"
"""Ends the names of operators that are gradients of the inputs of matrix products."""
CORE_ATTENTION = ("attention", "scores", "softmax", "dropout", "mixing")
"""Names of what is between the QKV projection and the output projection, rotation apart: one operator, or several."""


@cache
def _values_of(record: type) -> Callable[[object], object]:
    """Return what reads all fields of a record: for each of many thousands of steps anew `fields` takes longer."""
    return attrgetter(*(field.name for field in fields(record)))


class _HashedOnce:
    """A record that keeps its hash: tables of what steps cost ask for that of every operator again and again."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        """Return a hash of all fields."""
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash(_values_of(type(self))(self)))  # type: ignore[arg-type]
            return self._hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(_HashedOnce):
    """One computation launched on a GPU: a kernel, or a group of short memory-bound ones."""

    name: str
    """Unique within its segment: `norm`, `qkv`, `qkv.dgrad`, `qkv.wgrad`."""
    kind: OperatorKind
    shape: tuple[int, ...]
    """Local shape on one GPU; see `OperatorKind`."""
    flops: int
    """Floating-point operations on one GPU, a multiply-add counted as two, causal attention's masked half left out."""
    bytes_read: int
    """Bytes that a fused implementation reads from HBM, on one GPU."""
    bytes_written: int
    """Bytes that a fused implementation writes to HBM, on one GPU."""
    kernels: int
    """Kernels that it launches, copies not counted."""
    copies: int = 0
    """Kernels that only move its inputs into place before the others, or its outputs after them."""
    copied_bytes: int = 0
    """Bytes that those read and write in HBM, on one GPU, beyond what is counted above."""
    precision: Precision = field(default=Precision.BF16, metadata=ADDED)
    """Number format of a product's operands; casting them is among its copies."""

    __hash__ = _HashedOnce.__hash__  # or `dataclass` would make another

    @property
    def launches(self) -> int:
        """All kernels that the host launches for it where they are fused as in the graph (else: `laws.launches`)."""
        return self.kernels + self.copies

    @property
    def is_weight_gradient(self) -> bool:
        """Whether it is the gradient of a weight matrix or bias, which nothing but the optimizer waits for."""
        return self.name.endswith(WEIGHT_GRADIENT_SUFFIX)

    @property
    def is_core_attention(self) -> bool:
        """Whether it is attention, or a part of attention that is not fused, forward or backward."""
        return self.name.partition(".")[0] in CORE_ATTENTION


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective, or consecutive ones fused into one launch."""

    kind: CollectiveKind
    group: str
    """The process group: `tp`, `cp`, `ep` or `etp`."""
    group_size: int
    message_bytes: int
    """Bytes of the full buffer on one GPU: reduced (all-reduce), gathered (all-gather), scattered (reduce-scatter), or
    sent in parts to all GPUs, itself among them (all-to-all)."""
    fused: int
    """Number of collectives of the model that are fused into this one."""

    @property
    def label(self) -> str:
        """Name of the collective in names of partitions: its kind; with `-tp` if it gathers or scatters tokens.

        A backward gathers the input of a matrix product together with a gradient: `allgather2-tp`. Tokens go to their
        experts and come back by as many bytes, so that both are `alltoall`; those that share an expert gather and
        scatter by `allgather-etp` and `reducescatter-etp`.
        """
        if self.group == EXPERT_TENSOR_PARALLEL:
            return f"{self.kind}-{self.group}"
        if self.group != TENSOR_PARALLEL or self.kind is CollectiveKind.ALL_REDUCE:
            return str(self.kind)
        return f"{self.kind}{self.fused if self.fused > 1 else ''}-{self.group}"

    @property
    def bus_bytes(self) -> float:
        """Bytes that one GPU sends over its links by a ring (and NCCL's definition of bus bandwidth)."""
        rounds = 2 if self.kind is CollectiveKind.ALL_REDUCE else 1
        return rounds * (self.group_size - 1) / self.group_size * self.message_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceCollective(Collective):
    """A collective that gathers or scatters the tokens of several sequences, each by itself, in one launch.

    What reads or wrote the tokens of a sequence in order, such as attention, then needs no copies. What treats tokens
    alike has all of them in one message: a plain `Collective`.
    """

    sequences: int
    """Sequences, 2 or more: messages of the launch for each of the collectives that are fused."""

    @property
    def at_once(self) -> Collective:
        """The collective that has the tokens of all sequences in one message."""
        return Collective(**{field.name: getattr(self, field.name) for field in fields(Collective)})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCollective(Collective):
    """A collective whose ranks may lie on several nodes."""

    nodes: int
    """Nodes that have ranks of the group."""
    per_node: int
    """Least number of them on one of these nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenExchange(PlacedCollective):
    """An all-to-all of tokens over several nodes, where one copy may serve all experts of a node."""

    between_share: float
    """Bytes that travel between nodes over those of a copy for each expert there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedGather(PlacedCollective):
    """An all-gather in a node that its switches multicast, from buffers that NCCL has registered (NVLS)."""

    filled_by: int
    """SMs by which a ring fills the links as much; the few that these gathers take fill them, too."""

    @property
    def bus_bytes(self) -> float:
        """Bytes that one GPU receives: the whole buffer, its own shard too (NCCL's maintainers, issue 1083)."""
        return self.message_bytes


AnyCollective = Collective | SequenceCollective | PlacedCollective | TokenExchange | SwitchedGather
"""A collective of a model's graph; reading one from a file needs the records by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The longest run of operators between two collectives, and the collective that ends it."""

    name: str
    """Named after what it computes: `attention`, `mlp`, `qkv`, `projection`, `embedding`, `loss`, ..."""
    direction: Direction
    scope: Scope
    operators: tuple[Operator, ...]
    collective: AnyCollective | None
    """None where no collective ends it (final norm, say)."""
    independent_tail: int
    """Number of last operators that the collective does not wait for (weight gradients); sequential execution runs the
    collective beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One collective of a nanobatch and the segment of the other nanobatch that runs beside it (paper, section 4.2)."""

    name: str
    """`<direction>-<segment>-<collective>`, such as `forward-mlp-allreduce`."""
    direction: Direction
    operators: tuple[Operator, ...]
    collective: AnyCollective

    def operator_index(self, name: str) -> int:
        """Return the position of the operator of that name: the only conversion of a launch operator into a number.

        Raises:
            ArtifactError: the partition has no such operator.
        """
        for index, operator in enumerate(self.operators):
            if operator.name == name:
                return index
        names = ", ".join(operator.name for operator in self.operators)
        raise ArtifactError(f"{self.name}: no operator '{name}'; there are: {names}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGraph:
    """Segments of one pass over one batch, as extracted.

    The segments of a block are a cycle: what follows the last collective of a block (its residual add)
    is the start of the first segment of the next one.
    """

    forward: tuple[Segment, ...]
    """Forward of one block, in program order."""
    backward: tuple[Segment, ...]
    """Backward of one block, in program order."""
    embedding_forward: tuple[Segment, ...]
    embedding_backward: tuple[Segment, ...]
    head_forward: tuple[Segment, ...]
    head_backward: tuple[Segment, ...]
    dense_forward: tuple[Segment, ...] = ()
    """Forward of a block of a mixture of experts that has an MLP in their place; nothing where there is none."""
    dense_backward: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartlyRecomputedGraph(BlockGraph):
    """A graph of which some blocks are recomputed and others keep all that their backward reads."""

    every: int
    """Every so manieth block of a stage, or of its chunk, is recomputed."""
    first: int | None
    """Blocks of a stage, or of its chunk, from the first on, among which these are; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(_HashedOnce):
    """Operators in order, and one collective that starts together with one of them."""

    operators: tuple[Operator, ...] = ()
    collective: AnyCollective | None = None
    launch: int = 0
    """Index of the operator beside which the collective starts; `len(operators)` starts it after all of them."""
    sm_count: int = 0
    """SMs given to the collective; 0 without a collective."""
    within: tuple["Step", ...] = field(default=(), metadata=ADDED)
    """Steps in order that collectives of `along` run beside, across their borders; the step has nothing else then."""
    along: tuple["Step", ...] = field(default=(), metadata=ADDED)
    """Collectives, one after the other, which start with the first of `within`."""

    __hash__ = _HashedOnce.__hash__

    @property
    def parts(self) -> tuple["Step", ...]:
        """The steps that it is made of; itself where it is one."""
        return (*self.within, *self.along) if self.along else (self,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Steps in order; every step waits for the one before."""

    name: str
    """Name in tables and log lines; not part of the program's identity."""
    steps: tuple[Step, ...]
    blocks: tuple[int, int] | None = None
    """First step of the transformer blocks and the one after their last, if this is a whole pipeline instruction."""
