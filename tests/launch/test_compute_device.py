"""Which GPU a rank computes on."""

import pytest
import torch

from kareus.errors import EngineError
from kareus.launch.compute_device import select_device
from kareus.model.communicators.choice import Library


@pytest.fixture(autouse=True)
def _rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


def test_a_rank_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert select_device(Library.NCCL) == torch.device("cuda", 3)


def test_a_rank_that_is_shown_one_gpu_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert select_device(Library.NCCL) == torch.device("cuda", 0)


def test_ranks_do_not_share_the_gpu_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(EngineError, match="there is no GPU 3 here"):
        select_device(Library.NCCL)
