"""Fit two numbers of a software to measured iterations of mixtures of experts, and predict each model left out.

    python benchmarks/expert_iterations.py moe_iterations.csv

The numbers are `expert_imbalance` and `expert_kernels` of a software. The fit takes those of a grid that make the
mean over models of the mean absolute error least; a model left out is predicted with those of the others. Rows that are
the same training are predicted once.
"""

import argparse
from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

from kareus.errors import ConfigError
from kareus.prediction.lines import read_lines
from kareus.prediction.measured import MeasuredWorkloads
from kareus.prediction.rows import MeasuredIteration, read_usable_iterations
from kareus.prediction.workload_prediction import predict_time_s
from kareus.workload.config import Workload

IMBALANCES = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3)
KERNELS = (0, 100, 150, 200, 250, 300)
Numbers = tuple[float, int]
Errors = dict[str, list[float]]
"""Absolute errors by model."""


def main() -> None:
    """Print the errors by model, in the fit and left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--config-dir", type=Path, default=Path("config"))
    arguments = parser.parse_args()
    data = measured(arguments.file, arguments.config_dir)
    errors = {numbers: errors_with(data, numbers) for numbers in product(IMBALANCES, KERNELS)}
    models = sorted({row.architecture for row, _ in data})
    whole = best(errors, models)
    print(f"{len(data)} rows; fit: expert_imbalance {whole[0]:g}, expert_kernels {whole[1]}")
    left_out = {}
    for model in models:
        others = best(errors, [one for one in models if one != model])
        left_out[model] = fmean(errors[others][model])
        own = 100 * fmean(errors[whole][model])
        print(f"{model:<20} {len(errors[whole][model]):>3} rows {own:5.1f} %, left out {100 * left_out[model]:5.1f} %"
              f" (imbalance {others[0]:g}, kernels {others[1]})")  # fmt: skip
    print(f"mean over models {100 * mean_of(errors[whole], models):.1f} %, "
          f"left out {100 * fmean(left_out.values()):.1f} %")  # fmt: skip


def measured(path: Path, config_dir: Path) -> list[tuple[MeasuredIteration, Workload]]:
    """Return the rows of experts that can be represented, with what they ran."""
    _, lines = read_lines(path)
    rows, refused = read_usable_iterations(lines, path)
    workloads, data = MeasuredWorkloads((), config_dir), []
    reasons = [refusal.reason for refusal in refused]
    for row in rows:
        try:
            if row.architecture:
                data.append((row, workloads.of(row)))
        except ConfigError as error:
            reasons.append(f"line {row.line}: {error}")
    print("\n".join(["refused:", *reasons]))
    return data


def errors_with(data: list[tuple[MeasuredIteration, Workload]], numbers: Numbers) -> Errors:
    """Return the errors of predictions with these numbers."""
    known: dict[str, float] = {}
    errors: Errors = defaultdict(list)
    for row, workload in data:
        training = repr(replace(row, line=0, iteration_time_s=1.0))
        if training not in known:
            software = replace(workload.software, expert_imbalance=numbers[0], expert_kernels=numbers[1])
            known[training] = predict_time_s(replace(workload, software=software))
        errors[row.architecture].append(abs(known[training] / row.iteration_time_s - 1))
    return errors


def mean_of(errors: Errors, models: list[str]) -> float:
    """Return the mean over models of the mean error of a model's rows."""
    return fmean(fmean(errors[model]) for model in models)


def best(errors: dict[Numbers, Errors], models: list[str]) -> Numbers:
    """Return the numbers with which the mean over models is least."""
    return min(errors, key=lambda numbers: mean_of(errors[numbers], models))


if __name__ == "__main__":
    main()
