"""A real training of Megatron-Core on CPUs over gloo: a tiny GPT on pipeline stages. Import it in ranks only.

Megatron-Core assumes CUDA in three places that no setting turns off; stand-ins for them are here, and nowhere else.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import random
from megatron.core.timers import Timers
from megatron.core.transformer import TransformerConfig
from torch import Tensor
from torch.overrides import TorchFunctionMode

SEQUENCE = 8
VOCABULARY = 32
PASS_S = 0.005
"""Least time of a pass: that of a tiny model may be over before the thread that locks clocks has run."""
Batches = Iterator[tuple[int, int, Tensor]]
"""Chunk, microbatch and tokens."""


class OnCpu(TorchFunctionMode):
    """Makes tensors on the CPU that are asked for on "cuda"."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = dict(options or {})
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        return function(*arguments, **options)


class NoTracker:
    """Random numbers of a model that draws none."""

    def is_initialized(self) -> bool:
        return True

    @contextlib.contextmanager
    def fork(self, name: str = "") -> Iterator[None]:
        yield


@contextlib.contextmanager
def megatron_on_cpu(stages: int, chunks: int) -> Iterator[None]:
    """Megatron's process groups, with CPUs for GPUs."""
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda device=None: None
    random._CUDA_RNG_STATE_TRACKER = NoTracker()
    random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=stages, virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None
    )
    try:
        with OnCpu():
            yield
    finally:
        parallel_state.destroy_model_parallel()


@dataclass(kw_only=True)
class Job:
    """The part of a training that one rank does."""

    chunks: list[torch.nn.Module]
    optimizer: torch.optim.Optimizer
    microbatches: int
    ran: list[tuple[str, int, int]] = field(default_factory=list)
    """What was trained: direction, chunk and microbatch."""

    @property
    def config(self) -> Any:
        """Megatron's configuration, whose timers are set."""
        return self.chunks[0].config

    def step(self, iteration: int, timers: Any = None) -> list[float]:
        """Train one iteration, timing the optimizer as Megatron-LM does; returns the losses, on the last stage."""
        self.optimizer.zero_grad()
        losses = self._run(iteration, forward_only=False)
        if timers is not None:
            timers("optimizer", log_level=1).start(barrier=False)
        self.optimizer.step()
        if timers is not None:
            timers("optimizer").stop()
        return losses

    def evaluate(self) -> None:
        """Run forwards only."""
        with torch.no_grad():
            self._run(1000, forward_only=True)

    def _run(self, iteration: int, *, forward_only: bool) -> list[float]:
        data = [self._batches(iteration, chunk) for chunk in range(len(self.chunks))]
        losses = get_forward_backward_func()(
            forward_step_func=self._forward,
            data_iterator=data if len(data) > 1 else data[0],
            model=self.chunks if len(data) > 1 else self.chunks[0],
            num_microbatches=self.microbatches,
            seq_length=SEQUENCE,
            micro_batch_size=1,
            forward_only=forward_only,
        )
        return [float(each["loss"]) for each in losses]

    def _batches(self, iteration: int, chunk: int) -> Batches:
        for microbatch in range(self.microbatches):
            generator = torch.Generator().manual_seed(100 * iteration + microbatch)
            yield chunk, microbatch, torch.randint(VOCABULARY, (1, SEQUENCE + 1), generator=generator)

    def _forward(self, batches: Batches, model: torch.nn.Module) -> tuple[Tensor, Any]:
        chunk, microbatch, tokens = next(batches)
        assert model is self.chunks[chunk]
        if torch.is_grad_enabled():
            self.ran.append(("forward", chunk, microbatch))
            time.sleep(PASS_S)
        mask = torch.ones(1, 1, SEQUENCE, SEQUENCE).tril() < 0.5
        output = model(tokens[:, :-1], torch.arange(SEQUENCE)[None], mask, labels=tokens[:, 1:])
        if torch.is_grad_enabled():
            output.register_hook(partial(self._backward, chunk, microbatch))
        return output, _loss

    def _backward(self, chunk: int, microbatch: int, gradient: Tensor) -> Tensor:
        self.ran.append(("backward", chunk, microbatch))
        time.sleep(PASS_S)
        return gradient


def make_job(stages: int, chunks: int, microbatches: int) -> Job:
    """The job of this rank, whose weights are the same every time."""
    config = TransformerConfig(
        num_layers=stages * chunks,
        hidden_size=16,
        num_attention_heads=2,
        use_cpu_initialization=True,
        pipeline_model_parallel_size=stages,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        pipeline_dtype=torch.float32,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        apply_rope_fusion=False,
        batch_p2p_comm=False,
    )
    stage = parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(stage)
    models: list[torch.nn.Module] = [
        GPTModel(
            config,
            get_gpt_layer_local_spec(),
            VOCABULARY,
            SEQUENCE,
            pre_process=stage == 0 and chunk == 0,
            post_process=stage == stages - 1 and chunk == chunks - 1,
            vp_stage=chunk if chunks > 1 else None,
        )
        for chunk in range(chunks)
    ]
    weights = [parameter for model in models for parameter in model.parameters()]
    return Job(chunks=models, optimizer=torch.optim.SGD(weights, lr=0.1), microbatches=microbatches)


def megatron_lm() -> Any:
    """Megatron-LM's module of global variables, as far as the adapter uses it, with timers that log nothing."""
    module = SimpleNamespace(_GLOBAL_TIMERS=Timers(0, "max"))
    module.get_timers = lambda: module._GLOBAL_TIMERS
    module.get_args = lambda: SimpleNamespace(seq_length=SEQUENCE, microbatch_group_size_per_vp_stage=None)
    return module


def _loss(output: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = output.mean()
    return loss, {"loss": loss.detach()}
