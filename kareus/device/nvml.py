"""NVIDIA GPUs: what needs rights goes through Zeus' device layer, what only reads through NVML.

Zeus sends locks to its daemon (zeusd) where `ZEUSD_SOCK_PATH` or `ZEUSD_HOST_PORT` names one, so that an ordinary user
can set clocks; else it calls NVML, which asks for root. Importing Zeus takes seconds: import this module late.
"""

import contextlib
import ctypes
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import httpx
import pynvml
from zeus.device import get_gpus
from zeus.device.exception import ZeusBaseGPUError
from zeus.device.gpu import ZeusGPUFunctionNotFoundError, ZeusGPUInitError, ZeusGPUNoPermissionError
from zeus.device.gpu.nvidia import NVIDIAGPU, NVIDIAGPUs
from zeus.exception import ZeusBaseError

from kareus.device.cuda import VISIBLE, visible_uuids
from kareus.device.protocol import PROFILES
from kareus.errors import DeviceError

Answer = TypeVar("Answer")

_REASONS = {
    pynvml.nvmlClocksEventReasonGpuIdle: "idle",
    pynvml.nvmlClocksEventReasonSwPowerCap: "power-limit",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware-slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync-boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "thermal-limit",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hardware-thermal-limit",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power-brake",
}
"""Bits that NVML sets while something other than a locked clock holds the clock down (NVML, nvmlClocksEventReasons)."""


