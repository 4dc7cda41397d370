"""A whole model whose gradients, or gradients and weights, are shared out over data-parallel replicas.

`torch.distributed.fsdp.fully_shard` keeps the shards, gathers the weights of a block before it runs and reduce-scatters
its gradients after its backward, in every microbatch; embedding, final norm and head are one group, gathered before a
forward and kept until the end of its backward. It finds gradients where autograd leaves them, so that each part of the
model is one function of autograd here, whose weights are inputs: its backward adds to fp32 buffers that live only
meanwhile, and returns them in the dtype of the weights. With sharded gradients alone, gathered weights stay until the
update. Blocks run sequentially, by the passes that run them elsewhere.

Not run: pipeline, tensor and context parallelism, nanobatches, and recomputation of the whole stage.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo
from torch.distributed.tensor import DTensor

from kareus.errors import EngineError
from kareus.graph.recomputation import Recomputation
from kareus.model.block import Block
from kareus.model.communicators.nccl import nccl_options
from kareus.model.functions import apply
from kareus.model.layers import WEIGHT_GRADIENT_SUFFIX, RotaryTable
from kareus.model.parallelism import FsdpSettings, Sharding
from kareus.model.passes import Layers, Tape, backward_pass, forward_pass, recomputed_pass
from kareus.model.steps import steps_of
from kareus.runtime.overlap import run_alone
from kareus.runtime.schedules import MicrobatchSchedule
from kareus.runtime.stage_model import SEQUENTIAL, GradientsReady, StageModel

FillWeights = Callable[[nn.Module], None]
"""Writes the weights of a module in which they have the names that they have in the whole model."""
Backward = Callable[[Tensor], Tensor | None]
"""From the gradient of a part's output to that of its input, if that has one; adds to the buffers of its weights."""


