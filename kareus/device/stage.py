"""Command `clocks`: show what the GPUs' SM clocks do, and restore those that a killed run left locked."""

import argparse
from collections.abc import Sequence

from kareus.device.claims import claim, setting_of
from kareus.device.protocol import Device
from kareus.errors import DeviceError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what to do, and on which GPUs."""
    parser.add_argument("action", choices=("show", "reset"), help="print the clocks, or unlock them")
    parser.add_argument(
        "gpus",
        nargs="*",
        metavar="GPU",
        help="index or UUID; none means all for `show`, and those that Kareus left locked for `reset`",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be unlocked, and do nothing")


def run(arguments: argparse.Namespace) -> None:
    """Show or reset."""
    devices = open_devices()
    chosen = [_named(devices, gpu) for gpu in arguments.gpus]
    if arguments.action == "show":
        for device in chosen or devices:
            print(_shown(devices.index(device), device))  # noqa: T201 - what was asked for
        return
    to_reset = chosen or [device for device in devices if setting_of(device.uuid) is not None]
    if not to_reset:
        print("no GPU of this machine has a clock that Kareus left locked.")  # noqa: T201
    for device in to_reset:
        if not arguments.dry_run:
            _reset(device)
        print(f"{'would reset' if arguments.dry_run else 'reset'} the SM clock of {device.uuid}")  # noqa: T201


def open_devices() -> Sequence[Device]:
    """The GPUs of this machine."""
    from kareus.device import nvml  # noqa: PLC0415 - Zeus takes seconds to import

    return nvml.open_devices()


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
        f"{f'locked it to {setting}' if setting else 'set nothing'}"
    )


def _reset(device: Device) -> None:
    """Unlock whatever the claim says, unless its holder is alive."""
    with claim(device.uuid) as claimed:
        device.reset_clock()
        claimed.clear()
