"""Planning without measuring, against every combination of candidates written out."""

import itertools

import numpy as np
import polars as pl
import pytest
from helpers.builders import CONFIG, software
from helpers.references import ODD, SMALL

from kareus.evidence.frontiers.plans import clocks_of, instruction_behaviours, microbatch_frontiers
from kareus.evidence.frontiers.subject import subject
from kareus.gpu_model.model import run_program, run_schedules
from kareus.graph.instruction import InstructionKind
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import TRACED, Batch, Direction, Partition, Program, Step
from kareus.profile.programs import Execution, instruction_program, stage_shapes
from kareus.schedule.space import search_space

COARSE = (
    "gpu.search_frequencies.stride_mhz=170",
    "space.sm_stride=12",
    "space.sm_max=24",
    "gpu.coefficients.leakage_w_per_c=0",  # so that windows measure what happens at the reference temperature
    "gpu.power_limit_w=10000",  # under which bursts of a whole instruction would be judged otherwise than its parts
)
DEFAULT_SM_COUNT = 24
"""SMs of a collective where none are searched; one of the coarse candidates."""
KEYS = list(itertools.product((0, 1), TRACED))
KINDS = [InstructionKind(stage, 0, direction) for stage, direction in KEYS]


@pytest.fixture(scope="module")
def small():
    return subject(SMALL, COARSE, CONFIG)


@pytest.fixture(scope="module")
def frontiers(small):
    return microbatch_frontiers(small)


@pytest.fixture(scope="module")
def odd():
    return subject(ODD, COARSE, CONFIG)


def points(frontiers, method, stage, direction, **where):
    """Rows of (clock, time, effective energy)."""
    own = frontiers.filter(method=method, stage=stage, direction=direction, **where)
    return own.select("frequency_mhz", "time_s", "effective_energy_j").to_numpy()


def reached(given, by, tolerance=1e-9):
    """Whether some point of `by` is as good as each of `given`, in time and in effective energy."""
    given, by = given[:, None, 1:], by[None, :, 1:]
    return (by <= given + tolerance * np.abs(given)).all(axis=2).any(axis=1)


def test_instruction_costs_equal_those_of_programs_run_alone(small):
    clocks = clocks_of(small)
    behaviours = instruction_behaviours(small, clocks)
    shapes = stage_shapes(small.workload.parallelism.split)
    executions = (Execution.SEQUENTIAL, Execution.NANOBATCHING)
    assert set(behaviours) == set(itertools.product(KINDS, executions))
    for (kind, execution), behaviour in behaviours.items():
        program = instruction_program(
            small.graphs,
            shapes[kind.stage],
            kind.direction,
            execution,
            recomputation=Recomputation.STAGE,
            default_sm_count=DEFAULT_SM_COUNT,
            software=software(),
        )
        for n, clock in enumerate(clocks):
            alone = run_program(small.workload.gpu, program, clock)
            assert behaviour.time_s[n] == pytest.approx(float(alone.time_s), rel=1e-12)
            assert behaviour.energy_j[n] == pytest.approx(float(alone.energy_j), rel=1e-12)


def test_the_clocks_are_those_that_are_searched(small, frontiers):
    assert clocks_of(small).tolist() == [900, 1070, 1240, 1410]
    for stage, direction in KEYS:
        assert sorted(points(frontiers, "sequential", stage, direction)[:, 0]) == [900, 1070, 1240, 1410]


def overlapped_by_hand(subject, stage, direction):
    """Clock, time and effective energy of an instruction under every combination of candidates.

    Both nanobatches run every segment beside the other's last collective; only the first segment and the last
    collective run alone. All collectives of a tensor-parallel block are the same.
    """
    gpu, layers = subject.workload.gpu, subject.workload.parallelism.split[stage]
    whole, half = subject.graphs[Batch.MICROBATCH], subject.graphs[Batch.NANOBATCH]
    kinds = half.forward if direction is Direction.FORWARD else (*half.forward, *half.backward)
    (collective,) = {segment.collective for segment in kinds}
    outer = {
        (0, Direction.FORWARD): whole.embedding_forward,
        (0, Direction.BACKWARD): whole.embedding_backward,
        (1, Direction.FORWARD): whole.head_forward,
        (1, Direction.BACKWARD): whole.head_backward,
    }[stage, direction]
    kind = InstructionKind(stage, 0, direction)
    missed = missed_by_hand(subject, kind, kinds, outer)
    found = []
    for clock in clocks_of(subject):
        total = np.zeros((1, 2))
        for n, segment in enumerate(kinds):
            partition = Partition(
                name=segment.name, direction=segment.direction, operators=segment.operators, collective=collective
            )
            space = search_space(partition, gpu, subject.workload.space)
            own = [n for n, mhz in enumerate(space.frequency_mhz) if mhz == clock]
            sm_counts = np.array([space.sm_count[n] for n in own], float)
            launches = np.array([partition.operator_index(space.launch[n]) for n in own])
            behaviour = run_schedules(gpu, partition, np.full(len(own), clock), sm_counts, launches)
            own = (2 * layers - (n == 0)) * np.column_stack((behaviour.time_s, behaviour.energy_j))
            total = (total[:, None] + own[None]).reshape(-1, 2)
        total += cost(gpu, clock, Step(operators=kinds[0].operators))
        total += cost(gpu, clock, Step(collective=collective, sm_count=DEFAULT_SM_COUNT))
        total += sum(cost(gpu, clock, exposed(segment)) for segment in outer)
        total += missed[clock]
        effective = total[:, 1] - gpu.blocking_power_w * total[:, 0]
        found.append(np.column_stack((np.full(len(total), clock), total[:, 0], effective)))
    return np.concatenate(found)


