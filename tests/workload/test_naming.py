import dataclasses
import functools
import operator
import re
from functools import cache
from typing import Any

import pytest
from helpers.builders import CONFIG
from hypothesis import given
from hypothesis import strategies as st

from kareus.artifacts.records import from_plain, to_plain
from kareus.errors import RefusedWorkloadError
from kareus.workload.compose import ComposedWorkload, compose, differences
from kareus.workload.config import Workload
from kareus.workload.naming import workload_name
from kareus.workload.split import layers_per_stage


def name(*overrides: str) -> str:
    (composition,) = compose(overrides, CONFIG)
    return workload_name(composition)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100"),
        (["iteration.include_update=false"], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_noupdate"),
        (
            ["model=llama3.3-70b", "parallelism=pp10tp8", "gpu=h100-sxm5-80gb", "num_microbatches=128"],
            "llama3.3-70b_pp10-tp8_mbs8_seq4096_h100_nmb128",
        ),
        (["parallelism=cp2tp4", "parallelism.dp=2", "gpu=h200"], "llama3.2-3b_dp2-pp2-cp2-tp4_mbs8_seq4096_h200"),
        (["search=random", "seed=3"], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_seed3_search-random"),
        (["recomputation=none"], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_recompute-none"),
        (["parallelism.sharding=optimizer"], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_shard-optimizer"),
        (["parallelism.sequence_parallel=true"], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_seqpar"),
        (["parallelism.layers_per_stage=[14,14]"], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_layers14-14"),
        (["pipeline=zb-h1"], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_pipeline-zb-h1"),
        (
            ["pipeline=interleaved", "pipeline.chunks=4"],
            "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_pipeline-interleaved_pipeline.chunks-4",
        ),
        (["gpu.power_limit_w=300"], "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_gpu.power-limit-w-300.0"),
        (
            ["training.cast_weights=true", "training.offload_optimizer=1.0"],
            "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_cast-weights_offload-optimizer",
        ),
        (
            ["training.gradients=bf16", "model.tie_embeddings=false"],
            "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_no-model.tie-embeddings_gradients-bf16",
        ),
    ],
)
def test_names_say_what_is_unusual(overrides: list[str], expected: str) -> None:
    assert name(*overrides) == expected


def test_a_key_that_a_file_leaves_out_changes_no_name() -> None:
    assert "kernel_uncertainty" not in (CONFIG / "gpu/a100-sxm4-40gb.yaml").read_text()
    assert name("microbatch_size=16") == "llama3.2-3b_pp2-tp8_mbs16_seq4096_a100"


def test_many_changes_become_one_hash() -> None:
    many = name("gpu.power_limit_w=300", "space.sm_max=27", "protocol.window_s=2")
    assert re.fullmatch(r"llama3\.2-3b_pp2-tp8_mbs8_seq4096_a100_[0-9a-f]{8}", many)


def test_saying_what_is_so_anyway_changes_no_name() -> None:
    said = name("parallelism.layers_per_stage=[15,13]", "gpu.power_limit_w=400", "seed=0", "search=informed")
    assert said == name()


GROUPS = {"model": ["llama3.2-3b", "qwen3-1.7b"], "gpu": ["a100-sxm4-40gb", "h200"], "search": ["paper", "random"]}
VALUES: dict[str, list[Any]] = {
    "parallelism.dp": [1, 2],
    "parallelism.pp": [2, 4],
    "parallelism.layers_per_stage": [None, (14, 14), (15, 13)],
    "parallelism.sharding": ["none", "optimizer", "gradients", "full"],
    "parallelism.sequence_parallel": [False, True],
    "search.strategy": ["paper", "random"],
    "search.small.batch": [16, 1, 11],
    "microbatch_size": [8, 16],
    "num_microbatches": [8, 16],
    "sequence_length": [4096, 8192],
    "seed": [0, 1],
    "recomputation": ["stage", "none", "selective", "full"],
    "gpu.power_limit_w": [400.0, 300.0],
    "gpu.coefficients.contention": [0.25, 0.5],
    "model.num_layers": [28, 26],
    "memory_reserve_gib": [3.2, 5.0],
}
CHOICES = st.fixed_dictionaries(
    {group: st.sampled_from(options) for group, options in GROUPS.items()},
    optional={key: st.sampled_from(values) for key, values in VALUES.items()},
)


@cache
def chosen() -> dict[tuple[str, ...], ComposedWorkload]:
    """Every choice of options, composed once: hypothesis has no patience for Hydra."""
    sweep = [f"{group}={','.join(options)}" for group, options in GROUPS.items()]
    return {tuple(c.options[group] for group in GROUPS): c for c in compose(sweep, CONFIG)}


def composed(choice: dict[str, Any]) -> ComposedWorkload:
    """As `compose` would, with the values of `choice` written over its options."""
    start = chosen()[tuple(choice[group] for group in GROUPS)]
    before, after = to_plain(start.workload), to_plain(start.workload)
    for key, value in choice.items():
        if key not in GROUPS:
            *path, leaf = key.split(".")
            functools.reduce(operator.getitem, path, after)[leaf] = value
    workload = from_plain(Workload, after)
    return dataclasses.replace(start, workload=workload, changes=differences(before, to_plain(workload)))


def identity(composition: ComposedWorkload) -> Workload:
    """The workload with its split as it will be resolved."""
    workload = composition.workload
    try:
        split = layers_per_stage(workload)
    except RefusedWorkloadError:
        return workload
    return dataclasses.replace(workload, parallelism=dataclasses.replace(workload.parallelism, layers_per_stage=split))


@given(first=CHOICES, second=CHOICES)
def test_different_workloads_have_different_names(first: dict[str, Any], second: dict[str, Any]) -> None:
    one, other = composed(first), composed(second)
    if identity(one) != identity(other):
        assert workload_name(one) != workload_name(other)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", workload_name(one))


@given(choice=CHOICES, change=st.sampled_from([(key, value) for key, values in VALUES.items() for value in values]))
def test_one_more_difference_makes_another_name(choice: dict[str, Any], change: tuple[str, Any]) -> None:
    """Random pairs rarely differ in one thing only; these do."""
    key, value = change
    one, other = composed(choice), composed(choice | {key: value})
    assert (workload_name(one) == workload_name(other)) == (identity(one) == identity(other))
