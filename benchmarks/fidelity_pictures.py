"""Pictures of docs/research/fidelity-data.md: predicted against measured, by file, as `kareus validate --page` has.

    python benchmarks/fidelity_pictures.py                          # of all that ships
    python benchmarks/fidelity_pictures.py FRONTIERS.csv TABLES.csv # and of these files, which do not ship

Run it after each fit. A test under `pytest -m acceptance` compares the pictures of what ships.
"""

import argparse
import re
from pathlib import Path

from kareus.artifacts.shipped import config_folder
from kareus.evidence import shipped_files
from kareus.evidence.page_errors import POWER, TIME, errors_of
from kareus.evidence.page_figures import comparison_figure, errors_figure
from kareus.evidence.validation import Validation, validate_file
from kareus.report.charts import Figure
from kareus.report.drawing import described, svg_of

CONFIG_DIR = config_folder()

FOLDER = Path(__file__).parents[1] / "docs/pictures"
SUBJECT = "simulated testbed"
MARK = re.compile(
    r'<path transform="translate\(([\d.-]+),([\d.-]+)\)" d="[^"]*" fill="(#\w+)" stroke-width="2" opacity="0.6"/>'
)
RUNS = re.compile(f"(?:{MARK.pattern}){{100,}}")


def main() -> None:
    """Write all pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="*", help="files that do not ship")
    given = {path.stem: path for path in parser.parse_args().files}
    validations = [validate_file(name, path, (), CONFIG_DIR) for name, path in (shipped_files() | given).items()]
    for figure in figures(validations):
        path = FOLDER / f"{figure.name}.svg"
        path.write_text(picture(figure), encoding="utf-8")
        print(path)


def figures(validations: list[Validation]) -> list[Figure]:
    """Return the figures of all answers: errors of what ships, and points of each file."""
    shipped = shipped_files()
    errors = errors_of([validation for validation in validations if validation.name in shipped])
    of = {quantity: [group for group in errors if group.quantity == quantity] for quantity in (TIME, POWER)}
    kinds = list(dict.fromkeys(group.kind for group in errors))
    return [
        *(errors_figure(f"fidelity_errors_{name}", f"Errors of {name}", rows, kinds) for name, rows in of.items()),
        *(comparison_figure(validation, f"fidelity_{validation.name}") for validation in validations),
    ]  # fmt: skip


def picture(figure: Figure) -> str:
    """Return a figure as SVG, the marks of many points as one path for each colour."""
    return described(RUNS.sub(_joined, svg_of(figure, SUBJECT)), figure, SUBJECT)


def _joined(run: re.Match[str]) -> str:
    """Return a run of marks as dots: ends of lines without length, which take a tenth of the space."""
    dots: dict[str, list[str]] = {}
    for x, y, color in MARK.findall(run[0]):
        dots.setdefault(color, []).append(f"M{float(x):.1f},{float(y):.1f}h0")
    return "".join(
        f'<path d="{"".join(paths)}" stroke="{color}" stroke-width="2.8" stroke-linecap="round" opacity="0.6"/>'
        for color, paths in dots.items()
    )


if __name__ == "__main__":
    main()
