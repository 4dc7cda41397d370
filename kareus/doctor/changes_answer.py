"""Measured changes of clocks in words, and as the key of a GPU's file."""

import math
from collections.abc import Iterator, Sequence
from datetime import date

from kareus.device.held_clock import ClockOutcome
from kareus.device.protocol import Device
from kareus.doctor.change_timing import DELAYED, PERIODS_S, MeasuredChanges
from kareus.doctor.diagnoses import Diagnosis, State


def question(devices: Sequence[Device]) -> str:
    """Return what measuring will do, for the user to agree to."""
    both = f" and {devices[1].name} (1)" if len(devices) > 1 else ""
    return (
        f"This locks the SM clock of {devices[0].name} (0){both} some {200 if both else 80} times within about two "
        "minutes, keeps it busy meanwhile, and gives its clock back to the driver. Nothing else may run there. Go on?"
    )


def change_findings(measured: MeasuredChanges) -> Iterator[Diagnosis]:
    """Yield what was measured of changing clocks: how long it takes, and what counters, limits and collectives do."""
    yield _changes(measured)
    yield _counter(measured)
    yield _limit(measured)
    yield _collectives(measured)


def _changes(measured: MeasuredChanges) -> Diagnosis:
    latency_s, count = measured.latency_s, len(measured.changes)
    if latency_s is None:
        remedy = "leave clocks alone here: testbed.cuda.clocks=default, and power limits instead of clocks"
        result = f"none of {count} changes came to hold"
        return Diagnosis(check="changes of clock", state=State.BROKEN, result=result, remedy=remedy)
    slowest = max(
        (change for change in measured.changes if math.isfinite(change.latency_s)), key=lambda change: change.latency_s
    )
    result = (
        f"hold after {1e3 * latency_s:.1f} ms (median of {count}; at most {1e3 * slowest.latency_s:.1f} ms, to "
        f"{slowest.to_mhz} MHz); work stops for {1e3 * measured.pause_s:.1f} ms"
    )
    if measured.lost:
        remedy = "plan below the clock that the power limit leaves, or give the GPU more power"
        result += f"; {measured.lost} never held"
        return Diagnosis(check="changes of clock", state=State.LIMITED, result=result, remedy=remedy)
    return Diagnosis(check="changes of clock", state=State.OK, result=result)


def _counter(measured: MeasuredChanges) -> Diagnosis:
    if math.isinf(measured.counter_period_s):
        result, remedy = "did not move under load", "energies of this GPU cannot be measured; update its driver"
        return Diagnosis(check="energy counter", state=State.BROKEN, result=result, remedy=remedy)
    result = f"moves every {1e3 * measured.counter_period_s:.0f} ms, by {measured.counter_step_j:.3g} J or more"
    return Diagnosis(check="energy counter", state=State.OK, result=result)


def _limit(measured: MeasuredChanges) -> Diagnosis:
    check, result = "clock at the power limit", f"{measured.limit_mhz:.0f} MHz with the highest clock locked"
    if measured.limit_outcome is ClockOutcome.KEPT:
        return Diagnosis(check=check, state=State.OK, result=result)
    remedy = "set gpu.search_frequencies.maximum_mhz to it, or plans ask for clocks that are never there"
    result += f" ({measured.limit_outcome})"
    return Diagnosis(check=check, state=State.LIMITED, result=result, remedy=remedy)


def _collectives(measured: MeasuredChanges) -> Diagnosis:
    check = "collectives under locks"
    if not measured.delays:
        return Diagnosis(check=check, state=State.ABSENT, result="one GPU has none; two are needed to tell")
    result = ", ".join(f"every {1e3 * period_s:.0f} ms: {delay:+z.1%}" for period_s, delay in measured.delays)
    if measured.interval_s is None:
        remedy = f"change clocks less often than every {1e3 * max(PERIODS_S):.0f} ms: one clock for each phase or step"
        return Diagnosis(check=check, state=State.LIMITED, result=result, remedy=remedy)
    return Diagnosis(check=check, state=State.OK, result=f"{result} (up to {DELAYED:.0%} counts as none)")


def gpu_text(measured: MeasuredChanges, device: Device, option: str, today: date) -> str:
    """Return a GPU's configuration: that of `option`, with what its changes of clock cost here.

    Args:
        measured: of `device`; changes came to hold.
        device: the GPU.
        option: of Hydra group `gpu` that it is one of.
        today: when it was measured.
    """
    interval = "" if measured.interval_s is None else f"  interval_s: {measured.interval_s:g}\n"
    return (
        f"# {device.name}, driver {device.driver}: changes of clock by `kareus doctor --measure` on {today}.\n"
        f"# What is not measured, such as the energy of a change, is that of {option}.\n"
        f"defaults:\n  - {option}\n  - _self_\n\n"
        f"clock_change:\n  latency_s: {measured.latency_s:.4f}\n  pause_s: {measured.pause_s:.4f}\n{interval}"
    )
