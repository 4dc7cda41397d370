"""What the update is taken to cost counts everything that the engine does in it."""

import dataclasses

import numpy as np
import pytest
from helpers.builders import a100, small_model
from helpers.trainings import tiny_workload
from helpers.worlds import graph_of

from kareus.calibrate.coefficient_space import with_coefficients
from kareus.gpu_model.energy import held_power_w
from kareus.gpu_model.laws import collective_time_s
from kareus.graph.records import Collective, CollectiveKind, Direction
from kareus.update.costs import PassTimes, step_costs, update_costs
from kareus.workload.config import Workload

CLOCKS = np.array([900.0, 1410.0])
PASSES = PassTimes(forward_s=[5e-4], backward_s=[1e-3])
HIDDEN, HEAD_DIM, LAYERS = 256, 64, 2
NORMED = small_model(name="normed", hidden_size=HIDDEN, head_dim=HEAD_DIM, qk_norm=True, num_layers=LAYERS)


def summed_s(parameters: int) -> np.ndarray:
    """Seconds of an all-reduce of fp32 values over two GPUs of a node."""
    collective = Collective(
        kind=CollectiveKind.ALL_REDUCE, group="tp", group_size=2, message_bytes=4 * parameters, fused=1
    )
    return collective_time_s(a100(), collective, CLOCKS, np.full(2, float(SMS)))


def workload(dp: int, *, sequence_parallel: bool, model=NORMED) -> Workload:
    return tiny_workload(dp=dp, tp=2, sequence_parallel=sequence_parallel, model=model)


SMS = workload(1, sequence_parallel=True).default_collective_sm_count


@pytest.mark.parametrize(
    ("sequence_parallel", "partial"),
    [(True, LAYERS * (2 * HIDDEN + 2 * HEAD_DIM) + HIDDEN), (False, LAYERS * 2 * HEAD_DIM)],
)
def test_norms_are_summed_over_the_gpus_that_share_them(sequence_parallel: bool, partial: int) -> None:
    """Of another model's norms, which see whole tokens and all heads, nothing is summed."""
    own = workload(1, sequence_parallel=sequence_parallel)
    plain = workload(1, sequence_parallel=False, model=dataclasses.replace(NORMED, qk_norm=False))
    (found, _), (without, _) = (step_costs(each, 0, PASSES, CLOCKS)["gradient norm"] for each in (own, plain))
    heads_s = 4 * LAYERS * 2 * HEAD_DIM / (a100().hbm_gb_per_s * 1e9)  # of the norm over more weights: next to nothing
    assert found - without == pytest.approx(summed_s(partial), rel=0.01, abs=10 * heads_s)


def test_with_replicas_the_sums_of_norms_end_the_reduction() -> None:
    shared, whole = workload(2, sequence_parallel=True), workload(2, sequence_parallel=False)
    graph = graph_of(shared.model, shared.parallelism)
    found, without = (update_costs(each, graph, 0, PASSES, CLOCKS) for each in (shared, whole))
    norms = LAYERS * 2 * HIDDEN + HIDDEN
    both, heads = summed_s(norms + LAYERS * 2 * HEAD_DIM), summed_s(LAYERS * 2 * HEAD_DIM)
    added = found[Direction.GRADIENT_REDUCTION] - without[Direction.GRADIENT_REDUCTION]
    assert added[0] == pytest.approx(both - heads, rel=1e-6)
    assert (added[1] > 0).all()
    assert found[Direction.UPDATE] == pytest.approx(without[Direction.UPDATE])


def test_collectives_of_the_update_pay_for_the_sms_they_hold() -> None:
    """The energy that a held SM adds, over its power, is the time of the collectives."""
    tiny = workload(2, sequence_parallel=True)
    idle = {"kernel_overhead_s": 0.0, "host_launch_s": 0.0}  # else launches of a model this small take most of the time
    own = dataclasses.replace(tiny, gpu=with_coefficients(tiny.gpu, idle))
    free = dataclasses.replace(own, gpu=with_coefficients(own.gpu, {"collective_sm_w": 0.0}))
    graph, held_w = graph_of(own.model, own.parallelism), held_power_w(own.gpu, SMS, CLOCKS)
    for cost in (
        lambda each: step_costs(each, 0, PASSES, CLOCKS)["gradient norm"],
        lambda each: update_costs(each, graph, 0, PASSES, CLOCKS)[Direction.GRADIENT_REDUCTION],
    ):
        (found_s, found_j), (free_s, free_j) = cost(own), cost(free)
        assert found_s == pytest.approx(free_s)
        assert ((found_j - free_j) / held_w > 0.5 * found_s).all()
    # Those of the reduction run beside a backward of 1 ms, and then alone.
    assert ((found_j - free_j) / held_w < found_s + 1e-3).all()
