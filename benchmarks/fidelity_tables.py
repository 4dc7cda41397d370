"""The tables of docs/trust.md, docs/research/fidelity.md and fidelity-data.md: how far predictions are off today.

    python benchmarks/fidelity_tables.py            # prints them
    python benchmarks/fidelity_tables.py --write    # and puts them into the pages

Run it after each fit. The first page has what to expect of a GPU and a software, the second the errors of what was left
out of fits, the third those of each kind of data that ships, in sample and left out. It takes a minute or two, for the
iterations that ship.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kareus.adviser.unmeasured import MEASURED_FIRST, MEASURED_TIES
from kareus.artifacts.shipped import config_folder
from kareus.evidence import shipped_files
from kareus.evidence.iterations import IterationAnswer, answer_iterations, left_out_pct
from kareus.evidence.kernels.answer import KernelAnswer, answer_kernels
from kareus.evidence.kernels.errors import shape_errors
from kareus.evidence.kernels.rows import kind_of, read_kernels
from kareus.evidence.node_power import PowerAnswer, answer_power
from kareus.gpu_model.trust import known_kernel_uncertainty, known_uncertainty
from kareus.graph.number_formats import Precision
from kareus.prediction.errors import DENSE, LEAST_ROWS, PairError, numbers_for, pair_errors, pair_of, spread_percent
from kareus.prediction.lines import read_lines
from kareus.prediction.rows import read_iterations
from kareus.software.record import GROUP
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.overrides import options

CONFIG_DIR = config_folder()

DOCS = Path(__file__).parents[1] / "docs"
TRUST, PAIRS, KERNELS, FAMILIES = (
    (
        "| GPU: software | so | time: 9 of 10 within | energy | what plans save | measured on |",
        "| --- | --- | --- | --- | --- | --- |",
    ),
    (
        "| GPU | software | measured | left out | 90 % within: time | energy | mean error of time | from |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | --- |",
    ),
    (
        "| kernels | rows | time | left out | power | left out |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ),
    (
        "| family | GPUs | rows | time | left out |",
        "| --- | --- | ---: | ---: | ---: |",
    ),
)
"""Heads of the tables."""
EXPERTS = "experts"
KINDS = {
    "kernel_gemm": "GEMM",
    "kernel_attention": "attention",
    "kernel_nccl": "collectives",
    "kernel_moe": EXPERTS,
}
"""Files with kernels, and what the files of GPUs call them."""
PLANNED_ROWS = "105 planned iterations, 5 workloads"
"""Planned frontiers that the A100 40GB was fitted to, which do not ship."""
RAN = {
    "megatron-core": "NeMo, sharding=optimizer",
    f"megatron-core, {EXPERTS}": "NeMo, Megatron-Bridge, Megatron-LM, all but 1 sharding=optimizer",
    "megatron-2022": "Megatron-LM, sharding=none",
    "vtrain": "sums of Megatron's traces, sharding=none",
    "llm-foundry": "LLM Foundry, FSDP",
}
"""By software, and for models with experts in bf16 where that differs: the trainer that ran, and what replicas share
(columns `family`, `sharding` and `source` of the files of iterations)."""
POWER_GPUS = ("h100-sxm5-80gb",)
"""Options of the GPUs in nodes whose power was measured."""
MOST_QUOTED, MOST_RANKED = 10.0, 20.0
"""Percent of error up to which seconds may be quoted, and up to which layouts may be ranked without a measurement."""
NOT_MEASURED = "not measured"
MODEL_WITH_EXPERTS = "mixtral-8x7b"


def main() -> None:
    """Print the tables, or put them into their pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put them into the pages")
    tables = {
        TRUST: ("trust.md", list(trust_rows())),
        PAIRS: ("research/fidelity.md", list(pair_rows(power_answer()))),
        KERNELS: ("research/fidelity-data.md", list(kernel_rows({name: kernel_answer(name) for name in KINDS}))),
        FAMILIES: ("research/fidelity-data.md", list(family_rows(iteration_answer()))),
    }
    write = parser.parse_args().write
    for heads, (name, rows) in tables.items():
        print("\n".join([*heads, *rows]))
        if write:
            page = DOCS / name
            page.write_text(replaced(page.read_text(encoding="utf-8"), heads, rows), encoding="utf-8")