class NvmlDevice:
    """Implements `kareus.device.protocol.Device`."""

    def __init__(self, gpu: NVIDIAGPU) -> None:
        """Stand for `gpu`."""
        self._gpu = gpu
        self.uuid: str = self._ask(pynvml.nvmlDeviceGetUUID, gpu.handle)
        self.name: str = self._ask(gpu.get_name)
        self.driver: str = self._ask(pynvml.nvmlSystemGetDriverVersion)

    def supported_clocks_mhz(self) -> tuple[int, ...]:
        """Clocks at the highest memory clock, which is the one in use under load."""
        memory_mhz = max(self._ask(self._gpu.get_supported_memory_clocks))
        return tuple(sorted(self._ask(self._gpu.get_supported_graphics_clocks, memory_mhz)))

    def lock_clock(self, frequency_mhz: int) -> None:
        """Lock both ends of the range."""
        self._ask(self._gpu.set_gpu_locked_clocks, frequency_mhz, frequency_mhz)

    def reset_clock(self) -> None:
        """Unlock."""
        self._ask(self._gpu.reset_gpu_locked_clocks)

    def power_limits_w(self) -> tuple[float, float]:
        """Ask the driver, which knows them in milliwatts."""
        least_mw, most_mw = self._ask(self._gpu.get_power_management_limit_constraints)
        return least_mw / 1e3, most_mw / 1e3

    def power_limit_w(self) -> float:
        """The limit of the board's firmware, or the one that was set last."""
        return float(self._ask(self._gpu.get_power_management_limit)) / 1e3

    def set_power_limit(self, limit_w: float) -> None:
        """Set it, until the driver is loaded again."""
        self._ask(self._gpu.set_power_management_limit, round(1e3 * limit_w))

    def default_power_limit_w(self) -> float:
        """The limit of the board's firmware."""
        return float(self._ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, self._gpu.handle)) / 1e3

    def power_profiles(self) -> tuple[str, ...]:
        """Names that this package knows, of what the driver has; none where it, or the GPU, has no profiles."""
        info = pynvml.c_nvmlWorkloadPowerProfileProfilesInfo_v1_t()
        try:
            self._ask(pynvml.nvmlDeviceWorkloadPowerProfileGetProfilesInfo, self._gpu.handle, ctypes.byref(info))
        except DeviceError:
            return ()
        return _profile_names(info.perfProfilesMask)

    def requested_power_profiles(self) -> tuple[str, ...]:
        """Read from the driver."""
        return _profile_names(self._current_profiles().requestedProfilesMask) if self.power_profiles() else ()

    def enforced_power_profiles(self) -> tuple[str, ...]:
        """Read from the driver."""
        return _profile_names(self._current_profiles().enforcedProfilesMask)

    def _current_profiles(self) -> Any:
        current = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
        self._ask(pynvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles, self._gpu.handle, ctypes.byref(current))
        return current

    def request_power_profiles(self, names: Sequence[str]) -> None:
        """Ask the driver, which arbitrates between all that are asked for."""
        self._ask(pynvml.nvmlDeviceWorkloadPowerProfileSetRequestedProfiles, self._gpu.handle, _mask_of(names))

    def clear_power_profiles(self, names: Sequence[str]) -> None:
        """Take requests back."""
        self._ask(pynvml.nvmlDeviceWorkloadPowerProfileClearRequestedProfiles, self._gpu.handle, _mask_of(names))

    def clock_mhz(self) -> int:
        """The SM clock now."""
        return int(self._ask(pynvml.nvmlDeviceGetClockInfo, self._gpu.handle, pynvml.NVML_CLOCK_SM))

    def throttle_reasons(self) -> tuple[str, ...]:
        """Names of the bits that are set."""
        bits = self._ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, self._gpu.handle)
        return tuple(name for bit, name in _REASONS.items() if bits & bit)

    def energy_j(self) -> float:
        """Energy since the driver was loaded."""
        return float(self._ask(self._gpu.get_total_energy_consumption)) / 1e3

    def temperature_c(self) -> float:
        """Temperature of the chip."""
        return float(self._ask(_temperature_c, self._gpu))

    def _ask(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """Call the driver; a refusal becomes one line."""
        where = f"GPU {self._gpu.gpu_index}"
        try:
            return call(*arguments)
        except (ZeusGPUNoPermissionError, pynvml.NVMLError_NoPermission):
            right = "start the container with --cap-add SYS_ADMIN" if os.geteuid() == 0 else "run as root"
            raise DeviceError(
                f"{where}: no right to set clocks; {right}, or have zeusd started and name its socket in "
                "ZEUSD_SOCK_PATH."
            ) from None
        except (ZeusBaseError, pynvml.NVMLError, httpx.HTTPError, OSError) as error:  # zeusd is spoken to over HTTP
            raise DeviceError(f"{where}: {call.__name__} failed ({_line(error)}); see `nvidia-smi -q`.") from error


def open_devices() -> tuple[NvmlDevice, ...]:
    """The NVIDIA GPUs of this machine that `CUDA_VISIBLE_DEVICES` leaves visible, in its order.

    Raises:
        DeviceError: there are none, the driver is missing, zeusd does not answer, or a slice of a GPU is to be used.
    """
    uuids = visible_uuids()
    if not uuids:
        return _opened()
    with _without_variable():  # Zeus reads indices only
        devices = _opened()
    return tuple(_named(uuid, devices) for uuid in uuids)


@contextlib.contextmanager
def _without_variable() -> Iterator[None]:
    listed = os.environ.pop(VISIBLE)
    try:
        yield
    finally:
        os.environ[VISIBLE] = listed


def _named(uuid: str, devices: Sequence[NvmlDevice]) -> NvmlDevice:
    """The GPU that a UUID names, which CUDA lets users abbreviate.

    Raises:
        DeviceError: none, or several.
    """
    meant = [device for device in devices if device.uuid.startswith(uuid)]
    if len(meant) != 1:
        shown = ", ".join(device.uuid for device in devices)
        raise DeviceError(f"{VISIBLE}: {uuid} names {len(meant)} GPUs of this machine; must name one of {shown}.")
    return meant[0]


def _opened() -> tuple[NvmlDevice, ...]:
    """The GPUs that Zeus finds.

    Raises:
        DeviceError: as `open_devices`.
    """
    for library in ("zeus", "httpx"):  # which tell of every start, and of every request to zeusd
        logging.getLogger(library).setLevel(logging.WARNING)
    # Said once more, and better, if the driver refuses.
    warnings.filterwarnings("ignore", message="You are about to call a GPU management API", category=UserWarning)
    try:
        gpus = get_gpus()
    except (ZeusGPUInitError, ZeusBaseGPUError, ImportError) as error:
        raise DeviceError(f"no GPU can be used here ({_line(error)}); check `nvidia-smi` on this machine.") from error
    except ValueError as error:  # Zeus reads the variable as numbers
        raise DeviceError(
            f"{VISIBLE}={os.environ[VISIBLE]}: must list indices such as 0,1 or UUIDs such as GPU-8f6c..., all of one "
            "kind; `nvidia-smi -L` prints both."
        ) from error
    if not isinstance(gpus, NVIDIAGPUs):
        raise DeviceError("only NVIDIA GPUs can be controlled and measured; check `nvidia-smi` on this machine.")
    return tuple(NvmlDevice(gpu) for gpu in gpus.gpus)


def _temperature_c(gpu: NVIDIAGPU) -> int:
    """Ask as Zeus does, and drivers that do not know that call yet in the older way."""
    try:
        return int(gpu.get_gpu_temperature())
    except ZeusGPUFunctionNotFoundError:
        return int(pynvml.nvmlDeviceGetTemperature(gpu.handle, pynvml.NVML_TEMPERATURE_GPU))


def _profile_names(mask: Any) -> tuple[str, ...]:
    """Return the profiles of a mask of 255 bits."""
    return tuple(name for name, bit in PROFILES.items() if mask.mask[bit // 32] >> bit % 32 & 1)


def _mask_of(names: Sequence[str]) -> Any:
    """Return a request of profiles by reference, as NVML takes it."""
    request = pynvml.c_nvmlWorkloadPowerProfileRequestedProfiles_v1_t()
    for bit in (PROFILES[name] for name in names):
        request.requestedProfilesMask.mask[bit // 32] |= 1 << bit % 32
    return ctypes.byref(request)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