class FullyShardedModel(nn.Module):
    """Embedding, blocks and head of a stage that is the whole model."""

    gradients_ready: GradientsReady | None = None
    """As of `StageModel`; not called, since backwards reduce gradients themselves."""

    def __init__(
        self,
        stage: StageModel,
        table: RotaryTable,
        group: dist.ProcessGroup,
        sharding: Sharding,
        compute_dtype: torch.dtype,
        fill: FillWeights,
        settings: FsdpSettings,
    ) -> None:
        """Shard the weights of `stage` block by block, so that no more than one is whole at once.

        Args:
            stage: in fp32, as the shards that the optimizer updates; its tensors are on the meta device and take no
                memory until they are filled and sharded.
            table: of the model, on the device that trains.
            group: the replicas.
            sharding: `gradients` or `full`.
            compute_dtype: of gathered weights and of activations.
            fill: writes weights, the same on all replicas.
            settings: of what replicas exchange.
        """
        super().__init__()
        assert stage.embedding is not None, "the stage is the whole model"
        assert stage.head is not None, "the stage is the whole model"
        self.embedding = _ModelPart(stage.embedding)
        self.blocks = nn.ModuleList(
            _BlockPart(block, table, stage.recomputation) for block in stage.blocks if isinstance(block, Block)
        )
        self.head = _ModelPart(stage.head)
        _free_gradients(stage)
        device = table[0].device
        mesh = DeviceMesh.from_group(group, device.type, mesh_dim_names=("dp",))
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        keeps = sharding is Sharding.GRADIENTS
        for number, (part, block) in enumerate(zip(self.blocks, stage.blocks, strict=True)):
            block.to_empty(device=device)
            fill(nn.ModuleDict({"blocks": nn.ModuleDict({str(number): block})}))
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=not keeps)
        outer = nn.ModuleDict({"embedding": stage.embedding, "head": stage.head}).to_empty(device=device)
        stage.tie()
        fill(outer)
        fully_shard(self, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        for module in self.sharded_modules():
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)  # losses are weighted already
            module.set_reshard_after_backward(not keeps, recurse=False)
        prefetch_ahead(list(self.blocks), settings.prefetch)
        set_exchanges(self, settings, nccl_options)
        self._gradients: tuple[tuple[DTensor, DTensor], ...] = ()

    def add_gradients_to(self, gradients: Iterable[tuple[DTensor, DTensor]]) -> None:
        """Have backwards add to these gradients, each given behind the sharded weight that it is of."""
        self._gradients = tuple(gradients)

    def forward(
        self, inputs: Tensor, labels: Tensor | None = None, schedule: MicrobatchSchedule = SEQUENTIAL
    ) -> Tensor:
        """Run one microbatch, as `StageModel.forward` of a whole model does.

        Raises:
            EngineError: the schedule is not sequential.
        """
        if schedule.forward.splits or schedule.backward.splits:
            raise EngineError("parallelism.sharding: gradients and full run sequentially; run a plan that does.")
        assert labels is not None, "a whole model is trained"
        for weight, gradient in self._gradients:  # PyTorch's pipelines forget gradients when they are made ready
            weight.grad = gradient
        hidden = self.embedding(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        loss: Tensor = self.head(hidden, labels)
        return loss

    def sharded_modules(self) -> Iterator[FSDPModule]:
        """Yield the modules whose weights are gathered at once: the blocks, and the model with what is around them."""
        for module in (*self.blocks, self):
            assert isinstance(module, FSDPModule)
            yield module

    def reshard_all(self) -> None:
        """Give gathered weights back, as after an update of the shards."""
        for module in self.sharded_modules():
            module.reshard()

    def unshard_all(self) -> None:
        """Gather all weights, as to write them."""
        for module in self.sharded_modules():
            module.unshard()


class _ModelPart(nn.Module):
    """A part of the model as one function of autograd; this one keeps the graph of its forward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        output: Tensor = apply(_Run, self, len(inputs), *inputs, *self.module.parameters())
        return output

    def run(self, *inputs: Tensor) -> tuple[Tensor, Backward]:
        with torch.enable_grad():
            first, *others = inputs
            given = first.detach().requires_grad_(first.is_floating_point())
            output = self.module(given, *others)

        def backward(gradient: Tensor) -> Tensor | None:
            torch.autograd.backward(output, gradient, inputs=[given] if given.requires_grad else None)
            return given.grad

        return output.detach(), backward


class _BlockPart(_ModelPart):
    """A block, run by passes."""

    def __init__(self, block: Block, table: RotaryTable, recomputation: Recomputation) -> None:
        super().__init__(block)
        self._table = table
        self._recomputation = recomputation

    def run(self, *inputs: Tensor) -> tuple[Tensor, Backward]:
        (hidden,) = (t.detach() for t in inputs)
        table = self._table
        if self._recomputation.repeats_blocks:
            output = run_alone(forward_pass(self._steps(), hidden, table), None)
            return output, lambda gradient: run_alone(recomputed_pass(self._steps(), hidden, table, gradient), None)
        tape: Tape = []
        output = run_alone(forward_pass(self._steps(), hidden, table, tape), None)
        return output, lambda gradient: run_alone(backward_pass(tape, gradient), None)

    def _steps(self) -> Layers:
        """Return the steps of the block with its whole weights, which are there while it runs."""
        assert isinstance(self.module, Block)
        return steps_of([self.module], self._recomputation)


class _Run(Function):
    @staticmethod
    def forward(ctx: Any, part: _ModelPart, inputs: int, *tensors: Tensor) -> Tensor:
        output, ctx.backward_of_part = part.run(*tensors[:inputs])
        ctx.part, ctx.inputs = part, inputs
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        run, ctx.backward_of_part = ctx.backward_of_part, None
        with _gradients_of(ctx.part.module) as gradients:
            leaving = run(gradient)
        return None, None, leaving, *(None for _ in range(ctx.inputs - 1)), *gradients


@contextmanager
def _gradients_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """Give the weights of a part fp32 buffers; on leaving, the list has their sums in the dtype of the weights."""
    weights, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    of_weights = {name: buffers[f"{name}{WEIGHT_GRADIENT_SUFFIX}"] for name in weights}
    for name, weight in weights.items():
        of_weights[name].data = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    gradients: list[Tensor] = []
    yield gradients
    for name, weight in weights.items():  # one after the other, so that no more than one of them is there twice
        gradients.append(of_weights[name].detach().to(weight.dtype))
        of_weights[name].data = of_weights[name].new_empty(0)


def _free_gradients(module: nn.Module) -> None:
    for name, buffer in module.named_buffers():
        if name.endswith(WEIGHT_GRADIENT_SUFFIX):
            buffer.data = buffer.new_empty(0)


class GroupedGather:
    """An all-gather of `fully_shard` in a group of its own (`FSDPModule.set_custom_all_gather`)."""

    def __init__(self, group: dist.ProcessGroup, *, is_registered: bool = False) -> None:
        """Gather in a group, from memory that its backend has registered where that is asked for and it has any."""
        self.group = group
        self._is_registered = is_registered

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a buffer of a gather."""
        backend = self.group._get_backend(device)
        if self._is_registered and backend.supports_tensor_alloc(device):
            return backend.allocate_tensor(math.prod(int(n) for n in size), dtype=dtype, device=device)
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,  # noqa: FBT001, FBT002 - as PyTorch calls it
    ) -> Any:
        """Gather in this group, which has the ranks of the one that is given."""
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=self.group, async_op=async_op)


