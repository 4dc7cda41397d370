"""The tokens of a microbatch, as a pipeline is given them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Token ids and the ids that follow them, each [microbatch_size, sequence_length / cp]."""

    ids: Ids
    labels: Ids
