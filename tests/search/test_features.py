"""Features of candidates: the numbers of their schedules, with a launch operator as its position."""

import dataclasses

import pytest
from helpers.builders import a100, graphs, space

from kareus.errors import ArtifactError
from kareus.graph.interleave import partition_of
from kareus.graph.records import Batch
from kareus.schedule.space import search_space
from kareus.search.features import features_of

MLP = graphs()[Batch.NANOBATCH].forward[1]
PARTITION = partition_of(MLP, MLP.collective)
SPACE = search_space(PARTITION, a100(), space())


def test_features_are_those_of_the_schedules():
    features = features_of(PARTITION, SPACE)
    assert len(features) == len(SPACE)
    assert tuple(features.frequency_mhz) == SPACE.frequency_mhz
    assert tuple(features.sm_count) == SPACE.sm_count
    assert [PARTITION.operators[int(n)].name for n in features.launch_index] == list(SPACE.launch)


def test_an_operator_of_another_partition_is_refused():
    other = dataclasses.replace(SPACE, launch=("nonsense",) * len(SPACE))
    with pytest.raises(ArtifactError, match="forward-mlp-allreduce: no operator 'nonsense'; there are: norm, gate_up"):
        features_of(PARTITION, other)
