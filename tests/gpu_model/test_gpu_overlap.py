"""The law of overlap: whom a collective slows, and by what."""

import dataclasses

import numpy as np
import pytest
from helpers.builders import a100, all_reduce, gemm, memory

from kareus.gpu_model import laws
from kareus.gpu_model.overlap import along_phases, slowdowns, step_phases
from kareus.graph.records import CollectiveKind, PlacedCollective, Step

CLOCK = np.asarray(1410.0)
REDUCE = all_reduce(2**30)


def with_coefficients(**values):
    gpu = a100()
    return dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, **values))


def phases(operator, **values):
    """Time of what both do at once, and of all, with the collective from the start."""
    found = step_phases(with_coefficients(**values), [operator], REDUCE, CLOCK, 12, 0)
    times_s = [float(phase.time_s) for phase in found]
    return times_s[0], sum(times_s)


@pytest.mark.parametrize("exponent", [1.0, 2.0])
def test_a_crowd_slows_the_operator_not_the_collective(exponent):
    """The long collective outlasts the operator, which ends later by the share of SMs that the collective occupies."""
    operator = gemm("g", 4096, 4096, 4096)
    calm = {"contention": 0.0, "traffic_crowding": 0.0, "hbm_bytes_per_bus_byte": 0.0, "collective_latency_s": 0.0}
    beside_s, all_s = phases(operator, **calm, crowding=0.0)
    crowded_s, crowded_all_s = phases(operator, **calm, crowding=2.0, crowding_exponent=exponent)
    assert crowded_s / beside_s == pytest.approx(1 + 2.0 * (12 / 108) ** exponent)
    assert crowded_all_s == pytest.approx(all_s)


def test_bytes_on_the_links_slow_the_operator_alone():
    """By the share of the links that the collective uses, and not by the number of SMs that move its bytes."""
    operator = gemm("g", 4096, 4096, 4096)
    calm = {"contention": 0.0, "crowding": 0.0, "hbm_bytes_per_bus_byte": 0.0, "collective_latency_s": 0.0}
    beside_s, all_s = phases(operator, **calm, traffic_crowding=0.0)
    slowed_s, slowed_all_s = phases(operator, **calm, traffic_crowding=0.5)
    sent_share = REDUCE.bus_bytes / all_s / (a100().link_gb_per_s * 1e9)
    assert slowed_s / beside_s == pytest.approx(1 + 0.5 * sent_share)
    assert slowed_all_s == pytest.approx(all_s)


def test_a_collective_holds_its_sms_while_it_is_in_flight():
    shared, alone, exposed = step_phases(a100(), [gemm("g", 512, 512, 512)], REDUCE, CLOCK, 12, 0)
    assert float(alone.time_s) == 0.0
    assert (float(shared.held_sms), alone.held_sms, float(exposed.held_sms)) == (12.0, 0.0, 12.0)
    assert [phase.held_sms for phase in step_phases(a100(), [memory("m", 2**26)], None, CLOCK, 0, 0)] == [0.0]


def test_contention_slows_both_by_the_product_of_demands():
    operator = memory("m", 2**26)
    gpu = with_coefficients(crowding=0.0)
    collective_s = float(laws.collective_time_s(gpu, REDUCE, CLOCK, np.asarray(12.0)))
    _, alone = phases(operator, contention=0.0, crowding=0.0)
    _, rough = phases(operator, contention=1.0, crowding=0.0)
    assert alone == pytest.approx(collective_s, rel=0.05)
    assert rough > alone


@pytest.mark.parametrize("size", [2**26, 2**28])
def test_contention_slows_collective_and_operator_alike(size):
    clock, slowed = np.array([1410.0]), []
    for contention in (0.0, 1.0):
        gpu = with_coefficients(contention=contention)
        moving = REDUCE, laws.collective_time_s(gpu, REDUCE, clock, np.array([12.0]))
        slowed.append([float(factor[0]) for factor in slowdowns(gpu, [memory("m", size)], moving, clock, 12)])
    (operator, collective), (rough_operator, rough_collective) = slowed
    assert rough_collective / collective == pytest.approx(rough_operator / operator)
    assert rough_collective > 1.2 * collective


