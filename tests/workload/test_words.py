"""Words: the batch of all replicas, gradient accumulation, and GPUs of the job."""

import re

import pytest
from helpers.builders import CONFIG
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import ConfigError
from kareus.workload.resolve import check_any_accepted, resolve
from kareus.workload.words import followed

USUAL = {
    "parallelism.dp": 1,
    "parallelism.tp": 8,
    "parallelism.pp": 2,
    "parallelism.cp": 1,
    "microbatch_size": 8,
    "num_microbatches": 8,
}


def one(*overrides):
    (found,) = resolve(overrides, CONFIG)
    return found


@given(
    dp=st.integers(1, 64),
    size=st.integers(1, 16),
    microbatches=st.integers(1, 256),
    replica=st.sampled_from([1, 8, 16]),
)
def test_words_and_keys_give_each_other(dp, size, microbatches, replica):
    words = {"gpus": dp * replica, "global_batch_size": dp * size * microbatches}
    degrees = {"parallelism.tp": replica, "parallelism.pp": 1}
    found = followed(words, {**degrees, "microbatch_size": size}, USUAL)
    assert found == {"parallelism.dp": dp, "num_microbatches": microbatches}
    other = followed(words, {**degrees, "num_microbatches": microbatches}, USUAL)
    assert other == {"parallelism.dp": dp, "microbatch_size": size}


def test_a_global_batch_gives_the_microbatches():
    found = one("parallelism.dp=4", "microbatch_size=2", "global_batch_size=512")
    assert found.workload.num_microbatches == 64
    assert found.name.endswith("_nmb64")


def test_accumulation_and_a_global_batch_give_the_microbatch():
    found = one("global_batch_size=64", "gradient_accumulation_steps=16").workload
    assert (found.microbatch_size, found.num_microbatches) == (4, 16)


def test_words_are_swept_as_keys_are():
    found = resolve(["global_batch_size=64,128"], CONFIG)
    assert [each.workload.num_microbatches for each in found] == [8, 16]


def test_what_words_give_is_named_as_where_the_key_is_given():
    assert one("gpus=32").name == one("parallelism.dp=2").name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["global_batch_size=500", "parallelism.dp=4"], "must be a multiple of 32"),
        (["gpus=24", "parallelism=tp8"], "gpus=24: must be a multiple of 16"),
        (["gpus=32", "parallelism=tp8", "parallelism.dp=4"], "gives parallelism.dp=2, but parallelism.dp=4 is given"),
        (["gradient_accumulation_steps=4", "num_microbatches=8"], "but num_microbatches=8 is given"),
        (["global_batch_size=64", "microbatch_size=8", "gradient_accumulation_steps=4"], "leave one of them out"),
        (["global_batch_size=0"], "global_batch_size=0: must be a whole number, 1 or more."),
        (["gpus=eight"], "gpus=eight: must be a whole number"),
        (["parallelism.sharding=hybrid", "parallelism.dp=2"], "fills the 8 GPUs of a node; give parallelism.shards=N"),
    ],
)
def test_words_that_do_not_fit_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        resolve(overrides, CONFIG)


@pytest.mark.parametrize("gpus", [8, 16, 64])
@pytest.mark.parametrize("model", ["llama3.1-8b", "llama3.2-3b"])
def test_a_number_of_gpus_proposes_a_layout_that_fits_them(model, gpus):
    found = one(f"model={model}", "gpu=h200", f"gpus={gpus}", "global_batch_size=512")
    workload = found.workload
    assert workload.parallelism.gpus == gpus
    assert workload.parallelism.dp * workload.microbatch_size * workload.num_microbatches == 512
    assert found.proposed
    assert set(found.proposed) <= set(found.overrides)


@pytest.mark.parametrize("batch", [7, 64, 96])
@pytest.mark.parametrize("gpus", [3, 12, 24, 37, 48, 62, 100])
def test_a_layout_is_proposed_wherever_some_degrees_divide_gpus_and_batch(gpus, batch):
    """A pipeline of Llama 3.1 8B has at most 32 stages; tp x cp fits a node of 8."""
    replicas = [gpus // (inner * pp) for inner in (1, 2, 4, 8) for pp in range(1, 33) if gpus % (inner * pp) == 0]
    words = ("model=llama3.1-8b", "gpu=h100-sxm5-80gb", f"gpus={gpus}", f"global_batch_size={batch}")
    if not any(batch % dp == 0 for dp in replicas):
        nearest = min(
            (near for near in range(1, batch + gpus) if any(near % dp == 0 for dp in replicas)),
            key=lambda near: abs(near - batch),
        )
        with pytest.raises(ConfigError, match=rf"no layout of {gpus} GPUs divides it; the nearest .* (\d+)\.$") as said:
            one(*words)
        assert abs(int(re.search(r"(\d+)\.$", str(said.value))[1]) - batch) == abs(nearest - batch)
        return
    workload = one(*words).workload
    assert workload.parallelism.gpus == gpus
    assert workload.parallelism.dp * workload.microbatch_size * workload.num_microbatches == batch


def test_the_default_model_gets_another_layout_where_its_own_divides_nothing():
    for words in (("gpus=16", "global_batch_size=63"), ("gpus=12",), ("gpus=48", "global_batch_size=64")):
        found = one(*words, "gpu=h100-sxm5-80gb")
        assert found.workload is not None, words
        assert found.proposed


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (("gpus=12", "parallelism.tp=8"), "no layout of 12 GPUs with parallelism.tp=8"),
        (
            ("gpus=8", "parallelism.tp=8", "microbatch_size=5", "global_batch_size=64"),
            "the nearest that one does is 65",
        ),
        (("gpus=14", "parallelism.tp=7"), "parallelism.tp=7: must fit a node of 8 GPUs"),
        (("gpus=8", "num_microbatches=5", "global_batch_size=64"), "the nearest that one does is 65"),
    ],
)
def test_what_is_named_is_said_where_no_layout_keeps_it(named, said):
    with pytest.raises(ConfigError, match=said):
        check_any_accepted([one("model=llama3.1-8b", "gpu=h100-sxm5-80gb", *named)])