def missed_by_hand(subject, kind, segments, outer):
    """What default nanobatching costs beyond its parts, the same share of the whole at every clock."""
    gpu, layers = subject.workload.gpu, subject.workload.parallelism.split[kind.stage]
    whole, parts = {}, 0.0
    for clock in clocks_of(subject):
        behaviour = instruction_behaviours(subject, np.array([clock]))[kind, Execution.NANOBATCHING]
        whole[clock] = np.array([behaviour.time_s[0], behaviour.energy_j[0]])
        for n, segment in enumerate(segments):
            default = Step(operators=segment.operators, collective=segment.collective, sm_count=DEFAULT_SM_COUNT)
            parts += (2 * layers - (n == 0)) * cost(gpu, clock, default)
        parts += cost(gpu, clock, Step(operators=segments[0].operators))
        parts += cost(gpu, clock, Step(collective=segments[0].collective, sm_count=DEFAULT_SM_COUNT))
        parts += sum(cost(gpu, clock, exposed(segment)) for segment in outer)
    return {clock: (1 - parts / sum(whole.values())) * own for clock, own in whole.items()}


def exposed(segment):
    """A segment outside the blocks: its collective runs beside what does not need it."""
    launch = len(segment.operators) - segment.independent_tail
    sm_count = DEFAULT_SM_COUNT if segment.collective else 0
    return Step(operators=segment.operators, collective=segment.collective, launch=launch, sm_count=sm_count)


def cost(gpu, clock, step):
    behaviour = run_program(gpu, Program(name="alone", steps=(step,)), clock)
    return np.array([float(behaviour.time_s), float(behaviour.energy_j)])


@pytest.mark.parametrize(("stage", "direction"), KEYS)
def test_the_kareus_frontier_is_that_of_every_combination(small, frontiers, stage, direction):
    found = points(frontiers, "kareus", stage, direction)
    by_hand = overlapped_by_hand(small, stage, direction)
    assert reached(by_hand, found).all()
    overlapped = points(frontiers, "kareus", stage, direction, execution="overlap")
    assert len(overlapped)
    for clock in set(overlapped[:, 0]):
        assert reached(overlapped[overlapped[:, 0] == clock], by_hand[by_hand[:, 0] == clock]).all()


@pytest.mark.parametrize("method", ["sequential", "nanobatching"])
def test_kareus_matches_both_default_executions_at_every_clock(frontiers, method):
    for key in KEYS:
        assert reached(points(frontiers, method, *key), points(frontiers, "kareus", *key)).all()


ABLATIONS = ("kareus-without-frequency", "kareus-without-kernel-schedule")


@pytest.mark.parametrize("method", ["kareus", *ABLATIONS])
def test_no_point_of_a_frontier_is_dominated(frontiers, method):
    for key in KEYS:
        own = points(frontiers, method, *key)
        assert (np.diff(own[:, 1]) > 0).all()
        assert (np.diff(own[:, 2]) < 0).all()
        assert frontiers.filter(pl.col("method") == method)["on_frontier"].all()


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("kareus-without-frequency", "kareus"),
        ("kareus-without-kernel-schedule", "kareus"),
        ("sequential", "kareus-without-kernel-schedule"),
        ("nanobatching", "kareus-without-kernel-schedule"),
    ],
)
def test_an_ablation_is_never_better_than_one_that_may_use_more(frontiers, less, more):
    for key in KEYS:
        assert reached(points(frontiers, less, *key), points(frontiers, more, *key)).all()


def test_without_frequency_only_the_maximum_clock_is_used(frontiers):
    for key in KEYS:
        fixed, scaled = (points(frontiers, method, *key) for method in ("kareus-without-frequency", "kareus"))
        assert set(fixed[:, 0]) == {1410}
        assert fixed[:, 1].min() == scaled[:, 1].min()


def test_an_odd_microbatch_is_planned_sequentially_only(odd):
    frontiers = microbatch_frontiers(odd)
    assert set(frontiers["method"]) == {"sequential", "kareus"}
    assert set(frontiers["execution"]) == {"sequential"}
    assert set(instruction_behaviours(odd, clocks_of(odd))) == {(kind, Execution.SEQUENTIAL) for kind in KINDS}
    for key in KEYS:
        assert reached(points(frontiers, "sequential", *key), points(frontiers, "kareus", *key)).all()
