"""What a plan saves in each trainer, by layout: a row for each trainer and training, then the same in short.

    python benchmarks/trainers.py               # all rows, minutes
    python benchmarks/trainers.py --part 8B     # those of one training; with --write its column of README.md
    python benchmarks/trainers.py --layouts     # the table of docs/howto/trainers.md, at once; with --write there

Every row asks `kareus advise` for the layout of its kind, plans that on the simulated testbed for the software of its
trainer, takes the plans of least energy of what the trainer obeys, within the time of the same software's own
execution in the same layout and a little more, and compares them with that. Rows of sharded weights come again
beside one clock for each step, and with the exchanges of weights that suit them best. Nothing is measured.
"""

import argparse
import itertools
import logging
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import kareus
from doc_tables import ROOT, put
from kareus.adviser.layouts import layout_of
from kareus.adviser.order import FULL_SHARE
from kareus.model.parallelism import Sharding
from kareus.pareto import AS_FAST
from kareus.pipeline.compare import OURS, THROUGHPUT_BASELINE, max_throughput_plan
from kareus.pipeline.methods import METHODS
from kareus.pipeline.one_clock import one_clock_costs
from kareus.plans.build import plan_of_row
from kareus.plans.exchanges import exchange_words, with_best_exchanges
from kareus.plans.frontiers import Frontiers
from kareus.plans.planning import plan_tables, quietly
from kareus.software.trainers import ClockPace, ObeyingTrainer, trainers
from kareus.workload.config import Workload
from kareus.workload.divisibility import divisors
from kareus.workload.memory import estimate_memory
from kareus.workload.slices import cut

PAGE = ROOT / "docs/howto/trainers.md"
LAYOUT_HEADS = (
    "| trainer | obeys | make the plan | turn it on | `kareus export` |",
    "| --- | --- | --- | --- | --- |",
)
"""Page and head of the table of commands."""
SHORT_HEADS = (
    "| trainer | 3B, 16 A100, batch 64 | 8B, 8 H100, batch 128 | 70B, 64 H100, batch 512 |",
    "| --- | --- | --- | --- |",
)
"""Head of the table in README.md, whose columns are those of `JOBS`."""
NOTHING_TO_SEARCH = ("search.initial=1", "search.most=1")
"""For trainers that run instructions whole, whose plans have nothing of what a search finds."""
TWO_DIGITS = 9.95
"""Percent from which the short table has no tenths."""
SHARES = {"fastest": 0.0, "in the same time": 1 + AS_FAST, "2 % slower": 1.02, "5 % slower": 1.05}
"""Times that plans may take, of the trainer's own execution."""


class Job(NamedTuple):
    """A training, for which `kareus advise` chooses layouts."""

    title: str
    overrides: str
    gpus: int
    global_batch: int
    megatron: str
    """Software of Megatron on this GPU."""


JOBS = {
    "3B": Job("Llama 3.2 3B, 16 A100 40GB", "model=llama3.2-3b gpu=a100-sxm4-40gb", 16, 64, "megatron-paper"),
    "8B": Job("Llama 3.1 8B, 8 H100", "model=llama3.1-8b gpu=h100-sxm5-80gb", 8, 128, "megatron-core"),
    "70B": Job("Llama 3.3 70B, 64 H100", "model=llama3.3-70b gpu=h100-sxm5-80gb", 64, 512, "megatron-core"),
}
KINDS = {
    "any": "",
    "1F1B": "schedule=1f1b pp={shares},{gpus}",
    "interleaved": "schedule=interleaved pp={shares},{gpus}",
    "FSDP": "pp=1 sharding=full dp={gpus} shards={gpus}",
    "HSDP": "pp=1 sharding=full dp={gpus} shards={shares}",
}
"""Kinds of layouts, as constraints of `kareus advise`; shares are the divisors of the GPUs between."""
TRAINERS = (
    ("megatron-core", "Megatron-Core", "any", "{megatron}"),
    ("megatron-core", "Megatron-Core, 1F1B", "1F1B", "{megatron}"),
    ("megatron-core", "Megatron-Core, interleaved", "interleaved", "{megatron}"),
    ("torchtitan", "torchtitan, 1F1B", "1F1B", "torchtitan"),
    ("torchtitan", "torchtitan, FSDP2", "FSDP", "torchtitan"),
    ("torchtitan", "torchtitan, HSDP", "HSDP", "torchtitan"),
    ("hugging-face", "Hugging Face Trainer, FSDP", "FSDP", "llm-foundry"),
    ("kareus", "Kareus' engine", "any", "{megatron}"),
)
"""Trainer, its name, what kind of layout, software."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A trainer of a training, with a kind of layout."""

    training: str
    trainer: str
    name: str
    kind: str
    software: str

    @property
    def question(self) -> tuple[str, ...]:
        """What `kareus advise` is asked: overrides, and constraints of layouts."""
        job = JOBS[self.training]
        shares = ",".join(str(number) for number in divisors(job.gpus)[1:-1])
        kind = KINDS[self.kind].format(gpus=job.gpus, shares=shares)
        return (*job.overrides.split(), f"software={self.software}", *kind.split())


