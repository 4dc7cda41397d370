"""The update of the weights as the software of a workload runs it: what it sums, shares out, gathers and casts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.builders import a100, small_model, software
from helpers.trainings import tiny_workload
from helpers.worlds import graph_of

from kareus.gpu_model.energy import idle_power_w
from kareus.graph.number_formats import Precision
from kareus.graph.records import BlockGraph, Direction
from kareus.model.config import Model
from kareus.model.parallelism import Sharding
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.software.record import Reduction, Software
from kareus.update.costs import PassTimes, step_costs, update_costs
from kareus.update.work import CostsByClock
from kareus.workload.config import Workload
from kareus.workload.state_memory import state_bytes

CLOCKS = np.array([900.0, 1410.0])
CORE, ENGINE = software("megatron-core"), software("kareus")
TINY = small_model(name="tiny", vocab_size=264)
LARGE = small_model(
    name="large", hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8,
    head_dim=128, vocab_size=128000, num_layers=16,
)  # fmt: skip
BLOCK = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
"""Parameters of the matrices of a block: queries and projection, keys and values, and three of SwiGLU."""
SHARED = Sharding.OPTIMIZER
LONG = PassTimes(forward_s=[10.0], backward_s=[20.0])


def free_gpu(**numbers: float) -> Any:
    """An A100 whose energies are those of the laws: it leaks as much at any temperature."""
    return a100(coefficients=replace(a100().coefficients, leakage_w_per_c=0.0, **numbers))


def large(trainer: Software = CORE, **changes: Any) -> Workload:
    return tiny_workload(**({"model": LARGE, "software": trainer, "gpu": free_gpu()} | changes))


def moving_j(gpu: Any, cost: CostsByClock) -> Any:
    """Energy of a cost without the power that a GPU draws all the same."""
    return cost[1] - idle_power_w(gpu, CLOCKS) * cost[0]


def reduction(workload: Workload, passes: PassTimes = LONG, graph: BlockGraph | None = None) -> CostsByClock:
    whole = graph_of(TINY, workload.parallelism) if graph is None else graph
    return update_costs(workload, whole, 0, passes, CLOCKS)[Direction.GRADIENT_REDUCTION]


@pytest.mark.parametrize("when", list(Reduction))
def test_a_tied_embedding_is_reduced_once(when: Reduction) -> None:
    """A model whose head is its embedding sums as much as one of half the vocabulary that has both."""
    gpu = free_gpu(collective_sm_w=0.0)
    trainer = replace(CORE, reduction=when)

    def summed_j(model: Model) -> Any:
        return moving_j(gpu, reduction(large(trainer, model=model, dp=2, gpu=gpu)))

    tied = summed_j(replace(LARGE, tie_embeddings=True, vocab_size=256000))
    both, half = summed_j(LARGE), summed_j(replace(LARGE, tie_embeddings=True))
    assert tied == pytest.approx(both, rel=1e-6)
    assert (both > 1.05 * half).all()


def test_gradients_in_one_piece_wait_for_the_last_backward() -> None:
    beside, after = (reduction(large(replace(CORE, reduction=when), dp=2)) for when in Reduction)
    assert (beside[0] < 0.5 * after[0]).all()


def test_sums_take_as_many_bytes_as_the_software_keeps_of_a_gradient() -> None:
    gpu = free_gpu(collective_sm_w=0.0)
    two, four = (moving_j(gpu, reduction(large(replace(CORE, gradient_bytes=size), dp=2, gpu=gpu))) for size in (2, 4))
    assert four == pytest.approx(2 * two, rel=1e-3)


@pytest.mark.parametrize("when", list(Reduction))
def test_sums_of_gradients_pay_for_the_sms_they_hold(when: Reduction) -> None:
    """A watt for each held SM is a joule for each second that an SM is held."""
    holding, free = (
        large(replace(CORE, reduction=when), dp=2, gpu=free_gpu(collective_sm_w=watts)) for watts in (1.0, 0.0)
    )
    held, without = reduction(holding), reduction(free)
    assert held[0] == pytest.approx(without[0])
    whole_s = reduction(replace(holding, software=replace(CORE, reduction=Reduction.WHOLE)))[0]
    assert (held - without)[1][1] == pytest.approx(holding.default_collective_sm_count * whole_s[1], rel=0.05)


def gathering(workload: Workload, stage: int = 0, passes: PassTimes = LONG) -> CostsByClock:
    return step_costs(workload, stage, passes, CLOCKS)["weight gathering"]


def test_hidden_gathers_of_weights_take_their_energy_all_the_same() -> None:
    beside, waiting = (
        large(replace(CORE, gather_beside_forward=hides), dp=2, sharding=Sharding.OPTIMIZER) for hides in (True, False)
    )
    hidden, whole = gathering(beside), gathering(waiting)
    assert (hidden[0] < 0.5 * whole[0]).all()
    assert moving_j(beside.gpu, hidden) == pytest.approx(moving_j(beside.gpu, whole))


def test_a_gather_beside_no_forward_is_exposed() -> None:
    workload = large(dp=2, sharding=Sharding.OPTIMIZER)
    short, whole = PassTimes([1e-9], [1e-9]), large(replace(CORE, gather_beside_forward=False), dp=2)
    whole = replace(whole, parallelism=workload.parallelism)
    assert gathering(workload, passes=short)[0] == pytest.approx(gathering(whole)[0], rel=1e-3)


def test_chunks_expose_no_more_of_a_gather_than_whole_stages() -> None:
    """The first stage gathers the embedding before anything else, in however many chunks its blocks are."""

    def exposed_s(chunks: int) -> list[float]:
        schedule = PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
        workload = large(
            dp=2, pp=2, sharding=Sharding.OPTIMIZER, num_microbatches=4,
            pipeline=PipelineConfig(schedule=schedule, chunks=chunks, deadlines=2),
        )  # fmt: skip
        passes = PassTimes([0.2 / chunks] * chunks, [0.4 / chunks] * chunks)
        return [float(gathering(workload, stage, passes)[0, 1]) for stage in (0, 1)]

    whole, few, many = (exposed_s(chunks) for chunks in (1, 2, 4))
    assert few == pytest.approx(many)
    assert few == pytest.approx(whole)
    assert 0 < few[1] < few[0]


def test_weights_are_cast_once_an_iteration() -> None:
    """Two bytes of each are read and one is written twice, which takes at least what HBM does."""
    casting = large(precision=Precision.FP8)
    found = step_costs(casting, 0, LONG, CLOCKS)["weight casting"]
    least_s = 4 * BLOCK * LARGE.num_layers / (casting.gpu.hbm_gb_per_s * 1e9)
    assert ((least_s < found[0]) & (found[0] < 1.5 * least_s)).all()
    assert "weight casting" not in step_costs(large(), 0, LONG, CLOCKS)
    whole, without = (update_costs(own, graph_of(TINY, own.parallelism), 0, LONG, CLOCKS) for own in (casting, large()))
    assert whole[Direction.UPDATE] - without[Direction.UPDATE] == pytest.approx(found)


def states(trainer: Software, dp: int, cp: int) -> tuple[float, float]:
    """Bytes of a GPU's states of the optimizer, and seconds of its step."""
    workload = large(trainer, dp=dp, cp=cp, sharding=Sharding.OPTIMIZER)
    step_s = float(step_costs(workload, 0, LONG, CLOCKS)["optimizer step"][0, 1])
    return state_bytes(workload, 0, LARGE.num_layers)[2], step_s


