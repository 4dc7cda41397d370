"""SM counts that engineers chose by hand for collectives beside matrix products, and those that the GPU model chooses.

    python benchmarks/expert_allocations.py FILE.csv            # prints the table of docs/research/search.md
    python benchmarks/expert_allocations.py FILE.csv --write    # and puts it there

FILE has the columns source, op, method, num_sm and splits; of it, the rows of Llama 3.1 70B and 405B in bf16 on H100.
Each is one product and the collective that userbuffers run beside it, in the layouts of these trainings. Simulated.
"""

import argparse
import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kareus.calibrate.probes import gemm
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import Behaviour, run_program
from kareus.graph.records import TENSOR_PARALLEL, Collective, CollectiveKind, Program, Step
from kareus.schedule.config import sm_allocations
from kareus.workload.resolve import resolve_accepted

PAGE = Path(__file__).parents[1] / "docs/research/search.md"
HEADS = (
    "| model | product, pass | collective beside it | method | expert's SMs | ours | steps apart | time less "
    "| energy less |",
    "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
)
SOURCE = re.compile(r"llama3\.1_(70b|405b)\.yaml \(H100 bf16\)$")
COPY_ENGINE = "ring_exchange"
"""Method whose parts travel by copy engines, without SMs: its count of 1 is no choice of SMs."""
DASH = "\u2013"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A model and how a training shares it out."""

    hidden: int
    ffn: int
    heads: int
    tp: int
    tokens: int
    """Tokens of a microbatch on the ranks of one tensor-parallel group."""

    def product(self, name: str) -> tuple[int, int]:
        """Return the local outputs and inputs of a product's forward; queries, keys and values have 8 shared heads."""
        head_dim = self.hidden // self.heads
        return {
            "qkv": ((self.hidden + 2 * 8 * head_dim) // self.tp, self.hidden),
            "proj": (self.hidden, self.hidden // self.tp),
            "fc1": (2 * self.ffn // self.tp, self.hidden),
            "fc2": (self.hidden, self.ffn // self.tp),
        }[name]


LAYOUTS = {
    # Sequences of 8,192 tokens over two ranks of context parallelism. The 405B's layout is that of its measured
    # iterations (training_iterations.csv); that of the 70B, tensor parallelism of 4, is NeMo's default for it, assumed.
    "70b": Layout(hidden=8192, ffn=28672, heads=64, tp=4, tokens=4096),
    "405b": Layout(hidden=16384, ffn=53248, heads=128, tp=8, tokens=4096),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What an expert chose for one product."""

    model: str
    operation: str
    """Product and pass, such as `fc1_dgrad`."""
    method: str
    num_sm: int
    splits: int
    """Parts that the product is cut into; 1 where it is not."""

    @property
    def collective(self) -> CollectiveKind:
        """Kind of collective that userbuffers run beside it.

        Forwards gather the input of a first product and scatter the output of a second; backwards gather the gradient
        of a second one's output. Beside the input gradient of a first product its input is gathered again, beside its
        weight gradient the input gradient is scattered.
        """
        scattered = self.operation in ("proj_fprop", "fc2_fprop", "qkv_wgrad", "fc1_wgrad")
        return CollectiveKind.REDUCE_SCATTER if scattered else CollectiveKind.ALL_GATHER


def main() -> None:
    """Print the table, or put it into its page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="SM counts chosen by experts (CSV)")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    arguments = parser.parse_args()
    rows = list(table_rows(choices(arguments.file)))
    print("\n".join((*HEADS, *rows)))
    if arguments.write:
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")


def choices(path: Path) -> list[Choice]:
    """Return the rows of both models in bf16 on H100."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Choice(
                model=source[1],
                operation=row["op"],
                method=row["method"],
                num_sm=int(row["num_sm"]),
                splits=int(row["splits"] or 1),
            )
            for row in csv.DictReader(file)
            if (source := SOURCE.search(row["source"]))
        ]


def table_rows(given: Sequence[Choice]) -> Iterator[str]:
    """Yield the rows of the table."""
    (workload,) = resolve_accepted(["gpu=h100-sxm5-80gb"]).values()
    for choice in given:
        layout = LAYOUTS[choice.model]
        steps = sm_allocations(layout.tp, workload.space)
        costs = {n: behaviour(workload.gpu, choice, layout, n) for n in {*steps, choice.num_sm}}
        ours = min(steps, key=lambda n: float(costs[n].time_s))
        apart = round(abs(ours - choice.num_sm) / (steps[1] - steps[0]))
        cells = [choice.model.upper(), choice.operation, choice.collective, choice.method, choice.num_sm, ours]
        if choice.method == COPY_ENGINE:
            saved = [DASH, DASH, DASH]
        else:
            mine, theirs = costs[ours], costs[choice.num_sm]
            ratios = (mine.time_s / theirs.time_s, mine.energy_j / theirs.energy_j)
            saved = [str(apart), *(f"{100 * (1 - float(ratio)):z.1f} %" for ratio in ratios)]
        yield f"| {' | '.join(map(str, [*cells, *saved]))} |"


def behaviour(gpu: Gpu, choice: Choice, layout: Layout, sm_count: int) -> Behaviour:
    """Return time and energy of the product and its collective on that many SMs, at the highest clock.

    What is cut into parts scatters each while the next is computed, so that the last one is exposed.
    """
    product, direction = choice.operation.split("_")
    outputs, inputs = layout.product(product)
    rows = layout.tokens // choice.splits
    m, n, k = {
        "fprop": (rows, outputs, inputs),
        "dgrad": (rows, inputs, outputs),
        "wgrad": (outputs, inputs, rows),
    }[direction]
    operator = gemm(choice.operation, (m, n, k))
    collective = Collective(
        kind=choice.collective,
        group=TENSOR_PARALLEL,
        group_size=layout.tp,
        message_bytes=2 * rows * layout.hidden,
        fused=1,
    )
    together = Step(operators=(operator,), collective=collective, sm_count=sm_count)
    if choice.splits == 1:
        program = Program(name=choice.operation, steps=(together,))
    else:
        exposed = Step(collective=collective, sm_count=sm_count)
        steps = (Step(operators=(operator,)), *[together] * (choice.splits - 1), exposed)
        program = Program(name=choice.operation, steps=steps)
    return run_program(gpu, program, np.float64(gpu.maximum_clock_mhz))


def replaced(text: str, rows: Sequence[str]) -> str:
    """Return a page with other rows of the table."""
    lines = text.splitlines()
    first = lines.index(HEADS[0]) + len(HEADS)
    last = next((n for n in range(first, len(lines)) if not lines[n].startswith("|")), len(lines))
    return "\n".join([*lines[:first], *rows, *lines[last:]]) + "\n"


if __name__ == "__main__":
    main()