@pytest.mark.parametrize(
    ("operator", "least", "most"), [(gemm("g", 8192, 8192, 8192), 0.9, 1), (memory("m", 2**28), 0, 0)]
)
def test_a_shared_phase_scales_with_the_clock_as_its_operator(operator, least, most):
    """While both run, arithmetic takes longer at a lower clock, and traffic of memory does not."""
    both, *_ = step_phases(a100(), [operator], REDUCE, CLOCK, 12, 0)
    assert least <= float(both.clock_share) <= most
    assert float(both.at_s(CLOCK, CLOCK / 2)) == pytest.approx(float(both.time_s) * (1 + float(both.clock_share)))


def test_an_exposed_collective_scales_with_the_clock_as_alone():
    gpu = a100()
    *_, exposed = step_phases(gpu, [memory("m", 2**10)], REDUCE, CLOCK, 12, 1)
    alone_s = [float(laws.collective_time_s(gpu, REDUCE, clock, np.asarray(12.0))) for clock in (CLOCK, CLOCK / 2)]
    assert float(exposed.time_s) == pytest.approx(alone_s[0])
    assert float(exposed.at_s(CLOCK, CLOCK / 2)) == pytest.approx(alone_s[1])


def placed(message_bytes: int, nodes: int) -> Step:
    collective = PlacedCollective(
        kind=CollectiveKind.ALL_GATHER,
        group="dp",
        group_size=16,
        message_bytes=message_bytes,
        fused=1,
        nodes=nodes,
        per_node=16 // nodes,
    )
    return Step(collective=collective, sm_count=12)


def total(found):
    """Time, switched energy and SMs held over time of phases."""
    return (
        sum(float(one.time_s) for one in found),
        sum(float(one.switching.core_j) + float(one.switching.fixed_j) for one in found),
        sum(float(one.time_s * one.held_sms) for one in found),
    )


def alone(*steps: Step):
    return [total(step_phases(a100(), s.operators, s.collective, CLOCK, s.sm_count, 0)) for s in steps]


def test_one_collective_along_operators_is_that_beside_them():
    operators = (gemm("g", 4096, 4096, 4096), memory("m", 2**26), gemm("h", 2048, 4096, 4096))
    within = tuple(Step(operators=(operator,)) for operator in operators)
    for moving in (placed(2**24, 1), placed(2**31, 2)):
        along = along_phases(a100(), Step(within=within, along=(moving,)), CLOCK)
        beside = step_phases(a100(), operators, moving.collective, CLOCK, 12, 0)
        assert total(along) == pytest.approx(total(beside))


@pytest.mark.parametrize("first", [2**24, 2**28])
@pytest.mark.parametrize("second", [2**24, 2**28])
def test_collectives_run_at_once_on_other_wires_and_in_turn_on_the_same(first: int, second: int):
    """Whatever of them ends first; both move all of their bytes."""
    exchange = placed(2**27, 1)
    for nodes in (1, 2):
        queue = (placed(first, nodes), placed(second, nodes))
        in_turn = alone(exchange, *queue)
        (exchange_s, *_), queue_s = in_turn[0], in_turn[1][0] + in_turn[2][0]
        found = total(along_phases(a100(), Step(within=(exchange,), along=queue), CLOCK))
        assert found[0] == pytest.approx(max(exchange_s, queue_s) if nodes > 1 else exchange_s + queue_s)
        assert found[1:] == pytest.approx([sum(one[n] for one in in_turn) for n in (1, 2)])


def test_a_queue_slows_operators_no_longer_than_it_lasts():
    """No faster than the longer of both alone, no slower than one after the other."""
    operators, queue = tuple(gemm(n, 4096, 4096, 4096) for n in "abcd"), (placed(2**24, 2), placed(2**26, 2))
    compute = Step(operators=operators)
    found_s = total(along_phases(a100(), Step(within=(compute,), along=queue), CLOCK))[0]
    times_s = [one[0] for one in alone(compute, *queue)]
    assert max(times_s[0], times_s[1] + times_s[2]) < found_s < sum(times_s)
