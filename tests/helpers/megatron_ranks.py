"""What each rank of the tests of the Megatron adapter runs, and what it found. Import it in ranks only."""

import contextlib
import copy
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.timers import Timers

from helpers.code_blocks import python_blocks, run_block
from helpers.doc_examples import run_examples
from helpers.fake_device import FakeDevice
from helpers.megatron_jobs import SEQUENCE, Job, make_job, megatron_lm, megatron_on_cpu
from kareus import load_plan
from kareus.adapters import driver
from kareus.adapters.megatron import PlanCallback, PlanTimers, obey, planned_timers
from kareus.device.claims import FOLDER_VARIABLE
from kareus.errors import EngineError

STAGES, MICROBATCHES, ITERATIONS = 2, 4, 3
REDUCTION_S = 0.01
Found = dict[str, Any]


def run_rank(rank: int, folder: Path) -> None:
    """Run all jobs of one rank by the plans in `folder`, with what the page prints; leaves its findings there."""
    os.chdir(folder)
    own = folder / str(rank)
    own.mkdir()
    os.environ[FOLDER_VARIABLE] = str(own / "claims")
    init_num_microbatches_calculator(rank, None, MICROBATCHES, 1, 1, decrease_batch_size_if_needed=False)
    in_lm, in_core, in_bridge, _ = python_blocks("howto/megatron.md")
    found: Found = {}
    with megatron_on_cpu(STAGES, 1):
        found["1f1b"] = _as_megatron_lm(own, in_lm, chunks=1)
        found["core"] = _as_megatron_core(own, in_core)
        found["bridge"] = _as_megatron_bridge(own, in_bridge)
        found["refused"] = {"gpipe": _refused(own, lambda: _opened("gpipe.json"))}
        found["too many"] = _refused(own, _one_forward_more)
        found["timers"] = _real_timers(own)
        found["failed"] = _failed_once(own)
        found["examples"] = _examples(own)
    with megatron_on_cpu(STAGES, 2):
        interleaved = in_lm.replace("plan.json", "interleaved.json").replace("first", "interleaved")
        found["interleaved"] = _as_megatron_lm(own, interleaved, chunks=2)
        found["refused"]["1f1b"] = _refused(own, lambda: _opened("plan.json"))
    with megatron_on_cpu(1, 1):
        found["replicas"] = _as_replicas(own)
    (own / "found.json").write_text(json.dumps(found))


def _as_megatron_lm(own: Path, printed: str, chunks: int) -> Found:
    """Train without a plan and with one, which evaluations interrupt that set `config.timers` as Megatron-LM's do."""
    bare = _job(chunks)
    bare_losses = [bare.step(iteration) for iteration in range(ITERATIONS)]

    device = _device(own, f"lm-{chunks}")
    lm: Any = megatron_lm()
    sys.modules["megatron.training.global_vars"] = lm
    job, losses = _job(chunks), []
    if chunks > 1:  # the same lines, and a provider that is given its builder, as in recent versions
        here = run_block(printed, {"model_provider": lambda builder, chunk: builder(chunk)})
        provider = partial(here["obedient_provider"], job.chunks.__getitem__)
    else:
        provider = run_examples(obey, {"model_provider": job.chunks.__getitem__})["obedient_provider"]
    assert [provider(chunk) for chunk in range(chunks)] == job.chunks
    job.config.timers = lm.get_timers()
    for iteration in range(ITERATIONS):
        losses.append(job.step(iteration, lm.get_timers()))
        job.config.timers = None
        job.evaluate()
        job.config.timers = lm.get_timers()
        job.evaluate()  # as in trainers that leave timers on
    lm.get_timers().close()
    del sys.modules["megatron.training.global_vars"]
    return {"bare": bare.ran, "bare losses": bare_losses, "ran": job.ran, "losses": losses, "calls": device.calls()}


def _as_megatron_core(own: Path, printed: str) -> Found:
    """Train in a loop of one's own, without any timers of Megatron."""
    device, job = _device(own, "core"), _job(chunks=1)
    run_block(printed, {"config": job.config})
    for iteration in range(ITERATIONS):
        job.step(iteration)
    job.config.timers.close()
    return {"ran": job.ran, "calls": device.calls()}


