"""What NCCL's communicators take: the sizes of its buffers, and how many channels a rank connects."""

import dataclasses

import pytest
from helpers.trainings import tiny_workload

from kareus.artifacts.shipped import config_folder
from kareus.model.parallelism import FsdpSettings, Sharding
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.workload.config import Workload
from kareus.workload.memory import DISTANT_CHANNELS, MESSAGE_CHANNELS, MIB, RECEIVED_BYTES, RING_BYTES, SENT_BYTES
from kareus.workload.memory import communicator_bytes as bytes_of
from kareus.workload.resolve import resolve

OWN = tiny_workload().testbed.default_collective_sm_count
LARGE, SMALL = sum(range(3, 31, 3)), sum(range(1, 21))
"""Channels of all numbers of SMs in the search space, for groups of 4 and more, and of fewer."""


def test_a_channel_has_the_buffers_that_nccls_log_shows() -> None:
    """NCCL issue 1685, of eight H100s: allocations of 10,485,760 and of 2,097,152 bytes."""
    assert (RECEIVED_BYTES, SENT_BYTES) == (10_485_760, 2_097_152)


def test_one_gpu_has_no_communicators() -> None:
    assert bytes_of(tiny_workload(), 0) == 0


@pytest.mark.parametrize(
    ("degrees", "channels"),
    [
        ({"tp": 4}, OWN + LARGE + OWN * (OWN % 3 > 0) + 1),  # NCCL's own and every number, and one for small sums
        ({"cp": 2}, OWN + SMALL + OWN * (OWN > 20)),
        ({"dp": 2}, OWN),
    ],
)
def test_an_axis_has_a_communicator_for_every_number_of_sms(degrees: dict[str, int], channels: int) -> None:
    assert bytes_of(tiny_workload(**degrees), 0) == channels * RING_BYTES


@pytest.mark.parametrize(
    ("degrees", "channels"), [({"tp": 4}, OWN + 1), ({"cp": 2}, OWN), ({"tp": 4, "dp": 2}, 2 * OWN + 1)]
)
def test_a_trainer_that_chooses_no_sms_makes_one_an_axis(degrees: dict[str, int], channels: int) -> None:
    workload = tiny_workload(**degrees)
    trainer = dataclasses.replace(workload, software=dataclasses.replace(workload.software, name="megatron-core"))
    assert bytes_of(trainer, 0) == channels * RING_BYTES


def test_a_limit_of_shared_out_weights_takes_a_communicator_beside_that_of_the_group() -> None:
    layout = dataclasses.replace(tiny_workload(dp=4).parallelism, sharding=Sharding.FULL)

    def channels(**settings: int) -> float:
        fsdp, shards = FsdpSettings(**settings), 2 if "copies_sms" in settings else None
        parallelism = dataclasses.replace(layout, fsdp=fsdp, shards=shards)
        return bytes_of(dataclasses.replace(tiny_workload(), parallelism=parallelism), 0) / RING_BYTES

    assert channels(prefetch=2) == channels(gather_sms=OWN) == OWN
    assert channels(gather_sms=6) == channels(gather_sms=6, reduce_sms=6) == OWN + 6
    assert channels(gather_sms=6, reduce_sms=12) == OWN + 6 + 12
    assert channels(copies_sms=4) == OWN + 4  # sums over copies have no other communicator


def test_a_stage_is_connected_to_its_neighbours_in_both_directions() -> None:
    workload = tiny_workload(pp=3)
    workload = dataclasses.replace(workload, model=dataclasses.replace(workload.model, tie_embeddings=False))
    both_ways = MESSAGE_CHANNELS * (RECEIVED_BYTES + SENT_BYTES)
    sums = MESSAGE_CHANNELS * RING_BYTES
    assert [bytes_of(workload, stage) for stage in range(3)] == [sums + n * both_ways for n in (1, 2, 1)]
    around = PipelineConfig(schedule=PipelineSchedule.INTERLEAVED, chunks=2, deadlines=2)
    assert bytes_of(dataclasses.replace(workload, pipeline=around), 0) == sums + 2 * both_ways


def in_megatron(model: str, gpu: str, *layout: str) -> Workload:
    words = [f"model={model}", f"gpu={gpu}", "software=megatron-core", "parallelism.pp=1", "parallelism.tp=1", *layout]
    return resolve(words, config_folder())[0].composed


def of_experts(model: str, gpu: str, gpus: int, ep: int) -> int:
    """Bytes that communicators of GPUs take more with `ep`."""
    with_ep, without = (
        in_megatron(model, gpu, f"parallelism.dp={gpus}", f"parallelism.ep={degree}") for degree in (ep, 1)
    )
    return bytes_of(with_ep, 0) - bytes_of(without, 0)


def test_an_exchange_of_tokens_connects_every_pair_of_a_node() -> None:
    """NCCL issue 1685: the first all-to-all of eight H100s takes 1.06 to 4.34 GB."""
    connected = of_experts("qwen3-30b-a3b", "h100-sxm5-80gb", 8, 8)
    assert connected == 7 * 32 * (10_485_760 + 2_097_152)
    assert 0.8 < connected / 3.28e9 < 1.0
    two_hold_the_same = 3 * 32 * RING_BYTES + OWN * RING_BYTES
    assert of_experts("qwen3-30b-a3b", "h100-sxm5-80gb", 8, 4) == two_hold_the_same


def test_between_nodes_pairs_have_fewer_channels_and_share_what_the_network_takes() -> None:
    pool = 2 * 32 * 16 * 131_072
    assert of_experts("qwen3-30b-a3b", "h100-sxm5-80gb", 16, 16) == 7 * DISTANT_CHANNELS * RING_BYTES + pool
    assert of_experts("gpt-oss-120b", "gb200", 64, 64) == 63 * DISTANT_CHANNELS * RING_BYTES


@pytest.mark.parametrize(("ep", "most_tokens"), [(8, 8 * 288), (64, 8 * 288 + 2 * 8 * 128)])
def test_deepep_has_buffers_instead_of_connections(ep: int, most_tokens: int) -> None:
    """A channel for two SMs, each of tokens with values, 128 experts, shares and scales, and eight bytes more."""
    layout = (f"parallelism.dp={ep}", f"parallelism.ep={ep}", "software.dispatcher=flex")
    workload = in_megatron("deepseek-v3", "h100-sxm5-80gb", *layout)
    more = dataclasses.replace(workload, software=dataclasses.replace(workload.software, dispatch_sms=40))
    assert bytes_of(more, 0) - bytes_of(workload, 0) == 10 * most_tokens * (7168 * 2 + 128 * 16 + 8)


def test_the_default_plan_of_a_paper_row_takes_under_three_gib() -> None:
    assert 1024 * MIB < bytes_of(tiny_workload(tp=8, pp=2), 0) < 3 * 1024 * MIB
