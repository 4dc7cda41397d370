"""Command `validate`: predict what files of measurements give, print how far off that is, or show it on a page."""

import argparse
import json
from pathlib import Path
from typing import Any

from kareus.artifacts.outputs import OutputKind, add_force, check_files
from kareus.errors import ConfigError, printable
from kareus.evidence import shipped_files
from kareus.evidence.validation import Validation, validate_file
from kareus.workload.arguments import add_overrides

PAGE = Path("validation.html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the references, the configuration and the page."""
    text = (
        "Hydra overrides of all that is predicted, such as gpu.coefficients.contention=0.5; a GPU (gpu=NAME) for "
        "references that name none alone: planned frontiers, reductions"
    )
    add_overrides(parser, text)
    parser.add_argument(
        "--reference",
        type=Path,
        nargs="+",
        help="planned frontiers, reductions, kernels or iterations (CSV, or .csv.gz; default: all that ship with it)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument(
        "--page",
        type=Path,
        nargs="?",
        const=PAGE,
        metavar="FILE",
        help=f"also write a page with figures and error tables, of all that ships, too (default: {PAGE})",
    )
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Read, predict, print, and write the page if one is asked for."""
    if arguments.page is not None:
        _check_page(arguments)
    given = [*(arguments.reference or ())]
    shipped = shipped_files() if arguments.page is not None or not given else {}
    files = shipped | {str(path): path for path in given}
    validations = [validate_file(name, path, arguments.overrides, arguments.config_dir) for name, path in files.items()]
    if arguments.json:
        print(json.dumps(_plain(validations, alone=bool(given) and len(validations) == 1), allow_nan=False))  # noqa: T201
    else:
        lines = [line for validation in validations for line in validation.lines]
        print("\n".join(map(printable, lines[:-1])))  # noqa: T201 - the answer of the command
    if arguments.page is not None:
        _write_page(validations, arguments)


def _plain(validations: list[Validation], *, alone: bool) -> dict[str, Any]:
    """One object: the answer to the only file that was given, or answers by the names of files."""
    if alone:
        return {"testbed": "simulated", **validations[0].answer.plain}
    return {
        "testbed": "simulated",
        "references": {each.name: each.answer.plain for each in validations},
    }


def _check_page(arguments: argparse.Namespace) -> None:
    """Check, before minutes of predicting, that the page can be written."""
    if arguments.json:
        raise ConfigError("--page: goes without --json; leave one of them out.")
    from kareus.evidence.page import is_page  # noqa: PLC0415 - most calls write no page

    check_files(arguments, [(arguments.page, OutputKind("a page of kareus validate", is_page))])


def _write_page(validations: list[Validation], arguments: argparse.Namespace) -> None:
    from kareus.artifacts.files import write_text  # noqa: PLC0415 - as above
    from kareus.evidence.page import fidelity_page  # noqa: PLC0415
    from kareus.report.page import page_html  # noqa: PLC0415

    page = fidelity_page(validations, arguments.overrides)
    write_text(arguments.page, page_html(page))
    print(f"\n{printable(str(arguments.page))}: written")  # noqa: T201
