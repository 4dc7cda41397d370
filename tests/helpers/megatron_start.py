"""The start of a job of Megatron-LM by exported arguments: one of its ranks, beside others that answer nothing.

Process groups, the calculator of microbatches, timers and schedules are Megatron-Core's. Megatron-LM, which is no
package, is a module that has the names of its own (`megatron/training/global_vars.py`). Import it in a process of its
own.
"""

import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.num_microbatches_calculator import get_num_microbatches, init_num_microbatches_calculator
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.timers import Timers
from megatron.core.transformer import TransformerConfig
from torch.testing._internal.distributed.fake_pg import FakeStore

from helpers.fake_device import FakeDevice
from helpers.megatron_jobs import OnCpu
from kareus.adapters import driver
from kareus.adapters.agreement import Alone
from kareus.device.claims import FOLDER_VARIABLE

WIDTH = 4


def given(exported: str) -> dict[str, str]:
    """Arguments of the arrays of an exported file, by name; empty where one is a flag."""
    words = [word for word in shlex.split(exported, comments=True) if word not in (")", "(")]
    named = [(word.removeprefix("--"), after) for word, after in zip(words, [*words[1:], ""], strict=True)]
    return {
        name: "" if after.startswith("--") else after
        for (name, after), word in zip(named, words, strict=True)
        if word.startswith("--")
    }


class Start:
    """A rank of the job, with a device of its own."""

    def __init__(self, exported: str, clocks_mhz: tuple[int, ...]) -> None:
        """Do what `initialize_megatron` does: process groups, global variables, and microbatches of an iteration."""
        arguments = given(exported)
        tensor, stages = (int(arguments[f"{axis}-model-parallel-size"]) for axis in ("tensor", "pipeline"))
        gpus, batch, each = (
            int(arguments[name]) for name in ("nproc_per_node", "global-batch-size", "micro-batch-size")
        )
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=gpus)
        parallel_state.initialize_model_parallel(tensor, stages, create_gloo_process_groups=False)
        init_num_microbatches_calculator(
            0, None, batch, each, gpus // (tensor * stages), decrease_batch_size_if_needed=False
        )
        lm: Any = SimpleNamespace(_GLOBAL_TIMERS=Timers(0, "max"))
        lm.get_timers = lambda: lm._GLOBAL_TIMERS
        lm.get_args = lambda: SimpleNamespace(seq_length=int(arguments["seq-length"]))
        self.lm = sys.modules["megatron.training.global_vars"] = lm
        folder = Path("device")
        folder.mkdir()
        os.environ[FOLDER_VARIABLE] = str(folder / "claims")
        self.device = FakeDevice(folder, clocks_mhz=clocks_mhz)
        driver.gpu_of = lambda _: self.device
        driver.job_agreement = Alone  # the other ranks object to nothing

    def train(self) -> int:
        """Run an iteration by Megatron's schedule and global timers; returns how often a clock was locked."""
        torch.cuda.synchronize = lambda device=None: None
        config: Any = TransformerConfig(
            num_layers=1, hidden_size=WIDTH, num_attention_heads=1, use_cpu_initialization=True
        )
        config.timers = self.lm.get_timers()
        model: Any = torch.nn.Linear(WIDTH, 1)
        model.config, model.model_type, model.set_input_tensor = config, ModelType.encoder_or_decoder, lambda _: None

        def forward(batches: Any, part: torch.nn.Module) -> Any:
            return part(next(batches)), lambda output: (output.mean(), {})

        with OnCpu():
            get_forward_backward_func()(
                forward_step_func=forward,
                data_iterator=iter(torch.ones(get_num_microbatches(), 2, WIDTH)),
                model=model,
                num_microbatches=get_num_microbatches(),
                seq_length=2,
                micro_batch_size=1,
            )
        self.lm.get_timers().close()
        return sum(call.startswith("lock") for call in self.device.calls())
