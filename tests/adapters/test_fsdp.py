"""Plans in trainings without a pipeline: a real `fully_shard` on two ranks, with and without the hooks."""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.code_blocks import python_blocks, run_block
from helpers.doc_examples import run_examples
from helpers.driving import driven_plan
from helpers.fake_device import FakeDevice
from helpers.piped import WIDTH, chunk_of, is_subsequence, loss, own_gpu
from helpers.worlds import spawn
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import kareus
from kareus.adapters import driver
from kareus.adapters.fsdp import PlannedTraining, exchange, obey
from kareus.adapters.recorder import table_path
from kareus.adapters.tables import MICROBATCHES, STEPS
from kareus.artifacts.tables import read_table
from kareus.device.claims import FOLDER_VARIABLE
from kareus.errors import ConfigError, EngineError
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction
from kareus.model.parallelism import FsdpSettings
from kareus.plans.file import write_plan

RANKS, ACCUMULATED, ITERATIONS = 2, 3, 4
EXCHANGED = FsdpSettings(gather_sms=8, reduce_sms=12, copies_sms=4, prefetch=2)
PLAN = replace(driven_plan(1, ACCUMULATED, gpus=RANKS, update=True), fsdp=EXCHANGED)


class Blocks(nn.Module):
    """Two blocks, the first of which is recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = chunk_of(0), chunk_of(1)

    def forward(self, batch: Tensor) -> dict[str, Tensor]:
        kept = checkpoint(self.first, batch, use_reentrant=False)
        return {"hidden": kept.detach(), "output": self.second(kept)}


def sharded(mesh_shape: tuple[int, ...]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model by FSDP, or by HSDP over a mesh of two dimensions."""
    names = ("replicate", "shard")[-len(mesh_shape) :]
    model, mesh = Blocks(), init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def evaluated(model: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(torch.ones(2, WIDTH))["output"]
        return found


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, microbatches: int = ACCUMULATED
) -> list[Tensor]:
    """One step of gradient accumulation and an evaluation; returns what both gave."""
    found = []
    for number in range(microbatches):
        torch.manual_seed(10 * rank + number)
        batch, target = torch.randn(2, 2, WIDTH)
        value = loss(model(batch)["output"], target)
        value.backward()
        found.append(value.detach())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return [*found, evaluated(model)]


def run(rank: int, folder: Path, mesh_shape: tuple[int, ...]) -> None:
    """What each rank checks."""
    os.environ[FOLDER_VARIABLE] = str(folder / "claims")
    gpu = own_gpu(folder, rank)
    model, optimizer = sharded(mesh_shape)
    expected = [value for _ in range(ITERATIONS) for value in train(model, optimizer, rank)]
    model, optimizer = sharded(mesh_shape)
    planned = obey(model, optimizer, folder / "plan.json", microbatches=ACCUMULATED, output=folder / "out", tokens=64)
    check_exchanges(model, mesh_shape)
    found = [value for _ in range(ITERATIONS) for value in train(model, optimizer, rank)]
    planned.close()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    check_driven(gpu, rank, folder / "out")
    train(model, optimizer, rank)  # without the plan again
    assert gpu.calls()[-1] == "reset"


def check_exchanges(model: nn.Module, mesh_shape: tuple[int, ...]) -> None:
    """Each block asks for the other one and exchanges in groups of the plan; the training computes the same."""
    for block in (model.first, model.second):
        (part,) = block._get_fsdp_state()._fsdp_param_groups
        groups = {"gather": part._all_gather_comm.group, "reduce": part._reduce_scatter_comm.group}
        if len(mesh_shape) > 1:
            groups["copies"] = part._all_reduce_process_group
        said = {name: group.group_desc for name, group in groups.items()}
        assert said == {name: f"fsdp-{EXCHANGED.sms(name)}-sms" for name in groups}
    first, second = (block._get_fsdp_state() for block in (model.first, model.second))
    assert first._states_to_forward_prefetch == [second]
    assert second._states_to_backward_prefetch == [first]
    assert second._states_to_forward_prefetch == first._states_to_backward_prefetch == []


def check_driven(gpu, rank: int, output: Path) -> None:  # type: ignore[no-untyped-def]
    """Every instruction had its clock, in the planned order, and evaluations that of forwards."""
    rows = read_table(table_path(output, MICROBATCHES, rank), MICROBATCHES)
    steps = [(key.microbatch, str(key.direction), i.frequency_mhz) for key, i in PLAN.stages[0].keyed]
    assert rows.select("microbatch", "direction", "frequency_mhz").rows() == steps * ITERATIONS
    forward_mhz = next(mhz for _, direction, mhz in steps if direction == Direction.FORWARD)
    iteration = [f"lock {mhz}" for *_, mhz in steps] + [f"lock {forward_mhz}"]
    assert is_subsequence(gpu.calls()[:-1], iteration * ITERATIONS)
    assert gpu.calls()[-1] == "reset"
    assert read_table(table_path(output, STEPS, rank), STEPS)["tokens"].to_list() == [64] * ITERATIONS