def trust_rows() -> Iterator[str]:
    """Yield the table of what to expect: the errors that `kareus predict` prints, and what may be done with them."""
    unmeasured: dict[str, list[str]] = {}
    for option in options("gpu", CONFIG_DIR):
        usual = composed(option)
        names = [pair.software for pair in pair_errors() if pair.gpu == usual.gpu.name]
        for software in sorted({usual.software.name, *names}, key=lambda name: (name != usual.software.name, name)):
            workload = composed(option, software)
            planned, pair = known_uncertainty(workload.gpu), pair_of(workload)
            if planned is not None:
                yield _trust_row(usual.gpu.name, software, planned.time_percent, planned.energy_percent, PLANNED_ROWS)
            elif pair is not None:
                yield _trust_row(usual.gpu.name, software, pair.percent_90, None, _iterations_of(pair), pair.rows)
                others = [pair for pair in pair_errors() if (pair.gpu, pair.software) == (usual.gpu.name, software)]
                for pair in others:
                    if others_of(pair) and pair.rows >= LEAST_ROWS and _is_of_today(pair, option):
                        name = f"{software}{others_of(pair)}"
                        yield _trust_row(usual.gpu.name, name, pair.percent_90, None, _iterations_of(pair), pair.rows)
            elif software == usual.software.name:
                unmeasured.setdefault(software, []).append(usual.gpu.name)
    for software, gpus in unmeasured.items():
        yield _trust_row(", ".join(gpus), software, None, None, "nothing")
    yield _trust_row("any", ", ".join(never_measured()), None, None, "nothing")
    yield _trust_row("any other", f"any, {EXPERTS}", None, None, "nothing", models=EXPERTS)


def _trust_row(
    gpu: str,
    software: str,
    time: float | None,
    energy: float | None,
    source: str,
    rows: int = LEAST_ROWS,
    models: str = DENSE,
) -> str:
    """Return a row: errors in percent where they were measured, else what `kareus advise` takes; what follows."""
    if time is None:
        times = f"{NOT_MEASURED}: take {spread_percent(models)[1]:.1f} %"
    else:
        times = f"{'all ' if rows < LEAST_ROWS else ''}{time:.1f} %"
    if time is None:
        so = f"rank layouts: measure {MEASURED_FIRST}; quote: no"
    elif rows < LEAST_ROWS:
        so = f"rank layouts: measure {MEASURED_TIES}; quote kWh: no"
    else:
        ranked = "yes" if time <= MOST_RANKED else f"measure {MEASURED_TIES}"
        seconds, joules = (_quoted(percent) for percent in (time, energy))
        quoted = f"seconds, kWh: {joules}" if seconds == joules else f"seconds: {seconds}; kWh: {joules}"
        so = f"rank layouts: {ranked}; quote {quoted}"
    energies = NOT_MEASURED if energy is None else f"{energy:.1f} %"
    saved = NOT_MEASURED if energy is None else "as in the paper's tables, in sample"
    return f"| {gpu}: {software} | {so} | {times} | {energies} | {saved} | {source} |"


def _quoted(percent: float | None) -> str:
    """Return whether a figure of this error may be quoted; none of an error that was not measured may."""
    return "yes" if percent is not None and percent <= MOST_QUOTED else "no"


def others_of(pair: PairError) -> str:
    """Return what a pair's errors are of, where they are not of dense models in bf16."""
    precision = "" if pair.precision == Precision.BF16 else f", {pair.precision}"
    return precision + (f", {pair.models}" if pair.models == EXPERTS else "")


def _iterations_of(pair: PairError) -> str:
    ran = RAN.get(f"{pair.software}, {pair.models}") if pair.precision == Precision.BF16 else None
    return f"{pair.rows} iterations, {pair.groups} models: {ran or RAN[pair.software]}"


def pair_rows(power: PowerAnswer) -> Iterator[str]:
    """Yield the table of GPUs and software: what was measured with both, else that nothing was."""
    for option in options("gpu", CONFIG_DIR):
        usual = composed(option)
        gpu = usual.gpu
        planned, kernels = known_uncertainty(gpu), known_kernel_uncertainty(gpu)
        pairs = [pair for pair in pair_errors() if pair.gpu == gpu.name and _is_of_today(pair, option)]
        pairs.sort(key=lambda pair: pair.software != usual.software.name)
        if planned is not None:
            errors = f"{planned.time_percent:.1f} % | {planned.energy_percent:.1f} % |"
            yield _row(gpu.name, usual.software.name, "planned iterations", "workloads", errors, "", PLANNED_ROWS)
        elif usual.software.name not in {pair.software for pair in pairs if not others_of(pair)}:
            yield _row(gpu.name, usual.software.name, "nothing", "", f"{NOT_MEASURED} | {NOT_MEASURED} |", "", "")
        yield from map(_pair_row, pairs)
        if option in POWER_GPUS:
            yield _power_row(gpu.name, power)
        if kernels is not None:
            energy = NOT_MEASURED if kernels.energy_percent is None else f"{kernels.energy_percent:.1f} %"
            errors = f"{kernels.time_percent:.1f} % | {energy} |"
            yield _row(gpu.name, "any", "single kernels", "shapes", errors, "", f"{_kernels_of(option):,} kernels")
    rest = ", ".join(never_measured())
    yield _row("any", rest, "nothing", "", f"{NOT_MEASURED} | {NOT_MEASURED} |", "", "")


def _row(gpu: str, software: str, measured: str, left_out: str, errors: str, mean: str, source: str) -> str:
    return f"| {gpu} | {software} | {measured} | {left_out} | {errors} {mean} | {source} |"


