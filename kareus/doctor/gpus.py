"""Findings about GPUs: driver, clocks, who may set them, what a killed run left."""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kareus.device.claims import setting_of
from kareus.device.held_clock import IDLE
from kareus.device.protocol import Device
from kareus.doctor.diagnoses import Diagnosis, State
from kareus.errors import DeviceError, KareusError

SOCKET, HOST_PORT = "ZEUSD_SOCK_PATH", "ZEUSD_HOST_PORT"
"""Variables that name zeusd, which sets clocks for users without rights."""
REACH_S = 2.0
"""Time within which zeusd has to take a connection."""
SYS_ADMIN = 21
"""Bit of the capability that the driver asks for (capabilities(7))."""
START_ZEUSD = (
    "run as root, or have an administrator start `zeusd serve --socket-path /run/zeusd/zeusd.sock "
    "--socket-permissions 666` and set ZEUSD_SOCK_PATH=/run/zeusd/zeusd.sock; without, measure with "
    "testbed.cuda.clocks=default"
)
PLAN_AT_DEFAULT = "plan at default clocks (--actuator none)"
"""What needs no right."""


def gpu_findings(open_devices: Callable[[], Sequence[Device]]) -> Iterator[Diagnosis]:
    """Yield what there is to say about all GPUs; no clock is set."""
    try:
        devices = open_devices()
    except KareusError as error:
        result = str(error).split(";")[0]
        remedy = "plan on the simulated testbed; on a machine with GPUs make `nvidia-smi` work first"
        yield Diagnosis(check="GPUs", state=State.LIMITED, result=result, remedy=remedy)
        return
    yield Diagnosis(check="driver", state=State.OK, result=", ".join(sorted({device.driver for device in devices})))
    for index, device in enumerate(devices):
        yield _gpu(index, device)
    may_set = rights()
    yield may_set
    yield power_limits(devices, may_set)
    yield power_profiles(devices, may_set)


def _gpu(index: int, device: Device) -> Diagnosis:
    """What one GPU is like; one that does not answer is broken."""
    check = f"GPU {index}"
    try:
        clocks, setting = device.supported_clocks_mhz(), setting_of(device.uuid)
        device.energy_j()
        reasons = [reason for reason in device.throttle_reasons() if reason != IDLE]
        now = f"{device.name}, {len(clocks)} clocks from {clocks[0]} to {clocks[-1]} MHz, now {device.clock_mhz()}"
    except DeviceError as error:
        remedy = "look at `nvidia-smi -q`; clocks or energy of such a GPU cannot be used"
        return Diagnosis(check=check, state=State.BROKEN, result=f"{device.name}: {error}", remedy=remedy)
    if setting is not None:
        result = f"{now}; Kareus has {setting.verb} it to {setting}"
        remedy = "if no run of yours is at work: `kareus clocks reset`"
        return Diagnosis(check=check, state=State.LIMITED, result=result, remedy=remedy)
    if reasons:
        remedy = "wait until it is idle and cool, or ask who set its power limit (`nvidia-smi -q -d PERFORMANCE`)"
        result = f"{now}, held down by {', '.join(reasons)}"
        return Diagnosis(check=check, state=State.LIMITED, result=result, remedy=remedy)
    return Diagnosis(check=check, state=State.OK, result=now)


def rights() -> Diagnosis:
    """Return who may set clocks: zeusd where a variable names it, else whoever has the rights of root."""
    check = "setting clocks"
    if os.environ.get(SOCKET):
        return _daemon(check, f"{SOCKET}={os.environ[SOCKET]}", lambda: _connect_socket(Path(os.environ[SOCKET])))
    if os.environ.get(HOST_PORT):
        return _daemon(check, f"{HOST_PORT}={os.environ[HOST_PORT]}", lambda: _connect_host(os.environ[HOST_PORT]))
    if has_capability(Path("/proc/self/status")):
        return Diagnosis(check=check, state=State.OK, result="this user has the rights of root")
    return Diagnosis(check=check, state=State.LIMITED, result="no right, and no zeusd is named", remedy=START_ZEUSD)


def power_limits(devices: Sequence[Device], may_set: Diagnosis) -> Diagnosis:
    """Return which power limits can be set: what sets clocks sets them too, and a driver may know only these.

    Where neither may be set, plans at default clocks still choose layout, SMs and launches.
    """
    check = "setting power limits"
    try:
        ranges = sorted({(*device.power_limits_w(), device.power_limit_w()) for device in devices})
    except DeviceError as error:
        remedy = f"lock clocks, which save more, or {PLAN_AT_DEFAULT}"
        return Diagnosis(check=check, state=State.ABSENT, result=str(error).split(";")[0], remedy=remedy)
    result = ", ".join(f"from {least:g} to {most:g} W, now {now:g}" for least, most, now in ranges)
    if may_set.state is State.OK:
        return Diagnosis(
            check=check, state=State.OK, result=f"{result}; `kareus plan ... --actuator power` plans for one"
        )
    return Diagnosis(
        check=check,
        state=State.ABSENT,
        result=f"{result}; {may_set.result}",
        remedy=f"{PLAN_AT_DEFAULT}, for which no right is needed",
    )


def power_profiles(devices: Sequence[Device], may_set: Diagnosis) -> Diagnosis:
    """Return which profiles of the vendor's can be asked for: Blackwell's drivers have them."""
    check = "setting power profiles"
    offered = {name: None for device in devices for name in device.power_profiles()}
    if not offered:
        result = "the driver has none for these GPUs"
        return Diagnosis(check=check, state=State.ABSENT, result=result, remedy="lock clocks, or limit power")
    result = ", ".join(offered)
    if may_set.state is State.OK:
        named = "`kareus plan ... --actuator profile=max-q+llm-training` plans for some"
        return Diagnosis(check=check, state=State.OK, result=f"{result}; {named}")
    return Diagnosis(check=check, state=State.ABSENT, result=f"{result}; {may_set.result}", remedy=PLAN_AT_DEFAULT)


def _daemon(check: str, name: str, connect: Callable[[], None]) -> Diagnosis:
    try:
        connect()
    except (OSError, ValueError) as error:
        remedy = f"start zeusd there, or unset the variable: {START_ZEUSD}"
        return Diagnosis(
            check=check, state=State.BROKEN, result=f"{name}: zeusd does not answer ({error})", remedy=remedy
        )
    return Diagnosis(check=check, state=State.OK, result=f"zeusd answers at {name}")


def _connect_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(REACH_S)
        connection.connect(str(path))


def _connect_host(host_port: str) -> None:
    host, _, port = host_port.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=REACH_S):
        pass


def has_capability(status: Path) -> bool:
    """Whether a process may administer the system, by its status in /proc; False where that cannot be read."""
    try:
        lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        return bool(int(lines["CapEff"], 16) >> SYS_ADMIN & 1)
    except (OSError, KeyError, ValueError):
        return False
