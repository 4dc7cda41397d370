"""Command `clocks`: show what the GPUs' SM clocks do, and undo what a killed run left: clocks, limits, profiles."""

import argparse
from collections.abc import Callable, Sequence

from kareus.device.claims import DeviceSetting, claim, setting_of
from kareus.device.controller import undo
from kareus.device.protocol import Device
from kareus.errors import DeviceError, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what to do, and on which GPUs."""
    parser.add_argument("action", choices=("show", "reset"), help="print the clocks, or unlock them")
    parser.add_argument(
        "gpus",
        nargs="*",
        default=[],
        metavar="GPU",
        help="index or UUID; none means all for `show`, and those that Kareus left locked for `reset`",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be unlocked, and do nothing")


def run(arguments: argparse.Namespace) -> None:
    """Show or reset GPUs one by one; a GPU that refuses does not stop the others.

    Raises:
        DeviceError: one or more of them refused.
    """
    devices = open_devices()
    chosen = [_named(devices, gpu) for gpu in arguments.gpus]
    if arguments.action == "show":
        _print_each("shown", chosen or devices, lambda device: _shown(devices.index(device), device))
        return
    to_reset = chosen or [device for device in devices if _may_be_set(device)]
    if not to_reset:
        print("no GPU of this machine has a clock that Kareus left locked.")  # noqa: T201 - what was asked for
    _print_each("reset", to_reset, _would_reset if arguments.dry_run else _reset)


def open_devices() -> Sequence[Device]:
    """The GPUs of this machine."""
    from kareus.device import nvml  # noqa: PLC0415 - Zeus takes seconds to import

    return nvml.open_devices()


def _print_each(done: str, devices: Sequence[Device], act: Callable[[Device], str]) -> None:
    """Print what comes of every GPU; raise at the end why some were not `done`."""
    refusals = []
    for device in devices:
        try:
            print(printable(act(device)))  # noqa: T201
        except DeviceError as error:
            refusals.append(str(error))
    if len(refusals) > 1:
        raise DeviceError(f"{len(refusals)} of {len(devices)} GPUs were not {done}: {' '.join(refusals)}")
    if refusals:
        raise DeviceError(refusals[0])


def _named(devices: Sequence[Device], gpu: str) -> Device:
    for index, device in enumerate(devices):
        if gpu in (str(index), device.uuid):
            return device
    allowed = ", ".join(f"{index} ({device.uuid})" for index, device in enumerate(devices))
    raise DeviceError(f"{gpu}: no such GPU; this machine has {allowed}.")


def _shown(index: int, device: Device) -> str:
    clocks, setting = device.supported_clocks_mhz(), setting_of(device.uuid)
    reasons = ", ".join(device.throttle_reasons()) or "nothing holds it down"
    return (
        f"{index}  {device.name}  {device.uuid}  now {device.clock_mhz()} MHz ({reasons}), "
        f"can be locked from {clocks[0]} to {clocks[-1]} MHz; Kareus has "
        f"{f'{setting.verb} it to {setting}' if setting else 'set nothing'}"
    )


def _may_be_set(device: Device) -> bool:
    """Whether Kareus has locked a clock; a claim that cannot be read counts, so that it is named."""
    try:
        return setting_of(device.uuid) is not None
    except DeviceError:
        return True


def _reset(device: Device) -> str:
    """Undo what a claim has set, unless its holder is alive."""
    with claim(device.uuid) as claimed:
        setting = claimed.setting()
        undo(device, setting)
        claimed.clear()
    return f"reset the {_subject(setting)} of {device.uuid}"


def _would_reset(device: Device) -> str:
    with claim(device.uuid) as claimed:
        return f"would reset the {_subject(claimed.setting())} of {device.uuid}"


def _subject(setting: DeviceSetting | None) -> str:
    if setting is None or setting.subject == "clock":
        return "SM clock" if setting is None or setting.is_known else "SM clock, power limit and profiles"
    return setting.subject
