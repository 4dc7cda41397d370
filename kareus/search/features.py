"""Features of candidates for surrogates and the Gaussian process: numbers; a launch operator is its position."""

from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.graph.records import Partition
from kareus.schedule.records import SearchSpace


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Features of candidates, a row for each."""

    matrix: Array
    """Shape (candidates, 3); the columns are the properties below, in their order."""

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.matrix)

    @property
    def frequency_mhz(self) -> Array:
        """SM clocks, shape (candidates,)."""
        return self.matrix[:, 0]

    @property
    def sm_count(self) -> Array:
        """SMs given to the collective, shape (candidates,)."""
        return self.matrix[:, 1]

    @property
    def launch_index(self) -> Array:
        """Positions of the launch operators in the partition, shape (candidates,)."""
        return self.matrix[:, 2]


def features_of(partition: Partition, space: SearchSpace) -> Features:
    """Return the features of every candidate of `partition`.

    Raises:
        ArtifactError: the space names an operator that the partition does not have.
    """
    index_of = {name: partition.operator_index(name) for name in dict.fromkeys(space.launch)}
    columns = (space.frequency_mhz, space.sm_count, [index_of[name] for name in space.launch])
    return Features(np.column_stack(columns).astype(np.float64))