@pytest.mark.parametrize("mesh_shape", [(RANKS,), (1, RANKS)], ids=["fsdp", "hsdp"])
def test_a_sharded_training_follows_a_plan_and_computes_the_same(tmp_path: Path, mesh_shape: tuple[int, ...]) -> None:
    write_plan(tmp_path / "plan.json", PLAN)
    spawn(RANKS, run, tmp_path, tmp_path, mesh_shape)


class RecordedOptions:
    """Stands for NCCL's options of a group, which PyTorch for CPUs lacks."""

    def __init__(self, *, is_high_priority_stream: bool) -> None:
        self.config = SimpleNamespace()


def run_limited(rank: int, folder: Path) -> None:
    """What a rank checks of groups, which it is told are NCCL's: their options, and that nothing else is set."""
    made: dict[str, dict[str, int]] = {}

    def new_group(ranks: list[int], *, pg_options: Any, group_desc: str, **_: Any) -> Any:
        made[group_desc] = vars(pg_options.config)
        return dist.group.WORLD

    model, _ = sharded((1, RANKS))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=RecordedOptions), raising=False)
        patched.setattr(dist, "get_backend", lambda *_: "nccl")
        patched.setattr(dist, "new_group", new_group)
        with pytest.raises(EngineError, match=r"start the job with NCCL_ALGO=allgather:nvls"):
            exchange(model, FsdpSettings(nvls=True))
        exchange(model, FsdpSettings(gather_sms=12, copies_sms=4), cga=4)
    assert made == {
        "fsdp-12-sms": {"min_ctas": 12, "max_ctas": 12, "cga_cluster_size": 4},
        "fsdp-4-sms": {"min_ctas": 4, "max_ctas": 4, "cga_cluster_size": 4},
    }
    state = model.first._get_fsdp_state()
    assert not state._states_to_forward_prefetch
    run_examples(exchange, {"model": model})


