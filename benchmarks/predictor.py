"""One answer to what an iteration costs: measured iterations by the API, by the adviser, by `validate` and by plans.

    python benchmarks/predictor.py --json [--reference MORE.csv ...] [--plans 20]

Every row of the files is predicted by `kareus.predict`; beside that stand the price that `kareus advise` compares
layouts with, the prediction of `kareus validate`, and, for some rows, the baseline of a plan on the simulated testbed
with exact instruments. Printed are the largest differences, the errors by family, the shares of rows
within the printed intervals, and how predictions order the layouts of a training.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import kareus
from kareus.adviser.predictions import LayoutPredictor
from kareus.adviser.prices import InstructionPrices
from kareus.errors import ConfigError
from kareus.evidence import shipped_files
from kareus.evidence.iterations import Scored, answer_iterations, errors_of
from kareus.pipeline.compare import THROUGHPUT_BASELINE, max_throughput_plan
from kareus.pipeline.methods import method_named
from kareus.plans.planning import plan_tables
from kareus.prediction.lines import read_lines
from kareus.prediction.measured import MeasuredWorkloads
from kareus.prediction.rows import read_usable_iterations
from kareus.search.config import SampleSizes
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from ranking import ranking_of

CONFIG = Path("config")
MOST_PLANNED = 4096
"""Instructions of the largest row that is planned."""


def scored_rows(path: Path, every: int) -> tuple[list[Scored], list[str]]:
    """Return the rows of a file, each predicted by the API, and the reasons why others are not."""
    _, lines = read_lines(path)
    rows, refusals = read_usable_iterations(lines, path)
    workloads = MeasuredWorkloads((), CONFIG)
    scored, refused = [], [refusal.reason for refusal in refusals]
    for row in rows[::every]:
        try:
            workload = workloads.of(row)
            scored.append(Scored(row, workload, kareus.predict(workload)))
        except ConfigError as error:
            refused.append(str(error))
    return scored, refused


def of_adviser(scored: Sequence[Scored]) -> float:
    """Return the largest relative difference of time or energy from the price of the same layout in the adviser."""
    return max(map(_from_adviser, scored))


def _from_adviser(row: Scored) -> float:
    price, _ = LayoutPredictor(row.workload, InstructionPrices(row.workload)).sequential(row.workload)
    ours = row.predicted
    return max(abs(price.time_s / ours.time_s - 1), abs(price.energy_j / ours.energy_j - 1))


def of_validate(scored: Sequence[Scored]) -> float:
    """Return the largest relative difference of time from what `validate` predicts for the same rows."""
    answer = answer_iterations([row.row for row in scored], (), CONFIG)
    pairs = zip(scored, answer.scored, strict=True)
    return max(abs(theirs.predicted.time_s / ours.predicted.time_s - 1) for ours, theirs in pairs)


def of_plans(scored: Sequence[Scored], count: int) -> dict[str, float]:
    """Return the largest differences of time and energy from baselines of plans, of rows as different as can be."""
    chosen = spread([row for row in scored if _instructions(row.workload) <= MOST_PLANNED])[:count]
    times, energies = [], []
    for row in chosen:
        plans = plan_tables(exactly_measured(row.workload), (method_named(THROUGHPUT_BASELINE),)).iteration
        baseline = max_throughput_plan(plans, THROUGHPUT_BASELINE)
        times.append(abs(baseline["time_s"] / row.predicted.time_s - 1))
        energies.append(abs(baseline["energy_j"] / row.predicted.energy_j - 1))
    kinds = len({_kind(row.workload) for row in chosen})
    return {"rows": len(chosen), "kinds": kinds, "time_pct": 100 * max(times), "energy_pct": 100 * max(energies)}


def spread(scored: Sequence[Scored]) -> list[Scored]:
    """Return all rows, first one of each kind, then a second one; that in the middle of a kind's is its first."""
    kinds: dict[tuple[object, ...], list[Scored]] = {}
    for row in scored:
        kinds.setdefault(_kind(row.workload), []).append(row)
    for rows in kinds.values():
        rows.insert(0, rows.pop(len(rows) // 2))
    return [row for turn in zip_longest(*kinds.values()) for row in turn if row is not None]


def _kind(workload: Workload) -> tuple[object, ...]:
    layout = workload.parallelism
    degrees = tuple(degree > 1 for degree in (layout.dp, layout.tp, layout.pp, layout.cp, workload.chunks))
    shared = (layout.sharding, layout.sequence_parallel)
    return workload.gpu.name, workload.software.name, workload.precision, workload.recomputation, *degrees, *shared


def exactly_measured(workload: Workload) -> Workload:
    """Return the workload on a testbed whose instruments have no noise, and a counter without a period to wait for.

    A baseline is measured whole: of each partition, of which it has none, one candidate is enough.
    """
    testbed = replace(workload.testbed, time_noise=0.0, power_noise=0.0, counter_period_s=1e-6)
    least, (random,) = SampleSizes(initial=1, max_rounds=0, batch=1), compose(["search=random"], CONFIG)
    search = replace(random.workload.search, small=least, medium=least, large=least)
    return replace(workload, testbed=testbed, protocol=replace(workload.protocol, settle_s=0.0), search=search)


def _instructions(workload: Workload) -> int:
    return 2 * workload.parallelism.pp * workload.chunks * workload.num_microbatches


def compared(paths: Sequence[Path], every: int, plans: int) -> dict[str, Any]:
    """Return all figures."""
    files = [scored_rows(path, every) for path in paths]
    scored, refused = [row for rows, _ in files for row in rows], [reason for _, rows in files for reason in rows]
    errors = errors_of(scored)
    single = ranking_of(scored, "vtrain-single") if every == 1 else None
    return {
        "rows": len(scored),
        "refused": len(refused),
        "first_refusal": refused[0] if refused else None,
        "advise_difference": of_adviser(scored),
        "validate_difference": of_validate(scored),
        **({"plan_difference": of_plans(scored, plans)} if plans else {}),
        "files_mape_pct": {p.name: errors_of(rows).time_mape_pct for p, (rows, _) in zip(paths, files, strict=True)},
        "mape_pct": dict(errors.by_family),
        "within_90_pct": dict(errors.within_90_pct),
        **(single.figures if single and single.groups else {}),
    }


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, nargs="*", default=[], help="further files of measured iterations")
    parser.add_argument("--every", type=int, default=1, help="take every n-th row")
    parser.add_argument("--plans", type=int, default=0, help="rows that are planned, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    figures = compared([shipped_files()["training_iterations"], *arguments.reference], arguments.every, arguments.plans)
    print(json.dumps(figures) if arguments.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
