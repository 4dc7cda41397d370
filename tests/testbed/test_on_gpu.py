"""The cuda testbed on a real GPU, at the clock that its driver chooses. Sets no clock and no power limit."""

import pytest
import torch
from helpers.builders import a100, all_reduce, gemm, protocol

from kareus.device import nvml
from kareus.device.claims import FOLDER_VARIABLE
from kareus.gpu_model.gpu import FrequencyRange
from kareus.graph.records import Collective, CollectiveKind, Operator, OperatorKind, Program, SequenceCollective, Step
from kareus.profile.measure import measure_once
from kareus.testbed.config import ClockPolicy, CudaCollectives, CudaConfig, GpuPool
from kareus.testbed.cuda.testbed import CudaTestbed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

TOKENS = 4 * 4096
HIDDEN_BYTES = 2 * TOKENS * 3072
OPERATORS = (
    Operator(
        name="norm",
        kind=OperatorKind.MEMORY,
        shape=(4, 4096, 3072),
        flops=0,
        bytes_read=2 * HIDDEN_BYTES + 2 * 3072,
        bytes_written=2 * HIDDEN_BYTES + 4 * TOKENS,
        kernels=1,
    ),
    gemm("qkv", TOKENS, 640, 3072),
    Operator(
        name="attention",
        kind=OperatorKind.ATTENTION,
        shape=(4, 3, 1, 4096, 4096, 128),
        flops=2 * 4 * 3 * 128 * 4096**2,
        bytes_read=21_000_000,
        bytes_written=12_800_000,
        kernels=1,
    ),
    gemm("projection", TOKENS, 3072, 384),
)
"""Attention of Llama 3.2 3B on eight GPUs, for a nanobatch of four sequences."""
REDUCE = all_reduce(TOKENS * 3072)
QUICK = protocol(window_s=1.0, cooldown_s=0.3, warmup_s=0.3)


@pytest.fixture(scope="module")
def testbed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("claims")))
        devices = nvml.open_devices()
        maximum_mhz = devices[0].supported_clocks_mhz()[-1]
        clocks = FrequencyRange(minimum_mhz=maximum_mhz, maximum_mhz=maximum_mhz, stride_mhz=1)
        gpu = a100(maximum_clock_mhz=maximum_mhz, search_frequencies=clocks)
        opened = CudaTestbed(
            CudaConfig(collectives=CudaCollectives.LOOPBACK, clocks=ClockPolicy.DEFAULT, pool=GpuPool.SAME),
            gpu,
            devices,
        )
        yield opened, maximum_mhz
        opened.close()


def measure(testbed, *steps):
    opened, maximum_mhz = testbed
    with opened.session(Program(name="partition", steps=steps), "m") as session:
        return measure_once(session, maximum_mhz, QUICK)


def test_a_partition_costs_time_and_energy(testbed):
    row = measure(testbed, Step(operators=OPERATORS, collective=REDUCE, launch=1, sm_count=12))
    watts = row["energy_j"] / row["time_s"]
    assert 50 < watts < 1500
    assert row["clock_mean_mhz"] > 300


def test_more_sms_trade_computation_for_the_collective(testbed):
    few, many = (measure(testbed, Step(collective=REDUCE, sm_count=n))["time_s"] for n in (3, 30))
    assert many < few
    beside = [measure(testbed, Step(operators=OPERATORS, collective=REDUCE, sm_count=n))["time_s"] for n in (3, 30)]
    alone = measure(testbed, Step(operators=OPERATORS))["time_s"]
    assert min(beside) > alone


def test_each_sequence_by_itself_moves_no_less(testbed):
    """Messages of four sequences in one launch take about the time of one message of all, and no tenth less."""
    size = {"group": "tp", "group_size": 8, "message_bytes": HIDDEN_BYTES, "fused": 1}
    for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        at_once = measure(testbed, Step(collective=Collective(kind=kind, **size), sm_count=12))["time_s"]
        each = SequenceCollective(kind=kind, **size, sequences=4)
        assert measure(testbed, Step(collective=each, sm_count=12))["time_s"] > 0.9 * at_once


def test_overlap_is_faster_than_one_after_the_other(testbed):
    together = measure(testbed, Step(operators=OPERATORS, collective=REDUCE, sm_count=12))["time_s"]
    apart = measure(testbed, Step(operators=OPERATORS), Step(collective=REDUCE, sm_count=12))["time_s"]
    assert together < apart