def test_groups_have_their_limits_of_sms(tmp_path: Path) -> None:
    spawn(RANKS, run_limited, tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("settings", "cga", "said"),
    [
        ({"gather_sms": 65}, None, "gather_sms=65: must be"),
        ({"prefetch": 0}, None, "prefetch=0: must be"),
        ({"reduce_sms": 9}, 4, "cga=4: must divide reduce_sms=9"),
        ({"gather_sms": 9, "nvls": True}, None, "NVLS takes the SMs that it needs"),
    ],
)
def test_limits_that_no_group_can_have_are_refused(settings: dict[str, Any], cga: int | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        exchange(Blocks(), FsdpSettings(**settings), cga=cga)


def test_overrides_of_settings_say_what_is_allowed() -> None:
    """Although no file of a layout has them."""
    with pytest.raises(ConfigError, match=r"^parallelism\.fsdp: gather_sms=0: must be greater than 0\.$"):
        kareus.resolve(["parallelism.fsdp.gather_sms=0"])


def test_a_variable_that_overrules_limits_of_groups_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_MAX_CTAS", "12")
    with pytest.raises(EngineError, match="NCCL_MAX_CTAS=12: overrules"):
        exchange(Blocks(), FsdpSettings(gather_sms=8))


def test_a_model_without_sharded_blocks_exchanges_nothing() -> None:
    with pytest.raises(EngineError, match="fully_shard has seen no module below it"):
        exchange(Blocks(), FsdpSettings(prefetch=2))


def run_replicas(rank: int, folder: Path) -> None:
    """What a rank checks of DDP: gradients are those of both ranks, a sum that takes long, when a backward ends."""
    os.environ[FOLDER_VARIABLE] = str(folder / "claims")
    own_gpu(folder, rank)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
    model.register_comm_hook(None, late_sum)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    planned = obey(model, optimizer, folder / "plan.json", microbatches=ACCUMULATED)
    reduced, end = [], planned.driver.end

    def ended(key: InstructionKey) -> None:
        if key.direction is Direction.BACKWARD:
            reduced.append(model.module.weight.grad.clone())
        end(key)

    planned.driver.end = ended  # type: ignore[method-assign]
    for number in range(ACCUMULATED):
        torch.manual_seed(10 * rank + number)
        model(torch.randn(2, WIDTH)).square().sum().backward()
        assert torch.equal(reduced[-1], model.module.weight.grad)
    planned.close()


def late_sum(state: object, bucket: torch.distributed.GradBucket) -> torch.futures.Future[Tensor]:
    """The sum over ranks of a bucket of DDP, after a while."""
    handle = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
    assert handle is not None

    def waited(future: torch.futures.Future[list[Tensor]]) -> Tensor:
        time.sleep(0.05)
        return future.value()[0] / RANKS

    return handle.get_future().then(waited)


def test_a_backward_of_ddp_ends_when_its_gradients_are_reduced(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", PLAN)
    spawn(RANKS, run_replicas, tmp_path, tmp_path)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """A training of one process by the plan, its GPU, and where its tables are."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))
    monkeypatch.chdir(tmp_path)
    gpu = FakeDevice(tmp_path)
    monkeypatch.setattr(driver, "gpu_of", lambda device: gpu)
    write_plan(tmp_path / "plan/fastest_sequential+perseus.json", driven_plan(1, ACCUMULATED, gpus=1, update=True))
    model = Blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    planned = obey(
        model, optimizer, "plan/fastest_sequential+perseus.json", microbatches=ACCUMULATED, output=tmp_path / "out"
    )
    yield planned, model, optimizer, gpu, tmp_path / "out"
    planned.close()


def recorded(planned: PlannedTraining, output: Path) -> int:
    planned.close()
    return len(read_table(table_path(output, STEPS, 0), STEPS))


def test_an_evaluation_has_the_clock_of_forwards_and_not_that_of_the_update(alone) -> None:  # type: ignore[no-untyped-def]
    planned, model, optimizer, gpu, _ = alone
    train(model, optimizer, 0)
    planned.driver._clocks._controller._thread.submit(int).result()  # until what was asked for is set
    assert gpu.clock_mhz() == 1410


def test_a_shorter_step_is_left_out_and_the_next_one_is_whole(alone, caplog) -> None:  # type: ignore[no-untyped-def]
    planned, model, optimizer, _, output = alone
    with caplog.at_level(logging.WARNING):
        train(model, optimizer, 0, microbatches=1)
    assert "did not end" in caplog.text
    train(model, optimizer, 0)
    assert recorded(planned, output) == 1


def test_a_training_goes_on_after_an_exception_of_its_own(alone) -> None:  # type: ignore[no-untyped-def]
    planned, model, optimizer, gpu, output = alone
    with pytest.raises(RuntimeError, match="shape"):
        model(torch.ones(2, WIDTH + 1))
    train(model, optimizer, 0)

    def fail(gradient: Tensor) -> None:
        raise RuntimeError("out of memory")

    failing = model.second[0].weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(model, optimizer, 0)
    failing.remove()
    train(model, optimizer, 0)
    assert recorded(planned, output) == 2
    assert gpu.calls()[-1] == "reset"


def test_a_plan_of_another_accumulation_is_refused_before_a_clock_is_set(alone, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    planned, model, optimizer, gpu, _ = alone
    planned.close()
    with pytest.raises(EngineError, match="is of 3 microbatches, this job has 4"):
        obey(model, optimizer, "plan/fastest_sequential+perseus.json", microbatches=4)
    assert gpu.calls() == []


def test_a_model_whose_backward_cannot_be_seen_is_refused(alone) -> None:  # type: ignore[no-untyped-def]
    _, model, _, _, _ = alone
    model.second.requires_grad_(False)
    model.first.requires_grad_(False)
    with pytest.raises(EngineError, match="Blocks: its output has no tensor with a gradient"):
        model(torch.ones(2, WIDTH))


@pytest.mark.parametrize(
    ("plan", "microbatches", "iterations", "shown"),
    [
        ("plan.json", 8, 1, lambda names: run_block(python_blocks("howto/fsdp.md")[0], names)),
        ("plan/fastest_sequential+perseus.json", 4, 0, lambda names: run_examples(obey, names)),
    ],
    ids=["page", "example"],
)
def test_what_is_shown_runs(alone, plan: str, microbatches: int, iterations: int, shown) -> None:  # type: ignore[no-untyped-def]
    planned, model, optimizer, _, _ = alone
    planned.close()
    write_plan(Path(plan), driven_plan(1, microbatches, gpus=1, update=True))

    @contextlib.contextmanager
    def training() -> Iterator[None]:
        train(model, optimizer, 0, microbatches=microbatches)
        yield

    planned = shown({"model": model, "optimizer": optimizer, "training": training})["planned"]
    planned.close()
    assert planned.driver.iteration == iterations
