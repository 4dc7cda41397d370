"""What a plan saves in each trainer, by layout: a row for each trainer and training, then the same in short.

    python benchmarks/trainers.py               # all rows, minutes
    python benchmarks/trainers.py --part 8B     # those of one training
    python benchmarks/trainers.py --layouts     # the table of docs/howto/trainers.md, at once; with --write there

Every row plans one workload on the simulated testbed for the software of its trainer, takes the plan `fastest` of what
the trainer obeys, and compares it with the same software's own execution in the same layout. Nothing is measured.
"""

import argparse
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import kareus
from doc_tables import ROOT, put
from kareus.pipeline.compare import THROUGHPUT_BASELINE, max_throughput_plan
from kareus.pipeline.methods import METHODS
from kareus.pipeline.one_clock import one_clock_costs
from kareus.plans.build import select_plan
from kareus.plans.frontiers import Frontiers
from kareus.plans.planning import plan_tables, quietly
from kareus.software.trainers import ClockPace, ObeyingTrainer, trainers
from kareus.workload.config import Workload
from kareus.workload.slices import cut

PAGE = ROOT / "docs/howto/trainers.md"
LAYOUT_HEADS = (
    "| trainer | layout | obeys | make the plan | turn it on | `kareus export` |",
    "| --- | --- | --- | --- | --- | --- |",
)
"""Page and head of the table of commands."""
NOTHING_TO_SEARCH = ("search.initial=1", "search.most=1")
"""For trainers that run instructions whole, whose plans have nothing of what a search finds."""
SLOWER = 1.05
"""Of how much slower a step at one clock is spoken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A trainer in a layout."""

    training: str
    trainer: str
    name: str
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
MEGATRON = {"3B": "megatron-paper", "8B": "megatron-core", "70B": "megatron-core"}
TRAINERS = (
    ("megatron-core", "Megatron-Core, 1F1B", "pipelines", "{megatron}", "pipeline=1f1b"),
    ("megatron-core", "Megatron-Core, interleaved", "pipelines", "{megatron}", "pipeline=interleaved {chunks}"),
    ("torchtitan", "torchtitan, pipeline", "pipelines", "torchtitan", "pipeline=1f1b"),
    ("torchtitan", "torchtitan, FSDP2", "sharded", "torchtitan", "pipeline=1f1b"),
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
                pipeline.format(chunks=f"pipeline.chunks={CHUNKS[training]}"),
                f"software={software.format(megatron=MEGATRON[training])}",
            )
            yield Row(training=training, trainer=trainer, name=name, overrides=tuple(" ".join(texts).split()))


def cells(row: Row) -> list[str]:
    """Return what a row says."""
    trainer = trainers()[row.trainer]
    (workload,) = kareus.resolve([*row.overrides, *([] if trainer.overlaps else NOTHING_TO_SEARCH)])
    stages = workload.parallelism.pp
    needed = {THROUGHPUT_BASELINE, trainer.method(stages)}
    with quietly():
        frontiers = plan_tables(workload, [method for method in METHODS if method.name in needed]).frontiers
    saved, changes = _saved(trainer, workload, frontiers)
    method = trainer.method(stages)
    chosen = "" if method == "kareus" else f" --method {method}"
    command = f"kareus plan {shlex.join(row.overrides)}{chosen}"
    if trainer.obeyed(stages) is ClockPace.STEP:
        command = trainer.turn_on(stages, "", f"straggler={SLOWER:g}x")[-1]
    return [DATA[row.training][0], row.name, trainer.words(stages), saved, changes, f"`{command}`"]


def layout_rows() -> Iterator[str]:
    """Yield what to type for each trainer, with a pipeline and without one; where both are alike, once."""
    for trainer in trainers().values():
        with_pipeline, without = (_layout_cells(trainer, stages) for stages in (2, 1))
        if with_pipeline == without:
            yield f"| {_linked(trainer)} | any | {with_pipeline} |"
            continue
        yield f"| {_linked(trainer)} | pipeline | {with_pipeline} |"
        yield f"| {_linked(trainer)} | no pipeline, such as FSDP | {without} |"


def _linked(trainer: ObeyingTrainer) -> str:
    return f"[{trainer.title}]({os.path.relpath(ROOT / trainer.page, PAGE.parent)})"


def _layout_cells(trainer: ObeyingTrainer, stages: int) -> str:
    """Return what is obeyed in a layout of so many stages, what makes the plan, and what turns it on."""
    method = trainer.method(stages)
    command = (
        "`kareus select fastest WORKLOAD`"
        if trainer.overlaps
        else f"`kareus select fastest WORKLOAD --method {method}`"
    )
    if trainer.obeyed(stages) is ClockPace.STEP:
        command = "none: chosen in the first steps"
    line = trainer.turn_on(stages, "plan.json", "min-energy")[-1]
    return f"{trainer.words(stages)} | {command} | `{line}` | `--format {trainer.export}`"


def _saved(trainer: ObeyingTrainer, workload: Workload, frontiers: Frontiers) -> tuple[str, str]:
    """Return what is saved against the trainer's own execution, and changes of clock in each stage."""
    baseline = max_throughput_plan(frontiers.iteration, THROUGHPUT_BASELINE)

    def compared(time_s: float, energy_j: float) -> str:
        time, energy = (
            100 * (1 - own / base) for own, base in ((time_s, baseline["time_s"]), (energy_j, baseline["energy_j"]))
        )
        return f"{time:z.1f} % time, {energy:z.1f} % energy"

    if trainer.obeyed(workload.parallelism.pp) is ClockPace.STEP:
        clocks = one_clock_costs(cut(workload, "pipeline"), frontiers.microbatch)
        said = []
        for most in (1.001, SLOWER):
            within = [one for one in clocks if one.time_s <= most * baseline["time_s"]]
            best = min(within, key=lambda one: one.energy_j)
            said.append(f"{compared(best.time_s, best.energy_j)} ({best.frequency_mhz} MHz)")
        return "; ".join(said), "0"
    plan = select_plan(workload, frontiers, "fastest", trainer.method(workload.parallelism.pp), name="row")
    return compared(plan.prediction.time_s, plan.prediction.energy_j), ", ".join(
        str(s.clock_changes) for s in plan.stages
    )


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=sorted(DATA), help="rows of one training")
    parser.add_argument("--layouts", action="store_true", help="what to type, by trainer and layout")
    parser.add_argument("--write", action="store_true", help="put that into its page")
    arguments = parser.parse_args()
    part = arguments.part
    if arguments.layouts:
        print("\n".join((*LAYOUT_HEADS, *layout_rows())))
        if arguments.write:
            put(PAGE, LAYOUT_HEADS, list(layout_rows()))
        return
    heads = ["training", "trainer", "obeys", "saved against its own execution", "changes of clock", "command or line"]
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
    saved: dict[str, list[str]] = {}
    for row in rows(part):
        found = cells(row)
        saved.setdefault(found[1], [found[2]]).append(found[3])
        print("| " + " | ".join(found) + " |", flush=True)
    heads = ["trainer", "obeys", *(text for name, (text, _) in DATA.items() if part in (None, name))]
    print("\n| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
    for name, texts in saved.items():
        print("| " + " | ".join([name, *texts]) + " |")


if __name__ == "__main__":
    main()
