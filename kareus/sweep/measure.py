"""Sweeping the profiler: scatter and error of a measured energy, by window and cooldown.

A window reads less than a GPU takes that runs for long, which is warmer. Trials have both: what was measured, and what
that is at the temperature which the GPU settles to, as plans have it (`sustained_j`).

Under each protocol the trials follow one another on a GPU that stays as hot as the one before left it (paper, section
6.7), unlike all other measurements of a simulated testbed.
"""

from collections.abc import Iterator

from kareus.artifacts.records import canonical_json, content_hash
from kareus.artifacts.store import RowShelf
from kareus.artifacts.tables import Row
from kareus.gpu_model.model import run_program
from kareus.gpu_model.thermal import sustained_profile_j, window_temperature_c
from kareus.graph.records import Program
from kareus.profile.config import MeasurementProtocol
from kareus.profile.measure import measure_once, measured_row
from kareus.profile.tables import TRIALS
from kareus.sweep.config import ProfilerSweep
from kareus.testbed.config import TestbedKind
from kareus.testbed.protocol import Testbed
from kareus.workload.config import Workload


def run_sweep(swept: ProfilerSweep, program: Program, testbed: Testbed, shelf: RowShelf) -> list[Row]:
    """Measure `program` under every protocol of the sweep; return the rows of `TRIALS`, by protocol.

    Args:
        swept: the sweep.
        program: program of its partition.
        testbed: testbed to measure on.
        shelf: shelf of `TRIALS`. Trials that a protocol lacks there are measured together, since they heat one another.
    """
    rows = list[Row]()
    shared = _shared(swept, program)
    for protocol in swept.sweep.protocols(swept.workload.protocol):
        keys = [(protocol.window_s, protocol.cooldown_s, trial) for trial in range(swept.sweep.trials)]
        stored = [row for key in keys if (row := shelf.get(key)) is not None]
        if len(stored) == len(keys):
            rows += stored
        else:
            for row in _trials(swept, program, testbed, protocol):
                shelf.append(shared | row)
                rows.append(shared | row)
    return rows


def _shared(swept: ProfilerSweep, program: Program) -> Row:
    """Columns that are the same in every row."""
    workload, sweep = swept.workload, swept.sweep
    reference_j = warm_reference_j = None
    if workload.testbed.kind is TestbedKind.SIMULATED:
        ran, c = run_program(workload.gpu, program, sweep.frequency_mhz), workload.gpu.coefficients
        reference_j = float(ran.energy_j)
        warm_reference_j = _warm_j(workload, float(ran.time_s), reference_j, c.reference_temperature_c)
    return {
        "partition": sweep.partition,
        "frequency_mhz": sweep.frequency_mhz,
        "settle_s": sweep.settle_s,
        "reference_energy_j": reference_j,
        "warm_reference_energy_j": warm_reference_j,
    }


def _warm_j(workload: Workload, time_s: float, energy_j: float, window_c: float) -> float:
    """Return the energy of one execution on a GPU that stays warm."""
    return sustained_profile_j(workload.gpu, energy_j, time_s, window_c, waiting_share=0.0)


def _trials(swept: ProfilerSweep, program: Program, testbed: Testbed, protocol: MeasurementProtocol) -> Iterator[Row]:
    """Measure under one protocol, in one session; a row as soon as it is measured."""
    frequency_mhz = swept.sweep.frequency_mhz
    identity = {"program": content_hash(program.steps), "frequency_mhz": frequency_mhz, "protocol": protocol}
    measured = [column for column in TRIALS.polars if column not in ("window_s", "cooldown_s")]
    with testbed.session(program, canonical_json(identity)) as session:
        for trial in range(swept.sweep.trials):
            session.begin_trial()
            row = measured_row(measure_once, session, frequency_mhz, protocol)
            ends = row["temperature_before_c"], row["temperature_after_c"]
            temperature_c = window_temperature_c(*ends, row["window_s"], swept.workload.gpu.coefficients)
            row |= {"warm_energy_j": _warm_j(swept.workload, row["time_s"], row["energy_j"], temperature_c)}
            asked = {"window_s": protocol.window_s, "cooldown_s": protocol.cooldown_s, "trial": trial}
            yield {key: value for key, value in row.items() if key in measured} | asked
