"""A GPU that is a folder: what is locked stands in a file, so that other processes can look."""

import dataclasses
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from kareus.device.controller import controlled_clocks
from kareus.errors import DeviceError


@dataclasses.dataclass
class FakeDevice:
    """Implements `kareus.device.protocol.Device`."""

    folder: Path
    uuid: str = "GPU-fake"
    name: str = "Fake"
    driver: str = "1.0"
    clocks_mhz: tuple[int, ...] = (900, 1200, 1410)
    lock_s: float = 0.0
    """How long the driver takes."""
    capped_mhz: int = 1410
    """The clock never gets above it, as under a power limit."""
    capped_for: tuple[str, ...] = ("power-limit",)
    """What the driver says of that."""
    profiles: tuple[str, ...] = ("max-q", "llm-training")
    """Power profiles that the driver has."""

    @property
    def allowed(self) -> bool:
        """Whether this user may set clocks."""
        return not (self.folder / "forbidden").exists()

    @allowed.setter
    def allowed(self, allowed: bool) -> None:
        forbidden = self.folder / "forbidden"
        forbidden.unlink(missing_ok=True) if allowed else forbidden.touch()

    def cap(self, mhz: int, *reasons: str) -> None:
        """Cap the clock in all processes that have a device of this folder, and give reasons."""
        (self.folder / "cap").write_text(json.dumps([mhz, reasons]))

    def _cap(self) -> tuple[int, tuple[str, ...]]:
        try:
            mhz, reasons = json.loads((self.folder / "cap").read_text())
        except FileNotFoundError:
            return self.capped_mhz, self.capped_for
        return mhz, tuple(reasons)

    @property
    def locked(self) -> Path:
        return self.folder / "locked"

    @property
    def refused(self) -> Path:
        """There once a lock was refused."""
        return self.folder / "refused"

    def supported_clocks_mhz(self):
        return self.clocks_mhz

    def lock_clock(self, frequency_mhz):
        if not self.allowed:
            self.refused.touch()
            raise DeviceError(f"{self.uuid}: no right to set clocks; run as root.")
        time.sleep(self.lock_s)
        self._log(f"lock {frequency_mhz}")
        beside = self.folder / "locking"
        beside.write_text(str(frequency_mhz))
        beside.rename(self.locked)  # another thread may be reading it

    def reset_clock(self):
        if not self.allowed:
            raise DeviceError(f"{self.uuid}: no right to set clocks; run as root.")
        self._log("reset")
        self.locked.unlink(missing_ok=True)

    def power_limits_w(self):
        return 200.0, 700.0

    def power_limit_w(self):
        limit = self.folder / "limit"
        return float(limit.read_text()) if limit.exists() else 700.0

    def set_power_limit(self, limit_w):
        if not self.allowed:
            raise DeviceError(f"{self.uuid}: no right to set clocks; run as root.")
        self._log(f"limit {limit_w:g}")
        (self.folder / "limit").write_text(str(limit_w))

    def default_power_limit_w(self):
        return 700.0

    def power_profiles(self):
        return self.profiles

    def requested_power_profiles(self):
        requested = self.folder / "profiles"
        return tuple(requested.read_text().split()) if requested.exists() else ()

    def enforced_power_profiles(self):
        return self.requested_power_profiles()

    def request_power_profiles(self, names):
        self._change_profiles("request", names, [*self.requested_power_profiles(), *names])

    def clear_power_profiles(self, names):
        self._change_profiles("clear", names, [n for n in self.requested_power_profiles() if n not in names])

    def _change_profiles(self, verb, names, requested):
        if not self.allowed:
            raise DeviceError(f"{self.uuid}: no right to set clocks; run as root.")
        self._log(f"{verb} {'+'.join(names)}")
        (self.folder / "profiles").write_text(" ".join(requested))

    def clock_mhz(self):
        try:
            return min(int(self.locked.read_text()), self._cap()[0])
        except FileNotFoundError:
            return self._cap()[0]

    def throttle_reasons(self):
        mhz, reasons = self._cap()
        return reasons if mhz < self.clocks_mhz[-1] else ()

    def energy_j(self):
        return time.perf_counter() * 100.0  # a steady 100 W

    def temperature_c(self):
        return 40.0

    def calls(self):
        log = self.folder / "log"
        return log.read_text().split("\n")[:-1] if log.exists() else []

    def _log(self, line):
        with (self.folder / "log").open("a") as log:
            log.write(line + "\n")


def hold(folder: Path, blocking: str) -> None:
    """Lock a clock, say so, and go on until somebody ends this process.

    Args:
        folder: of the device.
        blocking: `python` to wait between bytecodes, `c` to wait in C code that swallows interrupts.
    """
    with controlled_clocks(FakeDevice(folder)) as clocks:
        clocks.request(1200).result()
        if blocking == "c":
            # A handler may not run before this returns: signals are blocked in the main thread while it sleeps.
            # Said by another thread once it does: before, the main thread would notice the signal.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            threading.Timer(0.5, _say_held).start()
        else:
            _say_held()
        time.sleep(60)


def _say_held() -> None:
    sys.stdout.write("held\n")
    sys.stdout.flush()


def start(device: FakeDevice, blocking: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, str(device.folder), blocking]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with holder.stdout as out:
        assert out.readline() == "held\n"
    return holder


def kill(device: FakeDevice) -> int:
    holder = start(device, "python")
    holder.kill()
    holder.wait()
    return holder.pid


def wait_until(holds, limit_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # started under nohup it would be ignored, and rightly stay so
    hold(Path(sys.argv[1]), sys.argv[2])