def _pair_row(pair: PairError) -> str:
    """Of few rows the largest error counts."""
    left_out = "models" if pair.groups > 1 else "the only model"
    within = f"{pair.percent_90:.1f} %" if pair.rows >= LEAST_ROWS else f"all {pair.percent_90:.1f} %"
    source = f"{pair.rows} row{'s' * (pair.rows > 1)}, {pair.groups} {'models' if pair.groups > 1 else 'model'}"
    errors, mean = f"{within} | {NOT_MEASURED} |", f"{pair.mean_percent:.1f} %"
    return _row(pair.gpu, pair.software + others_of(pair), "iterations", left_out, errors, mean, source)


def _power_row(gpu: str, power: PowerAnswer) -> str:
    errors = f" | power of nodes: mean {power.power_mape_pct:.1f} % |"
    mean, source = f"{power.time_mape_pct:.1f} %", f"{len(power.rows)} rows, 1 model"
    return _row(gpu, "megatron-core, fp8", "iterations, power of nodes", "not fitted", errors, mean, source)


def _is_of_today(pair: PairError, option: str) -> bool:
    """Whether errors are of the numbers that the GPU and the software have now."""
    if pair.software not in options(GROUP, CONFIG_DIR):
        return False
    model = MODEL_WITH_EXPERTS if pair.models == EXPERTS else None
    return pair.made_for == numbers_for(composed(option, pair.software, model))


def never_measured() -> list[str]:
    """Return the software that was measured on no GPU."""
    measured = {pair.software for pair in pair_errors()}
    workloads = [composed(option) for option in options("gpu", CONFIG_DIR)]
    measured |= {workload.software.name for workload in workloads if known_uncertainty(workload.gpu) is not None}
    names = {composed("a100-sxm4-40gb", option).software.name for option in options(GROUP, CONFIG_DIR)}
    return sorted(names - measured)


def composed(gpu: str, software: str | None = None, model: str | None = None) -> Workload:
    """Return a workload of a GPU and a software; without one, that which is usual on the GPU."""
    given = {"software": software, "model": model}
    texts = [f"{group}={option}" for group, option in given.items() if option]
    (composition,) = compose([f"gpu={gpu}", *texts], CONFIG_DIR)
    return composition.workload


def _kernels_of(option: str) -> int:
    """Return the number of kernels of a GPU that ship; the errors of its file are not those of experts."""
    files = [read_lines(shipped_files()[name])[1] for name, kind in KINDS.items() if kind != EXPERTS]
    return sum(line.text("gpu") == option for lines in files for line in lines)


def kernel_rows(answers: Mapping[str, KernelAnswer]) -> Iterator[str]:
    """Yield the table of kernels by GPU, precision, library and kind of run."""
    for name, answer in answers.items():
        left_out = {
            f"{shape.gpu} {shape.group}": shape for shape in shape_errors() if shape.kind is answer.kernels.kind
        }
        for group, errors in answer.by_gpu.items():
            outside = left_out[group]
            cells = [
                _percent(percent)
                for percent in (
                    *(errors.time_mape_pct, outside.time_percent),
                    *(errors.power_mape_pct, outside.power_percent),
                )
            ]
            yield f"| {KINDS[name]}, {group} | {errors.rows:,} | {' | '.join(cells)} |"


def family_rows(answer: IterationAnswer) -> Iterator[str]:
    """Yield the table of families of iterations."""
    for family, percent in answer.errors.by_family.items():
        rows = [score for score in answer.scored if score.row.family == family]
        gpus = ", ".join(sorted({score.row.gpu for score in rows}))
        yield f"| `{family}` | {gpus} | {len(rows)} | {percent:.1f} % | {_percent(left_out_pct(rows))} |"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"


def kernel_answer(name: str) -> KernelAnswer:
    """Return the answer of `validate` to a file with kernels that ships."""
    path = shipped_files()[name]
    header, lines = read_lines(path)
    kind = kind_of(header)
    assert kind is not None
    return answer_kernels(read_kernels(kind, lines, path), (), CONFIG_DIR)


def iteration_answer() -> IterationAnswer:
    """Return the answer of `validate` to the iterations that ship."""
    path = shipped_files()["training_iterations"]
    return answer_iterations(read_iterations(read_lines(path)[1], path), (), CONFIG_DIR)


def power_answer() -> PowerAnswer:
    """Return the answer of `validate` to the runs with power meters that ship."""
    return answer_power(read_lines(shipped_files()["training_power"])[1], (), CONFIG_DIR)


def replaced(text: str, heads: Sequence[str], rows: Sequence[str]) -> str:
    """Return a page with other rows of the table that has these heads."""
    lines = text.splitlines()
    first = lines.index(heads[0]) + len(heads)
    last = next((n for n in range(first, len(lines)) if not lines[n].startswith("|")), len(lines))
    return "\n".join([*lines[:first], *rows, *lines[last:]]) + "\n"


if __name__ == "__main__":
    main()
