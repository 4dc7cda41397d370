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
