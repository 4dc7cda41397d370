"""What every move and every constant of the solver of iteration frontiers brings.

    python benchmarks/local_search.py [--quick] [--table FILE]

Leaves out one part, or halves or doubles one constant, and prints the gaps of the plans to the optimum of the
relaxation (mean and largest), how many plans became cheaper and dearer, and the CPU time. Pipelines are 1F1B, of 2 to 8
stages and 4 to 64 microbatches, in three groups: short ones (up to 64 instructions), medium ones (up to 187) and long
ones. Their points are those of `kareus` for the default workload, searched exhaustively on
the simulated testbed; with `--table results/<workload>/frontier/microbatch.parquet`, a table of the default workload,
also those of `kareus` and `sequential` there.

`other optima of the relaxation` is the noise: its linear programs have many optima, and which one the simplex method
ends in depends on where it starts.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from iteration.ablation import GROUPS, Case, Scored, Study, case, studies
from iteration.instances import Instances

SIZES = (
    *((2, 4), (2, 8), (2, 16), (4, 4), (4, 8)),
    *((2, 24), (2, 32), (4, 16), (8, 8)),
    *((2, 64), (4, 32), (8, 16)),
)
"""Stages and microbatches: short pipelines, then medium ones, then long ones."""
QUICK_SIZES = ((2, 4), (2, 8), (4, 8), (2, 32), (4, 16), (4, 32))
SAME = 1e-9
"""Difference of gaps that is a rounding error."""


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few pipelines, and no halved or doubled constants")
    parser.add_argument("--table", type=Path, metavar="FILE", help="a microbatch.parquet of the default workload")
    arguments = parser.parse_args()
    sources = [Instances()]
    if arguments.table:
        sources += [Instances(method, arguments.table) for method in ("kareus", "sequential")]
    sizes = QUICK_SIZES if arguments.quick else SIZES
    cases = [case(own.problem(*size)) for size in sizes for own in sources]
    print(f"{sources[0].label}; {len(cases)} pipelines; gaps in %, CPU time in s")
    heads = (f" | {group + ': mean':>12} largest cheaper dearer       s" for group in GROUPS)
    print(f"{'':<32}" + "".join(heads))
    for study in studies():
        print(study.title)
        _report(study, cases, is_quick=arguments.quick)


def _report(study: Study, cases: Sequence[Case], *, is_quick: bool) -> None:
    """Print a line for each variant; cheaper and dearer are plans beside those of the first one."""
    first: list[Scored | None] = []
    for variant in study.variants:
        if variant.is_scaled and is_quick:
            continue
        with variant.applied():
            scored = [study.score(own) if own.group in variant.groups else None for own in cases]
        first = first or scored
        columns = (
            _column([(new, old) for own, new, old in zip(cases, scored, first, strict=True) if own.group == group])
            for group in GROUPS
        )
        print(f"  {variant.name:<30}" + "".join(f" | {column:>42}" for column in columns), flush=True)


def _column(pairs: Sequence[tuple[Scored | None, Scored | None]]) -> str:
    """Return the figures of one group of pipelines, each with its score and that of the first variant."""
    both = [(new, old) for new, old in pairs if new is not None and old is not None]
    if not both:
        return ""
    gaps = [gap for new, _ in both for gap in new.gaps]
    changes = [change for new, old in both for change in new.gaps - old.gaps]
    cheaper, dearer = sum(change < -SAME for change in changes), sum(change > SAME for change in changes)
    return (
        f"{100 * sum(gaps) / len(gaps):>11.4f} {100 * max(gaps):>7.3f} {cheaper:>7} {dearer:>6}"
        f" {sum(new.cpu_s for new, _ in both):>7.2f}"
    )


if __name__ == "__main__":
    main()
