"""What an update works on, and what operators and collectives over the weights of a stage take at each clock."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.energy import collective_switching, held_power_w
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import run_program
from kareus.gpu_model.network import message_latency_s, placed_collective_s
from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Operator, Program, Scope, Step
from kareus.model.parameters import partial_parameters, trained_expert_parameters, trained_parameters
from kareus.profile.programs import LaidOut, laid_out_shapes
from kareus.profile.sharded import WeightLayout
from kareus.software.record import Software
from kareus.update.collectives import Placed, norm_gradient_collectives

CostsByClock = Array
"""Seconds and joules of one GPU at each clock, [2, clocks]."""


class UpdateSubject(WeightLayout, LaidOut, Protocol):
    """A slice of a workload that decides what its update costs."""

    @property
    def precision(self) -> Precision:
        """Of the products of blocks."""

    @property
    def recomputation(self) -> Recomputation:
        """What a backward recomputes."""

    @property
    def split_backward(self) -> bool:
        """Whether weight gradients are computed after the input gradients."""

    @property
    def default_collective_sm_count(self) -> int:
        """SMs of collectives that nothing is chosen for."""


def shard_of(config: UpdateSubject, parameters: int) -> int:
    """Return the part of parameters, experts apart, that one GPU optimizes."""
    parallelism = config.parallelism
    if not parallelism.shards_states:
        return parameters
    shards = len(parallelism.sharing_ranks(0, over_context=config.software.shares_over_context))
    return -(-parameters // shards)


def stage_parameters(config: UpdateSubject, stage: int) -> int:
    """Return the parameters on one GPU of a stage that are trained."""
    return parameters_in(trained_parameters(config.model, config.parallelism, config.training), config, stage)


def stage_expert_parameters(config: UpdateSubject, stage: int) -> int:
    """Return those of them that are routed experts'."""
    trained = trained_expert_parameters(config.model, config.parallelism, config.training)
    return sum(count * trained.get(scope, 0) for scope, count in stage_parts(config, stage).items())


def stage_parts(config: UpdateSubject, stage: int) -> dict[Scope, int]:
    """Return how often a stage has each part of a model."""
    shapes = laid_out_shapes(config)
    of_stage = [shapes[stage, chunk] for chunk in range(config.chunks)]
    dense = sum(shape.dense for shape in of_stage)
    counts = {
        Scope.BLOCK: sum(shape.layers for shape in of_stage) - dense,
        Scope.DENSE_BLOCK: dense,
        Scope.EMBEDDING: int(stage == 0),
        Scope.HEAD: int(stage == config.parallelism.head_stage),
    }
    return {scope: count for scope, count in counts.items() if count}


def parameters_in(parts: Mapping[Scope, int], config: UpdateSubject, stage: int) -> int:
    """Return the sum over the parts of a model that a stage has, of so many parameters of each."""
    return sum(count * parts[scope] for scope, count in stage_parts(config, stage).items())


def norm_sums(config: UpdateSubject, stage: int, clocks_mhz: Array) -> CostsByClock:
    """What the sums over tensor parallelism of norms' gradients take, of the shard that the GPU optimizes."""
    parallelism = config.parallelism
    frozen = config.training.trains_adapters
    partial = 0 if frozen else parameters_in(partial_parameters(config.model, parallelism), config, stage)
    sums = norm_gradient_collectives(parallelism, config.gpu, stage, shard_of(config, partial))
    return collectives_cost(config, sums, clocks_mhz)


def summing_software(config: UpdateSubject) -> Software:
    """Return the software with the bytes of a gradient of this training."""
    summed_in = config.software.gradient_bytes
    gradient_bytes = config.training.gradient_bytes(summed_in)
    return config.software if gradient_bytes == summed_in else replace(config.software, gradient_bytes=gradient_bytes)


def operators_cost(gpu: Gpu, operators: Sequence[Operator], clocks_mhz: Array) -> CostsByClock:
    """What operators take one after the other, under the power limit."""
    ran = run_program(gpu, Program(name="update", steps=(Step(operators=tuple(operators)),), blocks=None), clocks_mhz)
    return np.array([ran.time_s, ran.energy_j])


def collectives_cost(config: UpdateSubject, placed: Sequence[Placed], clocks_mhz: Array) -> CostsByClock:
    """CostsByClock of collectives one after the other, with nothing beside them."""
    total = np.zeros((2, len(clocks_mhz)))
    for collective in placed:
        time_s = collectives_s(config, [collective], clocks_mhz)
        held_j = held_power_w(config.gpu, sm_count_of(config), clocks_mhz) * time_s
        busy_j = collective_switching(config.gpu, collective[0]).busy_j(config.gpu, clocks_mhz, time_s)
        total += np.array([time_s, busy_j + held_j])
    return total


def sm_count_of(config: UpdateSubject) -> int:
    """Return the SMs of what an update exchanges: with shared-out gradients their sum over copies, and little else."""
    copies_sms = config.parallelism.fsdp.copies_sms
    return config.default_collective_sm_count if copies_sms is None else copies_sms


def collectives_s(config: UpdateSubject, placed: Sequence[Placed], clocks_mhz: Array) -> Array:
    """Return the time of collectives one after the other at each clock, [clocks]."""
    sm_counts, total_s = np.full_like(clocks_mhz, sm_count_of(config)), np.zeros_like(clocks_mhz)
    for collective, placement in placed:
        total_s += placed_collective_s(config.gpu, collective, placement, clocks_mhz, sm_counts)
    return total_s


def messages_s(config: UpdateSubject, placed: Sequence[Placed]) -> float:
    """Time of the further messages of a block's collectives that share out an optimizer."""
    if not config.parallelism.shards_states or not config.software.block_messages:
        return 0.0
    return config.software.block_messages * sum(message_latency_s(config.gpu, *placement) for placement in placed)
