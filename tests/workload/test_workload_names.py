import re

import pytest
from builders import CONFIG
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.workload.compose import Composition, compose
from kareus.workload.naming import workload_name


def name(*overrides: str) -> str:
    (composition,) = compose(overrides, CONFIG)
    return workload_name(composition)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100"),
        (
            ["model=llama3.3-70b", "parallelism=pp10tp8", "gpu=h100-sxm5-80gb", "num_microbatches=128"],
            "llama3.3-70b_pp10-tp8_mbs8_seq4096_h100_nmb128",
        ),
        (["parallelism=cp2tp4", "parallelism.dp=2", "gpu=h200"], "llama3.2-3b_dp2-pp2-cp2-tp4_mbs8_seq4096_h200"),
        (["search=random", "seed=3"], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_seed3_search-random"),
        (["activation_checkpointing=false"], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_nockpt"),
        (["parallelism.shard_optimizer=true"], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_shardopt"),
        (["parallelism.layers_per_stage=[14,14]"], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_layers14-14"),
        (["gpu.power_limit_w=300"], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_gpu.power-limit-w-300.0"),
    ],
)
def test_names_say_what_is_unusual(overrides: list[str], expected: str) -> None:
    assert name(*overrides) == expected


def test_many_changes_become_one_hash() -> None:
    many = name("gpu.power_limit_w=300", "space.sm_max=27", "protocol.window_s=2")
    assert re.fullmatch(r"llama3\.2-3b_pp2-tp8_mbs8_seq4096_a100_[0-9a-f]{8}", many)


def test_saying_what_is_so_anyway_changes_no_name() -> None:
    said = name("parallelism.layers_per_stage=[15,13]", "gpu.power_limit_w=400", "seed=0", "search=paper")
    assert said == name()


VALUES = {
    "model": ["llama3.2-3b", "qwen3-1.7b"],
    "parallelism": ["tp8", "cp2tp4"],
    "parallelism.dp": [1, 2],
    "parallelism.layers_per_stage": ["null", "[14,14]", "[15,13]"],
    "gpu": ["a100-sxm4-40gb", "h200"],
    "search": ["paper", "random"],
    "search.strategy": ["paper", "random"],
    "microbatch_size": [8, 16],
    "num_microbatches": [8, 16],
    "seed": [0, 1],
    "activation_checkpointing": ["true", "false"],
    "gpu.power_limit_w": [400, 300],
    "model.num_layers": [28, 26],
    "memory_reserve_gib": [5.5, 5],
}
OVERRIDES = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in VALUES.items()})


def composed(choice: dict[str, object]) -> Composition:
    (composition,) = compose([f"{key}={value}" for key, value in choice.items()], CONFIG)
    return composition


@settings(max_examples=20, deadline=None)
@given(first=OVERRIDES, second=OVERRIDES)
def test_different_workloads_have_different_names(first: dict[str, object], second: dict[str, object]) -> None:
    one, other = composed(first), composed(second)
    if one.workload != other.workload and workload_name(one) == workload_name(other):
        # The same once resolved: a split may be given, or left to the model's table that gives the same.
        splits = {one.workload.parallelism.layers_per_stage, other.workload.parallelism.layers_per_stage}
        assert splits == {None, (15, 13)}
    assert re.fullmatch(r"[A-Za-z0-9._-]+", workload_name(one))


@settings(max_examples=15, deadline=None)
@given(choice=OVERRIDES, key=st.sampled_from(sorted(VALUES)), data=st.data())
def test_one_more_difference_makes_another_name(choice: dict[str, object], key: str, data: st.DataObject) -> None:
    """Random pairs rarely differ in one thing only; these always do."""
    one = composed(choice)
    other = composed(choice | {key: data.draw(st.sampled_from(VALUES[key]))})
    if one.workload == other.workload:
        return
    if key == "parallelism.layers_per_stage" and workload_name(one) == workload_name(other):
        splits = {one.workload.parallelism.layers_per_stage, other.workload.parallelism.layers_per_stage}
        assert splits == {None, (15, 13)}
    else:
        assert workload_name(one) != workload_name(other)