def advised(row: Row) -> tuple[str, ...]:
    """Return the overrides of the layout that `kareus advise` answers with."""
    job = JOBS[row.training]
    return kareus.advise(row.question, gpus=job.gpus, global_batch=job.global_batch, trainer=row.trainer).overrides


def rows(part: str | None) -> Iterator[Row]:
    """Yield the rows of the table."""
    for training, job in JOBS.items():
        for trainer, name, kind, software in TRAINERS:
            if part in (None, training):
                driven = software.format(megatron=job.megatron)
                yield Row(training=training, trainer=trainer, name=name, kind=kind, software=driven)


class Way(NamedTuple):
    """What a trainer may run, and what that takes: seconds, joules, and changes of clock in each stage."""

    name: str
    costs: list[tuple[float, float, str]]

    def saved(self, share: float, baseline: dict[str, float]) -> tuple[str, str]:
        """Return what is saved in a multiple of the time, or as fast as can be, in words; and the changes of clock."""
        most_s = max(share * baseline["time_s"], (1 + AS_FAST) * min(time_s for time_s, _, _ in self.costs))
        within = [cost for cost in self.costs if cost[0] <= most_s]
        time_s, energy_j, changes = min(within, key=lambda cost: cost[1])
        time, energy = 100 * (1 - time_s / baseline["time_s"]), 100 * (1 - energy_j / baseline["energy_j"])
        return f"{time:z.1f} % time, {energy:z.1f} % energy", changes

    def in_short(self, baseline: dict[str, float]) -> str:
        """Return the percent of energy saved in the same time and in the most, as README.md has them."""
        texts = (self.saved(SHARES[share], baseline)[0] for share in ("in the same time", "5 % slower"))
        percents = [float(text.split(", ")[1].split()[0]) for text in texts]
        return ", ".join(f"{value:z.1f}" if value < TWO_DIGITS else f"{value:.0f}" for value in percents)


def layout_words(workload: Workload, baseline: dict[str, float]) -> str:
    """Return the degrees of a layout in short, a star where it nearly fills memory, and its seconds without a plan."""
    layout = layout_of(workload)
    degrees = layout.degrees_words.replace(" ", "").replace(",", "-")
    chunks = f"-chunks{layout.chunks}" if layout.chunks > 1 else ""
    shards = f"-shards{layout.shards}" if layout.shards else ""
    is_full = estimate_memory(workload).total_gib > FULL_SHARE * workload.gpu.memory_gib
    return f"{degrees}{shards}{chunks}{'*' if is_full else ''}, {baseline['time_s']:#.3g} s"


@cache
def ways(overrides: tuple[str, ...], name: str) -> tuple[Workload, dict[str, float], list[Way]]:
    """Return a layout, a trainer's own execution, and what it may run: one clock a step, what it obeys, NCCL's SMs."""
    trainer = trainers()[name]
    (workload,) = kareus.resolve(overrides)
    frontiers = planned(workload, trainer)
    baseline = max_throughput_plan(frontiers.iteration, THROUGHPUT_BASELINE)
    clocks = one_clock_costs(cut(workload, "pipeline"), frontiers.microbatch)
    one_clock = Way("one clock for each step", [(clock.time_s, clock.energy_j, "0") for clock in clocks])
    if trainer.clocks is ClockPace.STEP:
        return workload, baseline, [one_clock]
    chosen = [one_clock, Way(trainer.obeys, costs(workload, trainer, frontiers))]
    if is_sharded(workload) and (limited := with_best_exchanges(workload)) != workload:
        same = f"the same, and {exchange_words(limited)}"
        chosen.append(Way(same, costs(limited, trainer, planned(limited, trainer))))
    return workload, baseline, chosen


def is_sharded(workload: Workload) -> bool:
    """Whether replicas of whole models share out their weights."""
    return workload.parallelism.pp == 1 and workload.parallelism.sharding is Sharding.FULL


def planned(workload: Workload, trainer: ObeyingTrainer) -> Frontiers:
    """Return the frontiers of what a trainer can run, and of its own execution."""
    needed = {THROUGHPUT_BASELINE, trainer.method}
    with quietly():
        return plan_tables(workload, [method for method in METHODS if method.name in needed]).frontiers