def _as_megatron_bridge(own: Path, printed: str) -> Found:
    """Train with the callback, which is called and has its timers replaced when Megatron-Bridge does so."""
    device, job = _device(own, "bridge"), _job(chunks=1)
    state = SimpleNamespace(timers=Timers(0, "max"), cfg=SimpleNamespace(model=SimpleNamespace(seq_length=SEQUENCE)))
    context = SimpleNamespace(state=state, model=job.chunks)

    def pretrain(config: None, forward_step: None, callbacks: list[PlanCallback]) -> None:
        (callback,) = callbacks
        job.config.timers = state.timers
        callback.on_train_start(context)
        for iteration in range(ITERATIONS):
            callback.on_train_step_start(context)
            job.step(iteration)
            callback.on_train_step_end(context)
            job.config.timers = None
            job.evaluate()
            job.config.timers = state.timers
        callback.on_train_end(context)

    run_block(printed, {"config": None, "forward_step": None, "pretrain": pretrain})
    return {"ran": job.ran, "calls": device.calls()}


def _as_replicas(own: Path) -> Found:
    """Train replicas of one stage, whose gradients are summed at the end of the passes, under Megatron's timer."""
    _device(own, "replicas")
    job = make_job(1, 1, MICROBATCHES)
    timers = planned_timers("replicas.json", Timers(0, "max"), output="results/mine/adapters/replicas")

    def finalize(models: list[torch.nn.Module], num_tokens: object, **_: object) -> None:
        timers("all-grads-sync", log_level=1).start(barrier=False)
        time.sleep(REDUCTION_S)
        for weight in job.chunks[0].parameters():
            dist.all_reduce(weight.grad)
        timers("all-grads-sync").stop()

    job.config.timers, job.config.finalize_model_grads_func = timers, finalize
    for iteration in range(ITERATIONS):
        job.step(iteration, timers)
    timers.close()
    return {"ran": job.ran, "reduction_s": REDUCTION_S}


def _refused(own: Path, run: Callable[[], object]) -> Found:
    """Message of a refusal, and what the GPU was asked for until then."""
    device = _device(own, f"refused-{len(list(own.iterdir()))}")
    try:
        run()
    except EngineError as error:
        return {"message": str(error), "calls": device.calls()}
    raise AssertionError("not refused")


def _one_forward_more() -> None:
    """Tell the timers of an iteration with one more forward than planned."""
    with contextlib.closing(_opened("plan.json")) as timers:
        timers("forward-backward", log_level=1).start()
        stage = parallel_state.get_pipeline_model_parallel_rank()
        for instruction in load_plan("plan.json").stages[stage].passes:
            timers(f"{instruction.direction}-compute", log_level=2).start()
            timers(f"{instruction.direction}-compute").stop()
        timers("forward-compute").start()


def _examples(own: Path) -> Found:
    """What the docstrings of the other ways into Megatron print."""
    device, job = _device(own, "examples"), _job(chunks=1)
    run_examples(planned_timers, {"config": job.config})["config"].timers.close()
    opened: list[PlanCallback] = []
    names = {"config": None, "forward_step": None, "pretrain": lambda *_, callbacks: opened.extend(callbacks)}
    run_examples(PlanCallback, names)
    return {"callbacks": len(opened), "calls": device.calls()}


def _failed_once(own: Path) -> Found:
    """Tell the timers of an iteration that fails amid its first forward, and then of a whole one."""
    device = _device(own, "failed")
    timers = planned_timers("plan.json", None, output=own / "failed/out")
    timers("forward-backward").start()
    timers("forward-compute").start()
    timers("forward-backward").start()
    stage = parallel_state.get_pipeline_model_parallel_rank()
    for instruction in load_plan("plan.json").stages[stage].passes:
        timers(f"{instruction.direction}-compute").start()
        timers(f"{instruction.direction}-compute").stop()
    timers("forward-backward").stop()
    with torch.no_grad():
        timers("forward-backward").start()  # an evaluation ends the update that no timer has ended
    steps = timers._driver.iteration
    timers.close()
    return {"steps": steps, "calls": device.calls()}


def _real_timers(own: Path) -> Found:
    """Whether all but the hooks is Megatron's."""
    _device(own, "real")
    real = Timers(2, "max")
    with contextlib.closing(planned_timers("plan.json", real)) as timers:
        timers("forward-backward", log_level=1).start(barrier=True)
        return {
            "log": timers.log == real.log,
            "elapses": timers("forward-backward").elapsed() > 0,
            "copies": copy.deepcopy(timers) is timers,
        }


def _opened(plan: str) -> PlanTimers:
    return planned_timers(plan, Timers(0, "max"))


def _job(chunks: int) -> Job:
    return make_job(STAGES, chunks, MICROBATCHES)


def _device(own: Path, name: str) -> FakeDevice:
    """A GPU for each job, which the driver of the rank finds."""
    device = FakeDevice(own / name, uuid=f"GPU-{name}")
    device.folder.mkdir()
    driver.gpu_of = lambda cpu: device
    return device