class GroupedReduction(GroupedGather):
    """A reduce-scatter likewise (`FSDPModule.set_custom_reduce_scatter`)."""

    def __call__(  # type: ignore[override]  # as PyTorch calls it
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,  # noqa: FBT001, FBT002 - as PyTorch calls it
    ) -> Any:
        """Scatter the sum in this group."""
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=self.group, async_op=async_op)


def set_exchanges(model: nn.Module, settings: FsdpSettings, limits: Callable[[int], Any]) -> None:
    """Have a sharded model exchange weights and gradients as planned; every rank calls it, before the first pass.

    Exchanges whose SMs are set get communicators of their own, since NCCL takes the limit of one when it is made.

    Args:
        model: the outermost module that `fully_shard` has seen.
        settings: what is planned; how far ahead is `prefetch_ahead`'s.
        limits: options of an NCCL group of so many SMs.

    Raises:
        EngineError: the parts of a module are sharded over different groups.
    """
    made: dict[tuple[tuple[int, ...], int], dist.ProcessGroup] = {}

    def limited(group: dist.ProcessGroup, sms: int) -> dist.ProcessGroup:
        ranks, backend = dist.get_process_group_ranks(group), dist.get_backend(group)
        if (tuple(ranks), sms) not in made:
            made[tuple(ranks), sms] = dist.new_group(
                ranks,
                backend=backend,
                pg_options=limits(sms) if backend == "nccl" else None,
                use_local_synchronization=True,
                group_desc=f"fsdp-{sms}-sms",
            )
        return made[tuple(ranks), sms]

    for module in (part for part in model.modules() if isinstance(part, FSDPModule)):
        parts = module._get_fsdp_state()._fsdp_param_groups
        if len(parts) > 1:
            raise EngineError(f"{type(module).__name__}: is sharded over several groups; settings are of one.")
        for place in {id(part.mesh_info): part.mesh_info for part in parts}.values():
            assert isinstance(place, FSDPMeshInfo), "fully_shard shards"
            shard = place.shard_process_group
            if settings.gather_sms is not None:
                module.set_custom_all_gather(GroupedGather(limited(shard, settings.gather_sms)))  # type: ignore[arg-type]
            if settings.nvls:
                module.set_custom_all_gather(GroupedGather(shard, is_registered=True))  # type: ignore[arg-type]
            if settings.reduce_sms is not None:
                module.set_custom_reduce_scatter(GroupedReduction(limited(shard, settings.reduce_sms)))  # type: ignore[arg-type]
            if settings.copies_sms is not None and isinstance(place, HSDPMeshInfo):
                place.replicate_process_group = limited(place.replicate_process_group, settings.copies_sms)


def prefetch_ahead(blocks: Sequence[Any], depth: int = 1) -> None:
    """Gather the weights of the next blocks while one runs, forwards and backwards.

    Args:
        blocks: modules that `fully_shard` has seen, in the order of execution.
        depth: how many blocks ahead; each keeps the weights of one more block gathered.
    """
    for number, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(list(blocks[number + 1 : number + 1 + depth]))
        block.set_modules_to_backward_prefetch(list(blocks[max(0, number - depth) : number][::-1]))