def test_megatron_shares_states_over_context_parallelism_and_the_engine_does_not() -> None:
    """Two replicas of two GPUs share as four replicas do, or as two."""
    assert states(CORE, 2, 2) == pytest.approx(states(CORE, 4, 1))
    assert states(ENGINE, 2, 2) == pytest.approx(states(ENGINE, 2, 1))
    (core_bytes, core_s), (engine_bytes, engine_s) = states(CORE, 2, 2), states(ENGINE, 2, 2)
    assert engine_bytes == pytest.approx(2 * core_bytes)
    assert engine_s > 1.3 * core_s


@pytest.mark.parametrize("limiter_s", [0.0, 0.1])
def test_the_update_is_held_to_the_power_limit(limiter_s: float) -> None:
    """Also where the limit means power over longer than kernels take; it is between those of the ends of clocks."""

    def step(limit_w: float, clocks_mhz: Any) -> CostsByClock:
        gpu = replace(free_gpu(limiter_s=limiter_s), power_limit_w=limit_w)
        return step_costs(large(gpu=gpu), 0, LONG, np.array(clocks_mhz))["optimizer step"]

    free_s, free_j = step(10_000.0, [210.0, 1410.0])
    limit_w = float((free_j / free_s).mean())
    (time_s,), (energy_j,) = step(limit_w, [1410.0])
    assert energy_j <= limit_w * time_s * (1 + 1e-6)
    assert time_s >= free_s[1]


