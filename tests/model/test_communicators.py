"""Communicators on what a CPU can show of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.worlds import start_ranks
from torch.testing._internal.distributed.fake_pg import FakeStore

from kareus.errors import EngineError
from kareus.model.communicators.choice import Library, make_communicator
from kareus.model.communicators.loopback import LoopbackCommunicator
from kareus.model.communicators.mscclpp import MscclppCommunicator
from kareus.model.communicators.nccl import NcclCommunicator
from kareus.model.communicators.process_group import ProcessGroupCommunicator

RANKS = 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loopback_equals_ranks_of_zeros_or_equal_data(dtype: torch.dtype) -> None:
    alone = LoopbackCommunicator("tp", 4)
    first, second = torch.arange(12.0).view(4, 3).to(dtype), torch.ones(8, 2, dtype=dtype)
    reduced = alone.all_reduce((first.clone(), second.clone()), 8).wait()
    assert all(torch.equal(a, b) for a, b in zip(reduced, (first, second), strict=True))
    (gathered,) = alone.all_gather((first,), 8).wait()
    assert torch.equal(gathered, first.expand(4, 4, 3))
    (scattered,) = alone.reduce_scatter((first,), 8).wait()
    assert torch.equal(scattered, first[0])


def test_loopback_moves_what_a_ring_would() -> None:
    alone = LoopbackCommunicator("tp", 4)
    message = torch.ones(400)
    alone.all_reduce((message,)).wait()
    (peer,) = alone._peers.values()
    assert peer.numel() == 2 * 3 / 4 * 400
    assert torch.equal(peer, torch.ones(600))


def check_gloo(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    try:
        group = make_communicator(Library.GLOO, "tp", range(RANKS), scratch_bytes=0)
        assert group is not None
        for dtype in (torch.float32, torch.bfloat16):
            tensors = [torch.full((4, 3), rank + 1.0, dtype=dtype), torch.full((2,), rank + 1.0, dtype=dtype)]
            gathered = group.all_gather(tensors).wait()
            assert [g[1].flatten()[0] for g in gathered] == [2, 2]
            assert [tuple(g.shape) for g in gathered] == [(2, 4, 3), (2, 2)]
            scattered = group.reduce_scatter([torch.stack((t, 10 * t)) for t in tensors]).wait()
            assert [p.flatten()[0] for p in scattered] == [3 if rank == 0 else 30] * 2
            assert all(bool((t == 3).all()) for t in group.all_reduce(tensors).wait())
    finally:
        dist.destroy_process_group()


def test_gloo_does_several_tensors_of_any_type_at_once(tmp_path: Path) -> None:
    start_ranks(check_gloo, (str(tmp_path / "store"),), RANKS)


@pytest.fixture
def fake_group():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_group_is_given_all_tensors_at_once(fake_group: dist.ProcessGroup) -> None:
    fusing = ProcessGroupCommunicator("cp", fake_group)
    tensors = [torch.ones(4, 3), torch.ones(4, 2)]
    for handle in (
        fusing.all_reduce(tensors),
        fusing.all_gather(tensors),
        fusing.reduce_scatter([torch.ones(2, 3)] * 2),
    ):
        assert len(handle.works) == 1
        handle.wait()


def test_a_missing_library_is_named(fake_group: dist.ProcessGroup) -> None:
    with pytest.raises(EngineError, match="communicator 'mscclpp': cannot be imported"):
        MscclppCommunicator("tp", fake_group, 1024, LoopbackCommunicator("tp", RANKS))
    if not dist.is_nccl_available():
        with pytest.raises(EngineError, match="communicator 'nccl': this torch has no NCCL"):
            NcclCommunicator("tp", fake_group)


@pytest.mark.parametrize("name", ["NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"])
def test_an_environment_that_overrules_sm_counts_is_refused(
    name: str, fake_group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setenv(name, "4")
    with pytest.raises(EngineError, match=f"{name}=4: overrules the SM counts of collectives; unset it"):
        NcclCommunicator("tp", fake_group)


@pytest.mark.skipif(not dist.is_nccl_available(), reason="needs torch for CUDA; no GPU")
def test_nccl_is_limited_to_exactly_the_ctas_asked_for(
    fake_group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def new_group(ranks: list[int], **options: Any) -> dist.ProcessGroup:
        made.append(options["pg_options"])
        return fake_group

    monkeypatch.setattr(dist, "new_group", new_group)
    communicator = NcclCommunicator("tp", fake_group)
    for sm_count in (12, 3, 12, None):
        communicator.all_reduce((torch.ones(2),), sm_count).wait()
    assert [(o.config.min_ctas, o.config.max_ctas) for o in made] == [(12, 12), (3, 3)]
    assert all(o.is_high_priority_stream for o in made)


def test_one_rank_needs_no_communicator() -> None:
    assert make_communicator(Library.LOOPBACK, "tp", [0], 0) is None
    assert make_communicator(Library.LOOPBACK, "tp", [0, 1], 0).size == 2
