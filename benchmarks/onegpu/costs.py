"""What a partition costs beside a loopback, by the number of SMs and of CUDA's queues; sets no clock."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from kareus.device.cuda import QUEUES
from kareus.graph.records import Partition, Program, Step
from kareus.profile.config import MeasurementProtocol
from kareus.profile.measure import measure_once
from kareus.profile.programs import partition_program
from kareus.testbed.cuda.testbed import CudaTestbed
from onegpu.table import Table


class Costs(NamedTuple):
    """Where and how costs are measured."""

    open_testbed: Callable[[], CudaTestbed]
    """At the driver's own clock."""
    clock_mhz: int
    """Its maximum."""
    protocol: MeasurementProtocol

    def of(self, programs: Sequence[Program], queues: int) -> list[dict[str, float]]:
        """Time, energy and clock of each program, in a worker whose CUDA has that many queues."""
        before = os.environ.get(QUEUES)
        os.environ[QUEUES] = str(queues)
        try:
            with closing(self.open_testbed()) as testbed:
                return [self._measured(testbed, program) for program in programs]
        finally:
            del os.environ[QUEUES]
            os.environ.update({} if before is None else {QUEUES: before})

    def _measured(self, testbed: CudaTestbed, program: Program) -> dict[str, float]:
        with testbed.session(program, program.name) as session:
            return measure_once(session, self.clock_mhz, self.protocol)


def by_sm_count(costs: Costs, partition: Partition, sm_counts: Sequence[int], queues: Sequence[int]) -> Table:
    """The partition's computation and collective, alone and together, launched beside its first operator."""
    alone = Program(name=f"{partition.name}-computation", steps=(Step(operators=partition.operators),))
    collectives = [
        Program(name=f"{partition.name}-collective", steps=(Step(collective=partition.collective, sm_count=n),))
        for n in sm_counts
    ]
    together = [partition_program(partition, n, partition.operators[0].name) for n in sm_counts]
    rows = [row for q in queues for row in _rows(q, sm_counts, costs.of([alone, *collectives, *together], q))]
    says = (
        f"`{partition.name}` of {len(partition.operators)} operators and {partition.collective.message_bytes} bytes. "
        "Together should take less than one after the other; with one queue the collective begins first for certain."
    )
    columns = (
        *("queues", "SMs", "computation ms", "collective ms", "one after the other ms", "together ms"),
        *("energy together J", "mean clock MHz", "held down by"),
    )
    return Table(f"Partition {partition.name}", says, columns, rows)


def _rows(queues: int, sm_counts: Sequence[int], measured: Sequence[dict[str, float]]) -> Iterator[tuple[object, ...]]:
    computation, *others = measured
    collectives, together = others[: len(sm_counts)], others[len(sm_counts) :]
    for n, collective, both in zip(sm_counts, collectives, together, strict=True):
        apart_ms = 1e3 * (computation["time_s"] + collective["time_s"])
        yield (
            *(queues, n, 1e3 * computation["time_s"], 1e3 * collective["time_s"], apart_ms, 1e3 * both["time_s"]),
            *(both["energy_j"], both["clock_mean_mhz"], ", ".join(both["throttle_reasons"]) or "nothing"),
        )
