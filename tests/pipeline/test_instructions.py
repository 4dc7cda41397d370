import graphlib

from helpers.pipelines import B, F, one_f_one_b, order_text
from hypothesis import given
from hypothesis import strategies as st

from kareus.artifacts.records import to_plain
from kareus.pipeline.instructions import instruction_rows
from kareus.pipeline.tables import INSTRUCTIONS


def orders(stages: int, microbatches: int) -> list[str]:
    return order_text(one_f_one_b(stages, microbatches))


def test_two_stages_and_two_microbatches_by_hand():
    assert orders(2, 2) == ["F0 F1 B0 B1", "F0 B0 F1 B1"]


def test_two_stages_and_four_microbatches_by_hand():
    assert orders(2, 4) == ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]


def test_fewer_microbatches_than_stages_by_hand():
    assert orders(4, 2) == ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]


def test_dependencies_of_a_2_by_2_pipeline_match_those_by_hand():
    # Numbers: stage 0 is F0=0 F1=1 B0=2 B1=3, stage 1 is F0=4 B0=5 F1=6 B1=7.
    depends_on = [i.depends_on for i in one_f_one_b(2, 2)]
    assert depends_on == [(), (0,), (1, 5), (2, 7), (0,), (4,), (1, 5), (6,)]


sizes = (st.integers(1, 7), st.integers(1, 9))


@given(*sizes)
def test_every_stage_runs_each_microbatch_once_each_way(stages, microbatches):
    done = [(i.key.stage, i.key.direction, i.key.microbatch) for i in one_f_one_b(stages, microbatches)]
    expected = {(s, d, m) for s in range(stages) for d in (F, B) for m in range(microbatches)}
    assert len(done) == len(expected)
    assert set(done) == expected


@given(*sizes)
def test_no_instruction_waits_for_itself_in_a_circle(stages, microbatches):
    graph = {n: i.depends_on for n, i in enumerate(one_f_one_b(stages, microbatches))}
    assert sorted(graphlib.TopologicalSorter(graph).static_order()) == list(graph)


@given(*sizes)
def test_a_stage_holds_at_most_one_microbatch_per_stage_left(stages, microbatches):
    held = dict.fromkeys(range(stages), 0)
    for i in one_f_one_b(stages, microbatches):
        held[i.key.stage] += 1 if i.key.direction is F else -1
        assert 0 <= held[i.key.stage] <= stages - i.key.stage


@given(*sizes)
def test_instructions_wait_only_for_input_and_predecessor(stages, microbatches):
    instructions = one_f_one_b(stages, microbatches)
    numbers = {i.key: n for n, i in enumerate(instructions)}
    for number, i in enumerate(instructions):
        key = i.key
        inputs = {
            F: key._replace(stage=key.stage - 1),
            B: key._replace(stage=key.stage + 1) if key.stage < stages - 1 else key._replace(direction=F),
        }
        expected = {numbers[k] for k in [inputs[key.direction]] if k in numbers}
        before = (key.stage, i.position - 1)
        expected |= {n for n, other in enumerate(instructions) if (other.key.stage, other.position) == before}
        assert set(i.depends_on) == expected
        assert list(i.depends_on) == sorted(expected)
        assert number not in i.depends_on


def test_instructions_fit_their_table():
    instructions = one_f_one_b(3, 4)
    frame = INSTRUCTIONS.frame(instruction_rows(instructions))
    assert frame["instruction"].to_list() == list(range(24))
    assert frame.drop("instruction").to_dicts() == [
        {**to_plain(i.key._asdict()), "position": i.position, "depends_on": list(i.depends_on)} for i in instructions
    ]
