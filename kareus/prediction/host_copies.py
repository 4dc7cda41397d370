"""Copies of activations to the host and back: what of them outlasts the pass that they run beside."""

from dataclasses import replace

import numpy as np

from kareus.gpu_model.model import Behaviour
from kareus.gpu_model.waiting import waiting_power_w
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import RECOMPUTING, Direction
from kareus.prediction.breakdown import InstructionCost
from kareus.workload.activation_memory import most_blocks, offloaded_bytes
from kareus.workload.config import Workload

COPIES = "copies to the host"
"""Component of a prediction: what a GPU waits for them."""


def with_copies(workload: Workload, kind: InstructionKind, cost: InstructionCost, clock_mhz: float) -> InstructionCost:
    """Return the cost of an instruction whose copies to or from the host may outlast it."""
    behaviour = copied(workload, kind, cost.behaviour, clock_mhz)
    if behaviour is cost.behaviour:
        return cost
    added = np.array([behaviour.time_s - cost.behaviour.time_s, behaviour.energy_j - cost.behaviour.energy_j])
    return replace(cost, behaviour=behaviour, parts={**cost.parts, COPIES: added})


def copied(workload: Workload, kind: InstructionKind, behaviour: Behaviour, clock_mhz: float) -> Behaviour:
    """Return what an instruction does that waits for its copies where these take longer than itself.

    Blocks are copied out beside the forward of those that follow, and back beside the backward of those before (Rhu et
    al., vDNN, MICRO 2016, section 3); meanwhile a GPU runs nothing, as while it waits for another.
    """
    options, parallelism = workload.training, workload.parallelism
    if not options.offload_blocks or kind.direction not in (Direction.FORWARD, *RECOMPUTING):
        return behaviour
    blocks = most_blocks(workload, kind.stage)
    tokens = workload.microbatch_size * workload.sequence_length // parallelism.cp
    moved = min(options.offload_blocks, blocks) * offloaded_bytes(workload, blocks, tokens)
    exposed_s = np.maximum(moved / (workload.gpu.host_gb_per_s * 1e9) - behaviour.time_s, 0.0)
    if not np.any(exposed_s):
        return behaviour
    waiting_w = waiting_power_w(workload.gpu, clock_mhz)
    return replace(behaviour, time_s=behaviour.time_s + exposed_s, energy_j=behaviour.energy_j + waiting_w * exposed_s)
