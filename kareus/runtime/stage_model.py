"""The part of a model that one pipeline stage holds on one GPU, run as the schedule of each microbatch says."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function

from kareus.errors import EngineError
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import BlockGraph, Direction
from kareus.model.block import Block
from kareus.model.communication import Mesh, Tensors
from kareus.model.config import Model
from kareus.model.ends import Embedding, Head
from kareus.model.functions import Later, apply, weight_gradients_put_off
from kareus.model.layers import rotary_table
from kareus.model.passes import (
    BlockDone,
    Layers,
    Pass,
    Tape,
    backward_pass,
    blockwise_pass,
    forward_pass,
    recomputed_pass,
)
from kareus.model.routing import Balance
from kareus.model.shards import Shard
from kareus.model.steps import steps_of
from kareus.profile.programs import StageShape
from kareus.runtime.graphs import MicrobatchGraphs, replayed
from kareus.runtime.overlap import run_alone, run_staggered
from kareus.runtime.schedules import MicrobatchSchedule, Schedule, Turn, turns_of

SEQUENTIAL = MicrobatchSchedule()
GradientsReady = Callable[[nn.Module], None]
"""Takes a part of the model, the embedding, a block or the head, whose weight gradients are complete."""


class Held(NamedTuple):
    """What a microbatch leaves for its backward."""

    schedule: Schedule
    """Of the backward."""
    hidden: Tensor
    """What entered the blocks."""
    tapes: list[Tape] | None
    """Of its nanobatches, or of itself; None where backward recomputes its blocks."""
    entered: list[list[Tensors]]
    """By nanobatch, what entered each block; empty unless backward recomputes block by block."""
    balance: Balance | None
    """Of its experts, if it is trained to be even."""


class StageModel(nn.Module):
    """Embedding and head where the stage has them, and its blocks between them.

    What stands outside the blocks handles a whole microbatch; the blocks run it whole or as two nanobatches, by an
    autograd function, so that `backward()` of what `forward` returns is all that a pipeline needs. Gradients of
    weights are added to the fp32 buffers `<weight>_gradient`.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(
        self,
        model: Model,
        shard: Shard,
        mesh: Mesh,
        shape: StageShape,
        dtype: torch.dtype,
        *,
        recomputation: Recomputation,
        graph: BlockGraph | None = None,
        default_sm_count: int | None = None,
    ) -> None:
        """Make a stage with random weights.

        Args:
            model: the whole model.
            shard: what one GPU holds of each operator.
            mesh: communicators of the blocks.
            shape: what of the model the stage holds.
            dtype: of weights and activations.
            recomputation: what a backward recomputes of the forward of the blocks.
            graph: operator graph of a block, which schedules refer to; None if all are sequential.
            default_sm_count: SMs of collectives that no schedule decides; None leaves them to the library.
        """
        super().__init__()
        self.embedding = Embedding(model, shard, mesh, dtype) if shape.first else None
        routed = [number >= shape.dense and model.experts is not None for number in range(shape.layers)]
        self.blocks = nn.ModuleList(
            Block(
                model,
                shard,
                mesh,
                dtype,
                experts=model.experts if experts else None,
                after_dense=0 < number <= shape.dense,
            )
            for number, experts in enumerate(routed)
        )
        self._dense = shape.dense
        self.head = Head(model, shard, mesh, dtype) if shape.last else None
        self._ties = model.tie_embeddings
        self.tie()
        cosine, sine = rotary_table(model, shard.tokens, mesh.cp)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        self.recomputation = recomputation
        self._graph = graph
        self._default_sm_count = default_sm_count
        self._steps = self._own_steps()
        self._later: Later | None = None
        self.gradients_ready: GradientsReady | None = None
        """Called during a backward with the head and with every block whose weight gradients it has completed."""
        self._turns: dict[tuple[Direction, Schedule], tuple[Turn, ...]] = {}

    def forward(
        self,
        inputs: Tensor,
        labels: Tensor | None = None,
        schedule: MicrobatchSchedule = SEQUENTIAL,
        graphs: MicrobatchGraphs | None = None,
        balance: Balance | None = None,
    ) -> Tensor:
        """Run one microbatch; `backward` of the result runs the blocks as `schedule.backward` says.

        Args:
            inputs: ids, [batch, tokens], on the first stage; else hidden states, [batch, tokens, hidden].
            labels: [batch, tokens], on the last stage, to get the loss.
            schedule: a microbatch of one sequence runs sequentially whatever it says.
            graphs: captured by that schedule, which launch the blocks; None launches each operator.
            balance: of the microbatch's experts, if it is to be trained.

        Returns:
            On the last stage, the mean loss over the tokens of this GPU (multiply it by their share of the iteration's
            before `backward`), or without labels the logits of this GPU's vocabulary rows; else hidden states.
        """
        hidden: Tensor = inputs if self.embedding is None else self.embedding(inputs)
        if torch.is_grad_enabled():
            hidden = hidden if hidden.requires_grad else hidden.detach().requires_grad_()
            hidden = apply(_Blocks, hidden, self, schedule, balance) if graphs is None else replayed(hidden, graphs)
        else:
            hidden, _ = self.run_forward(hidden, schedule, record=False)
        if self.head is None:
            return hidden
        result: Tensor = self.head.logits(hidden) if labels is None else self.head(hidden, labels)
        return result

    def run_forward(
        self,
        hidden: Tensor,
        schedule: MicrobatchSchedule,
        *,
        record: bool,
        output: Tensor | None = None,
        balance: Balance | None = None,
    ) -> tuple[Tensor, Held]:
        """Run the blocks forward, outside of autograd, into `output`, or into new memory.

        Where blocks are not recomputed, the nanobatches of backward are those that forward recorded: if either of the
        two instructions splits the microbatch, both do, and a sequential one runs its nanobatches one after the other.
        """
        keeps_tapes = record and not self.recomputation.repeats_blocks
        splits = schedule.forward.splits or (keeps_tapes and schedule.backward.splits)
        parts = _parts(hidden, splits=splits)
        tapes: list[Tape] | None = [[] for _ in parts] if keeps_tapes else None
        keeps_inputs = record and self.recomputation is Recomputation.FULL
        entered: list[list[Tensors]] = [[] for _ in parts] if keeps_inputs else []
        output = torch.empty_like(hidden) if output is None else output
        passes = [
            forward_pass(
                self._steps,
                part,
                (self.cosine, self.sine),
                tapes[n] if tapes is not None else None,
                written,
                entered[n] if keeps_inputs else None,
                balance,
            )
            for n, (part, written) in enumerate(zip(parts, _parts(output, splits=splits), strict=True))
        ]
        self._run(passes, Direction.FORWARD, schedule.forward)
        return output, Held(schedule.backward, hidden.detach(), tapes, entered, balance)

    def run_backward(self, kept: Held, gradient: Tensor, output: Tensor | None = None) -> Tensor:
        """Run the blocks backward, from and to gradients of hidden states; recompute where nothing was recorded.

        The result is in `output`, or in new memory.
        """
        if self.gradients_ready is not None and self.head is not None:
            self.gradients_ready(self.head)
        splits = kept.schedule.splits if kept.tapes is None else len(kept.tapes) > 1
        gradients, table = _parts(gradient, splits=splits), (self.cosine, self.sine)
        done_with = self._counting(len(gradients))
        if kept.tapes is not None:
            passes = [
                backward_pass(tape, part_gradient, self._later, done_with)
                for tape, part_gradient in zip(kept.tapes, gradients, strict=True)
            ]
        elif kept.entered:
            regrouped = _regrouped(kept.entered, len(gradients))
            passes = [
                blockwise_pass(self._steps, entered, table, part_gradient, self._later, done_with, kept.balance)
                for entered, part_gradient in zip(regrouped, gradients, strict=True)
            ]
        else:
            passes = [
                recomputed_pass(self._steps, part, table, part_gradient, self._later, done_with, kept.balance)
                for part, part_gradient in zip(_parts(kept.hidden, splits=splits), gradients, strict=True)
            ]
        direction = Direction.BACKWARD if self._later is None else Direction.INPUT_GRADIENT
        done = self._run(passes, direction, kept.schedule)
        return done[0] if len(done) == 1 and output is None else torch.cat(done, out=output)

    def _counting(self, passes: int) -> BlockDone | None:
        """Return what tells of every block that all `passes` through it have added their weight gradients."""
        ready = self.gradients_ready
        if ready is None:
            return None
        through: Counter[int] = Counter()

        def block_done(block: int) -> None:
            through[block] += 1
            if through[block] == passes:
                ready(self.blocks[block])

        return block_done

    @contextmanager
    def input_gradients_only(self) -> Iterator[Later]:
        """Within, `backward` of what `forward` returned leaves out the gradients of weight matrices.

        Yields:
            What adds them, to be called without autograd once `backward` has returned.
        """
        with weight_gradients_put_off() as later:
            self._later = later
            try:
                yield later
            finally:
                self._later = None

    def tie(self) -> None:
        """Give the LM head the embedding's weights, where the stage has both and the model ties them."""
        if self._ties and self.embedding is not None and self.head is not None:
            self.head.lm_head.weight = self.embedding.weight
            self.head.lm_head.weight_gradient = self.embedding.weight_gradient

    def _apply(self, *arguments: Any, **options: Any) -> "StageModel":
        """Apply a function to all tensors, such as a move to another device; it copies shared buffers, too."""
        super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        self.tie()
        self._steps = self._own_steps()
        return self

    def _own_steps(self) -> Layers:
        """Return the steps of the blocks, which hold their weights."""
        return steps_of((block for block in self.blocks if isinstance(block, Block)), self.recomputation)

    def _run(self, passes: list[Pass], direction: Direction, schedule: Schedule) -> list[Tensor]:
        if len(passes) > 1 and schedule.splits:
            return run_staggered(passes, self._turns_of(direction, schedule), self._default_sm_count)
        return [run_alone(each, self._default_sm_count) for each in passes]

    def _turns_of(self, direction: Direction, schedule: Schedule) -> tuple[Turn, ...]:
        if self._graph is None:
            raise EngineError(f"execution '{schedule.execution}': needs the operator graph; run the stage 'partition'.")
        key = (direction, schedule)
        if key not in self._turns:
            self._turns[key] = turns_of(
                schedule,
                self._graph,
                len(self.blocks),
                direction,
                recomputation=self.recomputation,
                default_sm_count=self._default_sm_count,
                dense=self._dense,
            )
        return self._turns[key]


class _Blocks(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, stage: StageModel, schedule: MicrobatchSchedule, balance: Balance | None
    ) -> Tensor:
        output, ctx.kept = stage.run_forward(hidden, schedule, record=True, balance=balance)
        ctx.stage = stage
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        kept, ctx.kept = ctx.kept, None
        return ctx.stage.run_backward(kept, gradient), None, None, None


def _regrouped(entered: list[list[Tensors]], parts: int) -> list[list[Tensors]]:
    """What entered each block, by as many nanobatches as backward has instead of those of forward."""
    if len(entered) == parts:
        return entered
    if parts == 1:
        return [[tuple(t for (t,) in block) for block in zip(*entered, strict=True)]]
    split = [_parts(hidden, splits=True) for ((hidden,),) in zip(*entered, strict=True)]
    return [[(block[part],) for block in split] for part in range(parts)]


def _parts(hidden: Tensor, *, splits: bool) -> tuple[Tensor, ...]:
    """Nanobatches of a microbatch, the first the larger one where they differ; itself, if it is one sequence."""
    batch = len(hidden)
    return tuple(torch.split(hidden, [batch - batch // 2, batch // 2])) if splits and batch > 1 else (hidden,)
