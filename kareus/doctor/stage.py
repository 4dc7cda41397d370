"""Command `doctor`: say what this machine can do for Kareus, with a remedy for whatever is not as it could be."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import kareus
from kareus.artifacts.files import write_text
from kareus.artifacts.names import check_name
from kareus.artifacts.outputs import OutputKind, add_force, check_files
from kareus.calibrate.gpu_file import is_gpu
from kareus.device import stage as clocks
from kareus.doctor import change_timing
from kareus.doctor.changes_answer import change_findings, gpu_text, question
from kareus.doctor.diagnoses import EXIT_CODES, Diagnosis, State, worst
from kareus.doctor.gpus import gpu_findings
from kareus.doctor.software import slurm_finding, torch_answer, torch_findings, version_findings
from kareus.errors import ConfigError, printable
from kareus.workload.arguments import add_config_dir
from kareus.workload.compose import compose


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the form of the answer."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="lock clocks for two minutes, after asking, and say what a change of clock does on this machine",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--gpu", metavar="OPTION", help="what the GPU is, such as h100-sxm5-80gb: writes --output")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="GPU's configuration with what was measured; an option of `gpu=`"
    )
    add_config_dir(parser)
    add_force(parser)


def run(arguments: argparse.Namespace) -> int:
    """Look at everything, print it, and return the exit code of the worst finding.

    Nothing is changed, but with `--measure` clocks for a while.

    Raises:
        ConfigError: arguments that do not belong together, or nobody who could agree to measuring.
        ArtifactError: the output is there already.
        DeviceError: measuring failed.
    """
    _check(arguments)
    findings = (
        list(_measured(arguments))
        if arguments.measure
        else [
            *gpu_findings(clocks.open_devices),
            *version_findings(),
            *torch_findings(torch_answer()),
            slurm_finding(),
        ]
    )
    if arguments.json:
        print(json.dumps(plain(findings)))  # noqa: T201 - the answer of the command
    else:
        print("\n".join(map(printable, lines(findings))))  # noqa: T201
    return EXIT_CODES[worst(findings)]


def _check(arguments: argparse.Namespace) -> None:
    """Check the arguments of measuring before anything is done."""
    given = [name for name in ("yes", "gpu", "output") if getattr(arguments, name)]
    if given and not arguments.measure:
        raise ConfigError(f"--{given[0]}: goes with --measure; give that, too, or leave it out.")
    if bool(arguments.gpu) != bool(arguments.output):
        raise ConfigError("--gpu, --output: go together; give both, the file to start from and the one to write.")
    if arguments.output:
        check_name(arguments.output.stem, "--output")
        compose([f"gpu={arguments.gpu}"], arguments.config_dir)
        if arguments.output.stem == arguments.gpu:
            raise ConfigError(f"--output {arguments.output}: would be based on itself; choose another name.")
        check_files(arguments, [(arguments.output, OutputKind("a GPU's configuration", is_gpu))])


def _measured(arguments: argparse.Namespace) -> Iterator[Diagnosis]:
    """Ask, measure, and write what a GPU's file can have of it."""
    from kareus.calibrate.stage import check_idle  # noqa: PLC0415 - the doctor starts at once

    devices = clocks.open_devices()
    if not arguments.yes and not _agreed(question(devices)):
        raise ConfigError("--measure: nothing was done; it locks clocks, so answer y, or give --yes.")
    for device in devices[:2]:
        check_idle(device)
    measured = change_timing.measured_changes(devices, change_timing.process_load)
    yield from change_findings(measured)
    if arguments.output and measured.latency_s is not None:
        write_text(arguments.output, gpu_text(measured, devices[0], arguments.gpu, datetime.now(UTC).date()))
        yield Diagnosis(check="written", state=State.OK, result=str(arguments.output))


def _agreed(asked: str) -> bool:
    """Return whether the user at the terminal agrees; nobody there does not."""
    if not sys.stdin.isatty():
        return False
    print(f"{asked} [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201 - a question, beside the answer
    return input().strip().lower() in ("y", "yes")


def plain(findings: Sequence[Diagnosis]) -> dict[str, object]:
    """Return all findings as plain data."""
    return {
        "kareus": kareus.__version__,
        "state": worst(findings).word,
        "findings": [
            {"check": finding.check, "state": finding.state.word, "found": finding.result, "remedy": finding.remedy}
            for finding in findings
        ],
    }


def lines(findings: Sequence[Diagnosis]) -> list[str]:
    """Return a table of all findings, each remedy below its line, and what it comes to."""
    width = max(len(finding.check) for finding in findings)
    table = []
    for finding in findings:
        table.append(f"{finding.state.word:<7}  {finding.check:<{width}}  {finding.result}")
        if finding.remedy and finding.state is not State.OK:
            table.append(f"{'':<7}  {'':<{width}}  -> {finding.remedy}")
    counts = {state: sum(finding.state is state for finding in findings) for state in State}
    summary = ", ".join(f"{count} {state.word}" for state, count in counts.items() if count)
    return [f"kareus {kareus.__version__} on this machine", "", *table, "", summary]
