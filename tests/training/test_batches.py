"""Which samples a rank sees, and that it goes on where it was."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import ArtifactError, ConfigError
from kareus.model import attention
from kareus.training.batches import Batches, DataPosition, DataShare, context_shard
from kareus.training.samples import FileSamples, SyntheticSamples, permuted
from kareus.training.tokens import open_tokens, write_tokens

SYNTHETIC = SyntheticSamples(vocab_size=50, sequence_length=8, seed=1)


def file_samples(folder, tokens=41, **changes):
    path = folder / "t.bin"
    write_tokens(path, [range(tokens)], vocab_size=tokens, tokenizer="count")
    return FileSamples(**({"file": open_tokens(path), "sequence_length": 4, "seed": 0} | changes))


@given(st.integers(1, 400), st.integers(0, 2**64).map(lambda n: f"{n:016x}"))
def test_a_permutation_hits_every_place_once(count, key):
    assert sorted(permuted(place, count, key) for place in range(count)) == list(range(count))


def test_a_permutation_looks_random():
    """Spearman's correlation with the original order, and of two keys with each other, is small."""
    orders = [[permuted(place, 2000, f"{key:016x}") for place in range(2000)] for key in (1, 2)]
    correlations = np.corrcoef([range(2000), *orders])
    assert np.abs(correlations - np.eye(3)).max() < 0.1


def test_each_pass_takes_every_window_once_in_its_own_order(tmp_path):
    samples = file_samples(tmp_path)
    passes = [[tuple(samples.sample(10 * turn + i)) for i in range(10)] for turn in range(2)]
    windows = {tuple(range(start, start + 5)) for start in range(0, 40, 4)}
    assert set(passes[0]) == set(passes[1]) == windows
    assert passes[0] != passes[1]


def test_another_seed_is_another_order(tmp_path):
    first, second = (file_samples(tmp_path, seed=seed) for seed in (0, 1))
    assert [tuple(first.sample(i)) for i in range(10)] != [tuple(second.sample(i)) for i in range(10)]
    assert first.identity != second.identity


def test_labels_are_the_next_tokens(tmp_path):
    (microbatch,) = Batches(file_samples(tmp_path), DataShare(microbatch_size=3, num_microbatches=1)).next_iteration()
    assert np.array_equal(microbatch.labels, microbatch.ids + 1)
    assert microbatch.ids.shape == (3, 4)
    assert microbatch.ids.dtype == np.int64


@given(dp=st.sampled_from([1, 2, 3]), num_microbatches=st.integers(1, 4), microbatch_size=st.integers(1, 3))
def test_replicas_share_an_iteration_without_overlap(dp, num_microbatches, microbatch_size):
    share = {"microbatch_size": microbatch_size, "num_microbatches": num_microbatches, "dp": dp}
    ranks = [Batches(SYNTHETIC, DataShare(**share, dp_rank=rank)) for rank in range(dp)]
    for iteration in range(2):
        rows = [row for rank in ranks for one in rank.next_iteration() for row in one.ids.tolist()]
        size = dp * num_microbatches * microbatch_size
        expected = [SYNTHETIC.sample(iteration * size + i)[:-1].tolist() for i in range(size)]
        assert sorted(rows) == sorted(expected)
    assert {rank.position.samples for rank in ranks} == {2 * size}


@given(before=st.integers(0, 5), after=st.integers(1, 3))
def test_a_run_that_resumes_sees_what_it_would_have_seen(before, after):
    share = DataShare(microbatch_size=2, num_microbatches=2)
    whole, first = Batches(SYNTHETIC, share), Batches(SYNTHETIC, share)
    for batches in (whole, first):
        for _ in range(before):
            batches.next_iteration()
    resumed = Batches(SYNTHETIC, share, first.position)
    for _ in range(after):
        for expected, seen in zip(whole.next_iteration(), resumed.next_iteration(), strict=True):
            assert np.array_equal(expected.ids, seen.ids)
            assert np.array_equal(expected.labels, seen.labels)


def test_a_position_in_other_data_is_refused():
    with pytest.raises(ArtifactError, match="was made with other data"):
        Batches(SYNTHETIC, DataShare(microbatch_size=1, num_microbatches=1), DataPosition(samples=4, source="0" * 16))


def test_a_file_shorter_than_a_sequence_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has 4 tokens, less than one sequence of 4"):
        file_samples(tmp_path, tokens=4)


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_context_shards_are_the_tokens_the_model_expects(cp, monkeypatch):
    rows = np.arange(16)[None]
    shards = []
    for rank in range(cp):
        monkeypatch.setattr(attention, "group_size", lambda group: cp)
        monkeypatch.setattr(attention, "group_rank", lambda group, rank=rank: rank)
        shards.append(context_shard(rows, rank, cp))
        assert torch.equal(torch.from_numpy(shards[-1][0]), attention.positions(16 // cp, None))
    assert sorted(np.concatenate(shards, axis=1)[0]) == list(range(16))


def test_synthetic_text_can_be_learnt():
    ids = np.concatenate([SyntheticSamples(50, 400, 0).sample(number) for number in range(20)])
    likely = (31 * ids[:-1] + 7) % 50 == ids[1:]
    assert 0.85 < likely.mean() < 0.95
