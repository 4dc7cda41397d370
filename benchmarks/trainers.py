"""What a plan saves in each trainer, by layout: a row for each trainer and training, then the same in short.

    python benchmarks/trainers.py               # all rows, minutes
    python benchmarks/trainers.py --part 8B     # those of one training; with --write its column of README.md
    python benchmarks/trainers.py --layouts     # the table of docs/howto/trainers.md, at once; with --write there

Every row plans one workload on the simulated testbed for the software of its trainer, takes the plans of least energy
of what the trainer obeys, within the time of the same software's own execution in the same layout and a little more,
and compares them with that. Rows without a pipeline come again beside one clock for each step, and with the
exchanges of weights that suit them best. Nothing is measured.
"""

import argparse
import itertools
import logging
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import kareus
from doc_tables import ROOT, put
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
from kareus.workload.slices import cut

PAGE = ROOT / "docs/howto/trainers.md"
LAYOUT_HEADS = (
    "| trainer | obeys | make the plan | turn it on | `kareus export` |",
    "| --- | --- | --- | --- | --- |",
)
"""Page and head of the table of commands."""
SHORT_HEADS = (
    "| trainer | 3B on 16 A100 | 8B on 8 H100 | 70B on 64 H100 |",
    "| --- | --- | --- | --- |",
)
"""Head of the table in README.md, whose columns are those of `DATA`."""
NOTHING_TO_SEARCH = ("search.initial=1", "search.most=1")
"""For trainers that run instructions whole, whose plans have nothing of what a search finds."""
TWO_DIGITS = 9.95
"""Percent from which the short table has no tenths."""
SHARES = {"fastest": 0.0, "in the same time": 1 + AS_FAST, "2 % slower": 1.02, "5 % slower": 1.05}
"""Times that plans may take, of the trainer's own execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A trainer in a layout."""

    training: str
    trainer: str
    name: str
    layout: str
    """`pipelines` or `sharded`."""
    overrides: tuple[str, ...]


DATA = {
    "3B": ("Llama 3.2 3B, 16 A100 40GB, batch 64", "model=llama3.2-3b gpu=a100-sxm4-40gb"),
    "8B": ("Llama 3.1 8B, 8 H100, batch 128", "model=llama3.1-8b gpu=h100-sxm5-80gb"),
    "70B": ("Llama 3.3 70B, 64 H100, batch 512", "model=llama3.3-70b gpu=h100-sxm5-80gb"),
}
"""By training: what it is, and its model and GPU."""
PIPELINES = {
    "3B": "parallelism.tp=8 parallelism.pp=2 microbatch_size=8 num_microbatches=8",
    "8B": "parallelism.tp=2 parallelism.pp=2 parallelism.dp=2 parallelism.sharding=optimizer "
    "parallelism.sequence_parallel=true microbatch_size=2 num_microbatches=32 recomputation=selective",
    "70B": "parallelism.tp=4 parallelism.pp=4 parallelism.dp=4 parallelism.sharding=optimizer "
    "parallelism.sequence_parallel=true microbatch_size=1 num_microbatches=128 recomputation=none",
}
SHARDED = {
    "3B": "parallelism.tp=1 parallelism.pp=1 parallelism.dp=16 parallelism.sharding=full microbatch_size=2 "
    "num_microbatches=2 recomputation=full",
    "8B": "parallelism.tp=1 parallelism.pp=1 parallelism.dp=8 parallelism.sharding=full microbatch_size=2 "
    "num_microbatches=8 recomputation=full",
    "70B": "parallelism.tp=8 parallelism.pp=1 parallelism.dp=8 parallelism.sharding=full "
    "parallelism.sequence_parallel=true microbatch_size=2 num_microbatches=32 recomputation=full",
}
CHUNKS = {"3B": 2, "8B": 4, "70B": 5}
SHARDS = {"3B": 8, "8B": 4, "70B": 4}
MEGATRON = {"3B": "megatron-paper", "8B": "megatron-core", "70B": "megatron-core"}
TRAINERS = (
    ("megatron-core", "Megatron-Core, 1F1B", "pipelines", "{megatron}", "pipeline=1f1b"),
    ("megatron-core", "Megatron-Core, interleaved", "pipelines", "{megatron}", "pipeline=interleaved {chunks}"),
    ("torchtitan", "torchtitan, pipeline", "pipelines", "torchtitan", "pipeline=1f1b"),
    ("torchtitan", "torchtitan, FSDP2", "sharded", "torchtitan", "pipeline=1f1b"),
    ("torchtitan", "torchtitan, HSDP", "sharded", "torchtitan", "pipeline=1f1b {shards}"),
    ("hugging-face", "Hugging Face Trainer, FSDP", "sharded", "llm-foundry", "pipeline=1f1b"),
    ("kareus", "Kareus' engine", "pipelines", "{megatron}", "pipeline=1f1b"),
)
"""Trainer, its name, what layout, software, pipeline."""