def reduced(passes: PassTimes = LONG, dp: int = 2, sharding: Sharding = Sharding.NONE, **profile: Any) -> CostsByClock:
    """What sums of gradients add to a backward that is long enough to hide them."""
    return reduction(large(replace(CORE, **profile), dp=dp, sharding=sharding), passes)


@pytest.mark.parametrize("hidden", [0.0, 0.25, 0.5])
def test_what_a_trainer_hides_of_a_reduction_is_between_all_and_none(hidden: float) -> None:
    hides, share, waits = (reduced(hidden_reduction=one)[0] for one in (1.0, hidden, 0.0))
    assert share == pytest.approx(hidden * hides + (1 - hidden) * waits)
    assert waits == pytest.approx(reduced(reduction=Reduction.WHOLE)[0], rel=0.02)


@pytest.mark.parametrize("hidden", [0.0, 0.25, 0.5])
def test_what_a_trainer_hides_of_a_gather_is_between_all_and_none(hidden: float) -> None:
    hides, share, waits = (
        gathering(large(replace(CORE, hidden_gather=one), dp=2, sharding=Sharding.OPTIMIZER))[0]
        for one in (1.0, hidden, 0.0)
    )
    assert share == pytest.approx(hidden * hides + (1 - hidden) * waits)
    exposed = large(replace(CORE, gather_beside_forward=False), dp=2, sharding=Sharding.OPTIMIZER)
    assert waits == pytest.approx(gathering(exposed)[0])


def test_a_trainer_that_sums_all_gradients_takes_as_long_with_a_shared_optimizer_as_without() -> None:
    shared = reduced(sharding=Sharding.OPTIMIZER, sums_whole=True)
    alone = reduced(reduction=Reduction.WHOLE)
    assert shared[0] == pytest.approx(alone[0], rel=0.02)  # norms sum shards
    shards = reduced(sharding=Sharding.OPTIMIZER, reduction=Reduction.WHOLE)
    assert (shared[0] > 1.5 * shards[0]).all()
    assert reduced(sums_whole=True) == pytest.approx(reduced())


@pytest.mark.parametrize("messages", [1.0, 8.0])
def test_messages_for_each_tensor_cost_the_latency_of_their_groups(messages: float) -> None:
    """Sixteen blocks, the embedding and the head: 18 pieces, and a ring of 128 ranks on 16 nodes."""
    one, many = (
        gathering(large(replace(CORE, block_messages=more, gather_beside_forward=False), dp=128, sharding=SHARED))
        for more in (0.0, messages)
    )
    latency_s = a100().coefficients.collective_latency_s + (127 - 15) * 3.4e-6 + 15 * 9.6e-6
    assert many[0] - one[0] == pytest.approx(messages * 18 * latency_s)
    assert (many[1] > one[1]).all()


def test_what_replicas_hold_whole_is_summed_in_as_few_messages_as_before() -> None:
    assert reduced(block_messages=8.0) == pytest.approx(reduced())
    exposed, many = (reduced(LONG, 128, SHARED, block_messages=n, hidden_reduction=0.0)[0] for n in (0.0, 8.0))
    assert (many > exposed).all()
