"""Time of a collective whose ranks lie on several nodes, by the algorithms that NCCL chooses from.

Nodes are what NVLink connects: where its domain spans several hosts, all of these.

A ring passes every rank and crosses from node to node once for each node. NCCL lays one ring through each NIC that the
ranks of a node have, so that `per_node` ranks of a group on a node share its traffic to other nodes among as many NICs:
large messages take the bytes that a rank sends by a ring, over the slower of its links and of `per_node` NICs. A ring
is a channel, which has an SM of its own: with fewer SMs than NICs there are fewer rings, and the other NICs idle. Small
all-reduces go up and down a tree instead, whose depth grows with the logarithm of the nodes. Numbers of steps,
latencies of a step and the bandwidth of the tree are those of NCCL's own model (`src/graph/tuning.cc`, protocol Simple
of rings, LL of trees).
"""

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model import laws
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.rings import ring_moving_s
from kareus.graph.records import Collective, CollectiveKind, TokenExchange

RING_LINK_S, RING_NIC_S = 3.4e-6, 9.6e-6
"""Latency of one step of a ring inside a node and between two."""
TREE_LINK_S, TREE_NIC_S = 0.52e-6, 5.0e-6
"""Latency of one step of a tree inside a node and between two."""
MESSAGES_AT_ONCE = 8
"""Messages of an all-to-all that a GPU has under way (`NCCL_MAX_DEV_WORK_P2P_PER_BATCH`, `src/include/device.h`)."""
TREE_BUS_SHARE = 0.5 / 3.8
"""Bytes of a message over those that the bus could move in the time of a tree: up and down, at LL's bandwidth."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the ranks of a group lie."""

    nodes: int
    """Number of nodes that have any."""
    per_node: int
    """Least number on one of them."""


def placement_of(ranks: Collection[int], linked_gpus: int) -> Placement:
    """Return the placement of ranks; links connect every `linked_gpus` consecutive ones, as of `Gpu.linked_gpus`."""
    on_node = Counter(rank // linked_gpus for rank in ranks)
    return Placement(nodes=len(on_node), per_node=min(on_node.values()))


def placed_collective_s(
    gpu: Gpu, collective: Collective, placement: Placement, frequency_mhz: Array, sm_count: Array
) -> Array:
    """Return the time of `collective` alone on `sm_count` SMs at a clock, wherever its ranks lie.

    On one node that is `laws.collective_time_s`. Between nodes links move the bytes as in a ring of one node, in the
    protocol for large messages, and the latencies of all steps are those of this module. NICs reach the same share of
    their bandwidth as links (`bus_efficiency`), which is assumed where `network_slowdown` was not fitted. The clock
    does not change theirs; that one SM keeps a NIC busy is an assumption.
    """
    if placement.nodes == 1:
        return laws.collective_time_s(gpu, collective, frequency_mhz, sm_count)
    if collective.kind is CollectiveKind.ALL_TO_ALL:
        return _exchange_s(gpu, collective, placement, frequency_mhz, sm_count)
    base_s, slowdown = gpu.coefficients.collective_latency_s, laws.collective_slowdown(gpu, collective)
    nic_bytes_per_s = gpu.nic_gb_per_s * 1e9 * gpu.coefficients.bus_efficiency
    on_links_s = ring_moving_s(
        gpu,
        bus_bytes=collective.bus_bytes,
        message_bytes=collective.message_bytes,
        group_size=collective.group_size,
        frequency_mhz=frequency_mhz,
        sm_count=sm_count,
    )
    nics = np.minimum(placement.per_node, sm_count)
    moving_s = np.maximum(on_links_s, collective.bus_bytes / (nics * nic_bytes_per_s))
    ring_s = _ring_latency_s(collective, placement) + moving_s
    if collective.kind is not CollectiveKind.ALL_REDUCE:
        return slowdown * (base_s + ring_s)
    bus_bytes_per_s = collective.bus_bytes / moving_s
    tree_s = _tree_latency_s(placement) + collective.message_bytes / (bus_bytes_per_s * TREE_BUS_SHARE)
    return slowdown * (base_s + np.minimum(ring_s, tree_s))


def _exchange_s(gpu: Gpu, collective: Collective, placement: Placement, frequency_mhz: Array, sm_count: Array) -> Array:
    """Time of an all-to-all between nodes: each GPU sends through its own NIC what is for other nodes.

    Links move the rest, and beside it what one copy for a whole node has to become there. Messages to several GPUs are
    under way at once.
    """
    size, on_node = collective.group_size, placement.per_node
    share = collective.between_share if isinstance(collective, TokenExchange) else 1.0
    others_bytes = collective.message_bytes * (size - on_node) / size
    forwarded = others_bytes if share < 1 else 0.0
    on_links_s = ring_moving_s(
        gpu,
        bus_bytes=collective.message_bytes * (on_node - 1) / size + forwarded,
        message_bytes=collective.message_bytes,
        group_size=size,
        frequency_mhz=frequency_mhz,
        sm_count=sm_count,
    )
    nic_bytes_per_s = gpu.nic_gb_per_s * 1e9 * gpu.coefficients.bus_efficiency
    moving_s = np.maximum(on_links_s, share * others_bytes / nic_bytes_per_s)
    rounds = math.ceil((size - 1) / MESSAGES_AT_ONCE)
    return gpu.coefficients.collective_latency_s + rounds * RING_NIC_S + moving_s


def message_latency_s(gpu: Gpu, collective: Collective, placement: Placement) -> float:
    """Return the time of a message by a ring that moves no bytes: what each further one of a collective costs."""
    ring_s = _ring_latency_s(collective, placement) if placement.nodes > 1 else 0.0
    return gpu.coefficients.collective_latency_s + ring_s


def _ring_latency_s(collective: Collective, placement: Placement) -> float:
    rounds = 2 if collective.kind is CollectiveKind.ALL_REDUCE else 1
    steps, between = collective.group_size - 1, placement.nodes - 1
    return rounds * ((steps - between) * RING_LINK_S + between * RING_NIC_S)


def _tree_latency_s(placement: Placement) -> float:
    depth = math.ceil(math.log2(placement.nodes))
    return 2 * ((placement.per_node - 1) * TREE_LINK_S + depth * TREE_NIC_S)
