"""Errors of what was left out of fits, as the fits wrote them into the files of GPUs and of software.

They hold for the numbers in these files. `kernels/fit_output.py` and `iterations/fit_output.py` write the lines.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from kareus.artifacts.files import read_text

KERNELS = re.compile(
    r"^# measured kernels: (?P<kind>GEMM|attention|collectives)[^,]*, (?P<group>[^:]+): "
    r"time [\d.]+ % \(shapes left out (?P<time>[\d.]+) %\)(?:, power [\d.]+ % \((?P<power>[\d.]+) %\))?$",
    re.MULTILINE,
)
ITERATIONS = re.compile(
    r"^# measured iterations: (?P<group>[^:]+): \d+ rows, time [\d.]+ % \(left out (?P<time>[\d.]+) %\)$", re.MULTILINE
)


def written_left_out(config_dir: Path) -> Mapping[tuple[str, str, str], float]:
    """Return mean absolute percentage errors by kind of data, group of rows and quantity (`time` or `power`).

    Kinds are `GEMM`, `attention`, `collectives` and `iterations`; groups are named as `validate` names them.
    """
    return dict([*_of_kernels(config_dir / "gpu"), *_of_iterations(config_dir / "software")])


def _of_kernels(folder: Path) -> Iterator[tuple[tuple[str, str, str], float]]:
    for path in sorted(folder.glob("*.yaml")):
        for line in KERNELS.finditer(read_text(path)):
            group = f"{path.stem} {line['group']}"
            yield (line["kind"], group, "time"), float(line["time"])
            if line["power"]:
                yield (line["kind"], group, "power"), float(line["power"])


def _of_iterations(folder: Path) -> Iterator[tuple[tuple[str, str, str], float]]:
    for path in sorted(folder.glob("*.yaml")):
        for line in ITERATIONS.finditer(read_text(path)):
            yield ("iterations", line["group"], "time"), float(line["time"])
