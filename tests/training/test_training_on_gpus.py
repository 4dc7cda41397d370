"""Trainings on one GPU, and on two over NCCL, beside the same ones in fp32 on CPUs; sets no clock.

On CPUs, which `make acceptance` does, a rehearsal: both are the same.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.builders import small_model
from helpers.trainings import losses, planned, tiny_workload, train
from helpers.worlds import GPT, MPT
from safetensors.torch import load_file

from kareus.device.claims import FOLDER_VARIABLE
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Sharding
from kareus.training.checkpoint_files import TENSORS, iteration_folder

MODEL = small_model(
    name="tiny-gpu",
    hidden_size=256,
    intermediate_size=512,
    head_dim=64,
    vocab_size=512,
    qk_norm=True,
)
WIDE = {"hidden_size": 256, "intermediate_size": 1024, "head_dim": 64, "vocab_size": 512}
GPT_MODEL = dataclasses.replace(GPT, name="tiny-gpt-gpu", **WIDE)
MPT_MODEL = dataclasses.replace(MPT, name="tiny-mpt-gpu", **WIDE)
SIZES = {"model": MODEL, "microbatch_size": 4, "sequence_length": 64}
BF16 = 5e-3
"""Largest relative difference of losses in bf16 from those in fp32."""
GRADIENTS_BF16 = 0.15
"""Likewise of the norm of a weight's gradient; where a sum over two ranks is missing it is about a half or more."""
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, {}),
    "tp": (2, {"tp": 2}),
    "tp-sharing-tokens": (2, {"tp": 2, "sequence_parallel": True}),
    "cp": (2, {"cp": 2}),
    "pp": (2, {"pp": 2}),
    "dp": (2, {"dp": 2}),
    "dp-sharing-optimizer": (2, {"dp": 2, "sharding": Sharding.OPTIMIZER}),
    "gpt": (1, {"model": GPT_MODEL}),
    "gpt-tp-sharing-tokens": (2, {"model": GPT_MODEL, "tp": 2, "sequence_parallel": True}),
    "mpt": (1, {"model": MPT_MODEL}),
    "mpt-cp": (2, {"model": MPT_MODEL, "cp": 2}),
}
"""Numbers of GPUs and options of workloads, which train by their plans."""


def on_gpus(count: int) -> list[pytest.MarkDecorator]:
    missing = torch.cuda.device_count() < count
    return [pytest.mark.gpu, pytest.mark.skipif(missing, reason=f"needs {count} GPUs")]


def places(layout: str, gpus: int) -> list[Any]:
    return [
        pytest.param(layout, "gloo", marks=pytest.mark.acceptance, id=f"{layout}-cpu"),
        pytest.param(layout, "nccl", marks=on_gpus(gpus), id=f"{layout}-nccl"),
    ]


@pytest.fixture(autouse=True)
def _claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "claims"))


def trained(output: Path, communicator: str, *arguments: object, iterations: int = 3) -> list[float]:
    """Losses of a training at the driver's clocks."""
    done = train(
        *arguments, "--iterations", iterations, "--output", output, "--clocks", "default", communicator=communicator
    )
    assert done.returncode == 0, done.stderr
    return losses(output)


def first_moments(output: Path) -> dict[str, torch.Tensor]:
    """Moments of AdamW in the checkpoint of the first iteration, a tenth of the clipped gradients, of all ranks."""
    moments = {}
    for path in sorted(iteration_folder(output / "checkpoints", 1).glob(f"*{TENSORS}")):
        tensors = load_file(path)
        moments |= {f"{path.stem} {key}": tensor for key, tensor in tensors.items() if key.startswith("exp_avg/")}
    assert moments
    return moments


def worst(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> tuple[float, str]:
    """Largest norm of a difference over the norm of the tensor, and which it is."""
    assert found.keys() == expected.keys()
    return max((float((found[name] - each).norm() / each.norm()), name) for name, each in expected.items())


@pytest.mark.parametrize(("layout", "communicator"), [p for name, (n, _) in LAYOUTS.items() for p in places(name, n)])
def test_a_plan_trains_on_gpus_as_on_cpus(layout: str, communicator: str, tmp_path: Path) -> None:
    plan = planned(tmp_path / layout, tiny_workload(**(SIZES | LAYOUTS[layout][1])))
    expected = trained(tmp_path / "cpu", "gloo", plan)
    assert trained(tmp_path / "gpu", communicator, plan) == pytest.approx(expected, rel=BF16)


@pytest.mark.parametrize(("layout", "communicator"), [p for name, (n, _) in LAYOUTS.items() for p in places(name, n)])
def test_gradients_on_gpus_are_those_on_cpus(layout: str, communicator: str, tmp_path: Path) -> None:
    plan = planned(tmp_path / layout, tiny_workload(**(SIZES | LAYOUTS[layout][1])))
    trained(tmp_path / "cpu", "gloo", plan, iterations=1)
    trained(tmp_path / "gpu", communicator, plan, iterations=1)
    expected, found = (first_moments(tmp_path / place) for place in ("cpu", "gpu"))
    assert worst(found, expected)[0] <= GRADIENTS_BF16, worst(found, expected)


def test_a_gradient_that_is_summed_over_one_of_two_ranks_is_noticed() -> None:
    expected = {"a": torch.randn(64, 8), "b": torch.randn(64)}
    rounded = {name: tensor.bfloat16().float() for name, tensor in expected.items()}
    assert worst(rounded, expected)[0] <= GRADIENTS_BF16 / 10
    assert worst(rounded | {"b": expected["b"] / 2}, expected) == (pytest.approx(0.5), "b")


@pytest.mark.parametrize(
    ("layout", "communicator"), [places("alone", 1)[0], *(places(name, n)[1] for name, (n, _) in LAYOUTS.items())]
)
def test_a_training_with_graphs_is_one_without(layout: str, communicator: str, tmp_path: Path) -> None:
    """On CPUs a rehearsal of the option, which does nothing there."""
    plan = planned(tmp_path / layout, tiny_workload(**(SIZES | LAYOUTS[layout][1])))
    expected = trained(tmp_path / "launched", communicator, plan, iterations=4)
    graphs = trained(tmp_path / "graphs", communicator, plan, "--cuda-graphs", iterations=4)
    assert graphs == pytest.approx(expected, rel=BF16)


@pytest.mark.parametrize(("sharding", "communicator"), [p for s in ("gradients", "full") for p in places(s, 2)])
def test_shared_out_weights_train_on_gpus_as_on_cpus(sharding: str, communicator: str, tmp_path: Path) -> None:
    workload = tiny_workload(dp=2, sharding=Sharding(sharding), recomputation=Recomputation.FULL, **SIZES)
    planned(tmp_path / "planned", workload)
    given = ("--workload", tmp_path / "planned/config/workload.yaml")
    expected = trained(tmp_path / "cpu", "gloo", *given)
    assert trained(tmp_path / "gpu", communicator, *given) == pytest.approx(expected, rel=BF16)


@pytest.mark.parametrize(("layout", "communicator"), places("alone", 1))
def test_a_training_on_a_gpu_goes_on_from_its_checkpoint(layout: str, communicator: str, tmp_path: Path) -> None:
    plan = planned(tmp_path / layout, tiny_workload(**(SIZES | LAYOUTS[layout][1])))
    undisturbed = trained(tmp_path / "whole", communicator, plan, iterations=4)
    trained(tmp_path / "parts", communicator, plan, iterations=2)
    assert trained(tmp_path / "parts", communicator, plan, iterations=4) == pytest.approx(undisturbed, rel=BF16)