def rows(part: str | None) -> Iterator[Row]:
    """Yield the rows of the table."""
    for training, (_, what) in DATA.items():
        if part not in (None, training):
            continue
        for trainer, name, layout, software, pipeline in TRAINERS:
            texts = (
                what,
                (PIPELINES if layout == "pipelines" else SHARDED)[training],
                pipeline.format(
                    chunks=f"pipeline.chunks={CHUNKS[training]}", shards=f"parallelism.shards={SHARDS[training]}"
                ),
                f"software={software.format(megatron=MEGATRON[training])}",
            )
            yield Row(
                training=training, trainer=trainer, name=name, layout=layout, overrides=tuple(" ".join(texts).split())
            )


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


def ways(row: Row) -> tuple[dict[str, float], list[Way]]:
    """Return the trainer's own execution, and what it may run: one clock for a step, what it obeys, and NCCL's SMs."""
    trainer = trainers()[row.trainer]
    (workload,) = kareus.resolve([*row.overrides, *([] if trainer.overlaps else NOTHING_TO_SEARCH)])
    frontiers = planned(workload, trainer)
    baseline = max_throughput_plan(frontiers.iteration, THROUGHPUT_BASELINE)
    clocks = one_clock_costs(cut(workload, "pipeline"), frontiers.microbatch)
    one_clock = Way("one clock for each step", [(clock.time_s, clock.energy_j, "0") for clock in clocks])
    if trainer.clocks is ClockPace.STEP:
        return baseline, [one_clock]
    chosen = [one_clock, Way(trainer.obeys, costs(workload, trainer, frontiers))]
    if row.layout == "sharded" and (limited := with_best_exchanges(workload)) != workload:
        name = f"the same, and {exchange_words(limited)}"
        chosen.append(Way(name, costs(limited, trainer, planned(limited, trainer))))
    return baseline, chosen


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
        title = f"[{trainer.title}]({os.path.relpath(ROOT / trainer.page, PAGE.parent)})"
        line = trainer.turn_on("plan.json", "min-energy")[-1]
        yield f"| {title} | {trainer.obeys} | {command} | `{line}` | `--format {trainer.export}` |"


def main() -> None:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=sorted(DATA), help="rows of one training")
    parser.add_argument("--layouts", action="store_true", help="what to type, by trainer")
    parser.add_argument("--write", action="store_true", help="put that, or the short table, into its page")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # searches of one measurement end early, as is meant here
    part = arguments.part
    if arguments.layouts:
        print("\n".join((*LAYOUT_HEADS, *layout_rows())))
        if arguments.write:
            put(PAGE, LAYOUT_HEADS, list(layout_rows()))
        return
    title("training", "trainer", "obeys", *SHARES, "changes of clock", "command")
    short: dict[str, dict[str, str]] = {}
    alone: list[list[str]] = []
    for row in rows(part):
        baseline, chosen = ways(row)
        best = chosen[min(1, len(chosen) - 1)]
        saved = [best.saved(share, baseline) for share in SHARES.values()]
        method = trainers()[row.trainer].method
        command = f"kareus plan {shlex.join(row.overrides)}{'' if method == OURS else f' --method {method}'}"
        line([DATA[row.training][0], row.name, best.name, *(text for text, _ in saved), saved[0][1], f"`{command}`"])
        short.setdefault(row.name, {})[row.training] = best.in_short(baseline)
        if row.layout == "sharded":
            alone += [
                [
                    DATA[row.training][0],
                    row.name,
                    way.name,
                    *(way.saved(share, baseline)[0] for share in SHARES.values()),
                ]
                for way in chosen
            ]
    brief = list(short_rows((ROOT / "README.md").read_text(), short))
    print("\n".join(("", *SHORT_HEADS, *brief)))
    if arguments.write:
        put(ROOT / "README.md", SHORT_HEADS, brief)
    title("training", "without a pipeline", "what is set", *SHARES)
    for texts in alone:
        line(texts)


def short_rows(readme: str, short: dict[str, dict[str, str]]) -> Iterator[str]:
    """Yield the rows of README.md with the columns that were made anew, by trainer and training."""
    lines = readme.splitlines()
    before = {}
    for text in itertools.takewhile(lambda text: text.startswith("|"), lines[lines.index(SHORT_HEADS[0]) + 2 :]):
        name, *cells = (cell.strip() for cell in text.strip("|").split("|"))
        before[name] = dict(zip(DATA, cells, strict=True))
    for name, made in short.items():
        yield f"| {name} | " + " | ".join((before.get(name, {}) | made)[training] for training in DATA) + " |"


def title(*heads: str) -> None:
    """Print the heads of a table."""
    print("\n| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads), flush=True)


def line(cells: list[str]) -> None:
    """Print a row of it."""
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