def costs(workload: Workload, trainer: ObeyingTrainer, frontiers: Frontiers) -> list[tuple[float, float, str]]:
    """Return what each plan of a trainer takes."""
    rows_of_plans = frontiers.plans(trainer.method).iter_rows(named=True)
    plans = [plan_of_row(workload, "row", "fastest", plan, frontiers) for plan in rows_of_plans]
    return [
        (p.prediction.time_s, p.prediction.energy_j, ", ".join(str(s.clock_changes) for s in p.stages)) for p in plans
    ]


def layout_rows() -> Iterator[str]:
    """Yield what to type for each trainer, with a pipeline and without one."""
    for trainer in trainers().values():
        method = "" if trainer.method == OURS else f" --method {trainer.method}"
        command = f"`kareus select fastest WORKLOAD{method}`"
        if trainer.clocks is ClockPace.STEP:
            command = "none: chosen in the first steps"
        title = f"[{trainer.title}]({os.path.relpath(ROOT / 'docs' / trainer.described, PAGE.parent)})"
        line = trainer.turn_on("plan.json", "min-energy")[-1]
        yield f"| {title} | {trainer.obeys} | {command} | `{line}` | `--format {trainer.export}` |"


def main() -> None:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=sorted(JOBS), help="rows of one training")
    parser.add_argument("--layouts", action="store_true", help="what to type, by trainer")
    parser.add_argument("--write", action="store_true", help="put that, or the short table, into its page")
    arguments = parser.parse_args()
    part = arguments.part
    if arguments.layouts:
        print("\n".join((*LAYOUT_HEADS, *layout_rows())))
        if arguments.write:
            put(PAGE, LAYOUT_HEADS, list(layout_rows()))
        return
    readme = (ROOT / "README.md").read_text()
    if part and (new := [name for _, name, *_ in TRAINERS if name not in cells_by_trainer(readme)]):
        parser.exit(2, f"--part {part}: README.md has no other columns of {', '.join(new)}; run without --part.\n")
    title("training", "trainer", "layout", "obeys", *SHARES, "changes of clock", "command")
    short: dict[str, dict[str, str]] = {}
    alone: list[list[str]] = []
    for row in rows(part):
        trainer, job = trainers()[row.trainer], JOBS[row.training]
        overrides = (*advised(row), *(() if trainer.overlaps else NOTHING_TO_SEARCH))
        workload, baseline, chosen = ways(overrides, row.trainer)
        best, layout = chosen[min(1, len(chosen) - 1)], layout_words(workload, baseline)
        saved = [best.saved(share, baseline) for share in SHARES.values()]
        method = "" if trainer.method == OURS else f" --method {trainer.method}"
        command = f"kareus plan {shlex.join(overrides)}{method}"
        line([job.title, row.name, layout, best.name, *(text for text, _ in saved), saved[0][1], f"`{command}`"])
        short.setdefault(row.name, {})[row.training] = f"{best.in_short(baseline)} ({layout})"
        if is_sharded(workload):
            alone += [
                [job.title, row.name, layout, way.name, *(way.saved(share, baseline)[0] for share in SHARES.values())]
                for way in chosen
            ]
    brief = list(short_rows(readme, short))
    print("\n".join(("", *SHORT_HEADS, *brief)))
    if arguments.write:
        put(ROOT / "README.md", SHORT_HEADS, brief)
    title("training", "sharded weights", "layout", "what is set", *SHARES)
    for texts in alone:
        line(texts)


def short_rows(readme: str, short: dict[str, dict[str, str]]) -> Iterator[str]:
    """Yield the rows of README.md with the columns that were made anew, by trainer and training."""
    before = cells_by_trainer(readme)
    for name, made in short.items():
        yield f"| {name} | " + " | ".join((before.get(name, {}) | made)[training] for training in JOBS) + " |"


def cells_by_trainer(readme: str) -> dict[str, dict[str, str]]:
    """Return the columns that README.md has, by trainer and training."""
    lines = readme.splitlines()
    rows = itertools.takewhile(lambda text: text.startswith("|"), lines[lines.index(SHORT_HEADS[0]) + 2 :])
    cells = [[cell.strip() for cell in text.strip("|").split("|")] for text in rows]
    return {name: dict(zip(JOBS, texts, strict=True)) for name, *texts in cells}


def title(*heads: str) -> None:
    """Print the heads of a table."""
    print("\n| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads), flush=True)


def line(cells: list[str]) -> None:
    """Print a row of it."""
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # searches of one measurement end early, as is meant here
    main()