def test_a_proposal_cuts_a_batch_into_the_microbatches_that_are_named():
    found = one("model=llama3.1-8b", "gpu=h100-sxm5-80gb", "gpus=8", "num_microbatches=4", "global_batch_size=64")
    assert (found.workload.num_microbatches, found.workload.parallelism.dp * found.workload.microbatch_size) == (4, 16)


def test_a_proposal_names_all_that_it_runs():
    found = one("model=llama3.1-8b", "gpu=h100-sxm5-80gb", "gpus=8", "global_batch_size=63")
    degrees = found.workload.parallelism
    assert f"parallelism.tp={degrees.tp}" in found.proposed
    assert f"microbatch_size={found.workload.microbatch_size}" in found.proposed
    assert degrees.tp * degrees.pp * degrees.dp == 8


def test_weights_are_shared_out_where_nothing_else_fits():
    found = one("model=llama3.1-8b", "gpu=a100-sxm4-40gb", "gpus=37", "global_batch_size=37")
    assert found.workload.parallelism.sharding == "full"


@pytest.mark.parametrize("model", ["llama3.2-3b", "qwen3-30b-a3b"])
def test_fsdp_is_proposed_what_it_does_without_a_pipeline(model):
    """Torchtitan's FSDP shares out weights with the optimizer, so that no other sharing has a setting there."""
    named = (f"model={model}", "gpu=h200", "gpus=8", "global_batch_size=64", "parallelism.pp=1")
    assert one(*named, "software=torchtitan").workload.parallelism.sharding == "full"
    assert one(*named, "software=megatron-core").workload.parallelism.sharding == "optimizer"
    asked = one(*named, "software=torchtitan", "parallelism.sharding=optimizer")
    assert asked.workload.parallelism.sharding == "optimizer"


def test_a_proposal_keeps_what_is_named():
    found = one("model=llama3.1-8b", "gpu=h200", "gpus=16", "parallelism.tp=4", "microbatch_size=2")
    assert (found.workload.parallelism.tp, found.workload.microbatch_size) == (4, 2)
    assert found.workload.parallelism.gpus == 16


@pytest.mark.parametrize(
    ("layout", "shards"),
    [
        (("parallelism.tp=2", "parallelism.dp=8"), 4),
        (("parallelism.tp=2", "parallelism.dp=16", "parallelism.shards=8"), 8),
        (("parallelism.tp=1", "gpus=32"), 8),
        (("parallelism.tp=1", "parallelism.dp=4"), None),
        (("parallelism.tp=8", "parallelism.dp=1"), None),
    ],
)
def test_hybrid_sharding_is_within_a_node(layout, shards):
    found = one("model=llama3.2-3b", "gpu=h200", "parallelism.pp=1", "parallelism.sharding=hybrid", *layout)
    assert found.workload.parallelism.sharding == "full"
    assert found.workload.parallelism.shards == shards


def test_states_are_shared_out_as_recipes_do_where_nobody_says():
    layout = ("model=llama3.1-8b", "gpu=h100-sxm5-80gb", "parallelism.tp=1", "parallelism.pp=1", "parallelism.dp=8")
    layout = (*layout, "microbatch_size=1", "recomputation=full")
    assert one(*layout).proposed == ("parallelism.sharding=optimizer",)
    assert one(*layout).workload.parallelism.sharding == "optimizer"
    assert one(*layout, "software=torchtitan").workload.parallelism.sharding == "full"
    for more in ("software=kareus", "parallelism.sharding=none", "sequence_length=524288"):
        assert one(*layout, more).workload is None
        assert one(*layout, more).proposed == ()


def test_a_proposal_that_needs_a_node_takes_one():
    found = one("model=llama3.3-70b", "gpu=h200", "gpus=64")
    assert found.workload.parallelism.tp * found.workload.parallelism.pp > 1


def test_where_nothing_fits_the_refusal_says_what_the_least_needs():
    found = one("model=llama3.3-70b", "gpu=h200", "gpus=1")
    assert found.workload is None
    assert "out of memory" in found.refusal


def test_a_whole_layout_is_left_alone():
    found = one("gpus=32", "parallelism=tp8")
    assert found.proposed == ()
    assert found.workload.parallelism.dp == 2
