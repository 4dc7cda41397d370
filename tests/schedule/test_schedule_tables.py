"""The table of search spaces: what is written is read, one partition at a time."""

import pytest
from helpers.builders import a100, graphs, space

from kareus.errors import ArtifactError
from kareus.graph.interleave import partition_of
from kareus.graph.records import Batch
from kareus.schedule.space import search_space
from kareus.schedule.tables import space_frame, space_of

SEGMENTS = graphs()[Batch.NANOBATCH].forward
SPACES = [search_space(partition_of(s, s.collective), a100(), space()) for s in SEGMENTS if s.collective]


@pytest.mark.parametrize("own", SPACES, ids=lambda own: own.partition)
def test_a_space_is_read_as_it_was_written(own):
    frame = space_frame(SPACES).sample(fraction=1.0, shuffle=True, seed=0)
    assert space_of(frame, own.partition) == own


def test_a_partition_without_a_space_is_refused_by_name():
    with pytest.raises(ArtifactError, match="no search space of partition 'other'; there are: forward-attention"):
        space_of(space_frame(SPACES), "other")
