"""Proposed layouts: the fewest GPUs, where none is named and the default one does not fit."""

from helpers.builders import CONFIG

from kareus.workload.resolve import resolve, with_proposal


def proposed(*overrides):
    (one,) = resolve(overrides, CONFIG)
    return one, with_proposal(one, CONFIG)


def test_a_large_model_gets_more_stages():
    before, one = proposed("model=llama3.3-70b", "microbatch_size=1")
    assert before.refusal is not None
    assert one.refusal is None
    assert one.workload.parallelism.gpus > before.gpus


def test_what_fits_stays_as_it_is():
    before, one = proposed("model=llama3.2-3b", "microbatch_size=8")
    assert one is before


def test_the_default_model_keeps_its_layout():
    before, one = proposed("microbatch_size=16")
    assert before.refusal is not None
    assert one is before


def test_a_named_parallelism_is_left_alone():
    before, one = proposed("model=llama3.3-70b", "parallelism=tp8")
    assert one is before
    assert one.refusal is not None


def test_what_fits_nowhere_stays_refused():
    before, one = proposed("model=llama3.2-3b", "microbatch_size=4096", "sequence_length=131072")
    assert one is before


def test_experts_are_shared_out_in_proposals():
    _, smallest = proposed("model=qwen3-30b-a3b", "gpu=h100-sxm5-80gb", "microbatch_size=1")
    assert smallest.refusal is None
    parallelism = smallest.workload.parallelism
    assert parallelism.ep == parallelism.gpus_per_stage > 1
    (many,) = resolve(["model=qwen3-235b-a22b", "gpu=h100-sxm5-80gb", "gpus=128", "global_batch_size=512"], CONFIG)
    assert many.refusal is None
    assert many.workload.parallelism.gpus == 128
    assert many.workload.parallelism.ep > 1
    named = ["model=qwen3-30b-a3b", "gpu=h100-sxm5-80gb", "gpus=16", "global_batch_size=64", "parallelism.ep=2"]
    (own,) = resolve(named, CONFIG)
    assert own.composed.parallelism.ep == 2


def test_all_replicas_that_share_are_the_same_workload_by_either_name():
    layout = ["model=llama3.1-8b", "gpu=h100-sxm5-80gb", "parallelism.dp=8", "parallelism.tp=1", "parallelism.pp=1"]
    layout += ["parallelism.sharding=full", "microbatch_size=1"]
    (plain,), (named,) = resolve(layout, CONFIG), resolve([*layout, "parallelism.shards=8"], CONFIG)
    assert plain.workload is not None
    assert named.workload == plain.workload
    assert named.name == plain.name
