"""Measure the adviser: how long it takes, and where experts' layouts rank among its own.

    python benchmarks/advise.py [--part sizes,mixtures,experts] [--json]

`sizes`: Llama 3.1 8B on 8, Llama 3.3 70B on 64 and Llama 3.1 405B on 512 H100, each in a process of its own.
`mixtures`: Qwen3 30B-A3B on 64 and DeepSeek-V3 on 1,024 H100, likewise.
`experts`: for every model and number of GPUs of the family `dgxc` of the shipped iterations, the share of our layouts
that are predicted to be faster than the one that NVIDIA chose, and what the fastest promises over it; all are predicted
as run by Megatron-Core, without fp8. Of more than `--sample` layouts that can run, so many are drawn at random.
How it orders measured layouts says `predictor.py`.
"""

import argparse
import json
import multiprocessing
import random
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kareus.adviser.advice import answer
from kareus.adviser.feasible import sort_layouts
from kareus.adviser.layouts import Constraints, layouts_of
from kareus.adviser.question import ask
from kareus.evidence import shipped_files
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Sharding
from kareus.pipeline.config import PipelineSchedule
from kareus.prediction.lines import read_lines
from kareus.prediction.measured import MeasuredWorkloads
from kareus.prediction.rows import MeasuredIteration, read_iterations
from kareus.prediction.workload_prediction import predict_time_s

CONFIG = Path(__file__).parents[1] / "config"
CASES = (("llama3.1-8b", 8, 128), ("llama3.3-70b", 64, 512), ("llama3.1-405b", 512, 1024))
"""Model, GPUs and global batch; sequences of 8,192 tokens."""
MIXTURES = (("qwen3-30b-a3b", 64, 512), ("deepseek-v3", 1024, 2048))
"""The same, with experts."""
OF_NEMO = Constraints(
    schedule=(PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, PipelineSchedule.INTERLEAVED),
    sharding=(Sharding.OPTIMIZER,),
    recomputation=(Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL),
)
"""Layouts that NeMo trains in."""


def size_case(model: str, gpus: int, batch: int) -> dict[str, Any]:
    """Ask one question, and return what that took."""
    question = ask(
        [f"model={model}", "gpu=h100-sxm5-80gb"],
        gpus=gpus,
        global_batch=batch,
        sequence_length=8192,
        config_dir=CONFIG,
    )
    begin_s = time.process_time()
    advice = answer(question)
    cpu_s = time.process_time() - begin_s
    effort, baseline = advice.size.effort, advice.size.baseline.cost
    return {
        "model": model,
        "gpus": gpus,
        "configurations": effort.configurations,
        "can_run": effort.bounded,
        "predicted": effort.predicted,
        "planned": effort.planned,
        "enumerate_s": effort.enumerate_s,
        "bound_s": effort.bound_s,
        "predict_s": effort.predict_s,
        "plan_s": effort.plan_s,
        "total_s": effort.total_s,
        "cpu_s": cpu_s,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "chosen": advice.chosen.layout.candidate.layout.words,
        "time_s": advice.chosen.cost.time_s,
        "energy_j": advice.chosen.cost.energy_j,
        "megatron_s": baseline.time_s,
        "megatron_j": baseline.energy_j,
    }


def sizes(cases: Sequence[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Ask the questions, one process each, so that none finds what another computed and memory is its own."""
    context = multiprocessing.get_context("spawn")
    answers = []
    for case in cases:
        with context.Pool(1) as pool:
            answers.append(pool.apply(size_case, case))
    return answers


def experts(sample: int, most_gpus: int) -> Iterator[dict[str, Any]]:
    """Yield where NVIDIA's layouts rank among ours, the fastest measured of each model and number of GPUs."""
    workloads, seen = MeasuredWorkloads((), CONFIG), set()
    path = shipped_files()["training_iterations"]
    rows = [row for row in read_iterations(read_lines(path)[1], path) if row.family == "dgxc"]
    for row in sorted(rows, key=lambda row: row.iteration_time_s):
        batch = row.dp * row.num_microbatches * row.microbatch_size
        training = (row.model, row.layers, row.gpus, batch)
        if training in seen or row.precision != "bf16" or row.gpus > most_gpus:
            continue
        seen.add(training)
        yield expert(row, batch, workloads, sample)


def expert(row: MeasuredIteration, batch: int, workloads: MeasuredWorkloads, sample: int) -> dict[str, Any]:
    """Return the rank of one measured layout among ours."""
    base = workloads.of(row)
    theirs_s = predict_time_s(base)
    candidates = sort_layouts(base, layouts_of(base, row.gpus, batch, OF_NEMO)).candidates
    drawn = random.Random(0).sample(candidates, min(sample, len(candidates)))
    ours = sorted((predict_time_s(candidate.workload), candidate.layout.words) for candidate in drawn)
    return {
        "model": row.model.split(" ")[0],
        "layers": row.layers,
        "gpus": row.gpus,
        "layouts": len(candidates),
        "drawn": len(drawn),
        "measured_s": row.iteration_time_s,
        "predicted_s": theirs_s,
        "theirs": f"tp {row.tp}, cp {row.cp}, pp {row.pp}, dp {row.dp}, chunks {row.chunks}, mbs {row.microbatch_size}",
        "faster_percent": 100 * sum(time_s < theirs_s for time_s, _ in ours) / max(1, len(ours)),
        "best_s": ours[0][0] if ours else None,
        "best": ours[0][1] if ours else None,
        "promise_percent": 100 * (1 - ours[0][0] / theirs_s) if ours else None,
    }


def main() -> None:
    """Measure, and print JSON lines or text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="sizes,mixtures,experts", help="parts, separated by commas")
    parser.add_argument("--sample", type=int, default=300, help="layouts of a training of experts that are predicted")
    parser.add_argument("--most-gpus", type=int, default=1024, help="GPUs of the largest training of experts")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    parts = arguments.part.split(",")
    result: dict[str, Any] = {}
    if "sizes" in parts:
        result["sizes"] = sizes(CASES)
    if "mixtures" in parts:
        result["mixtures"] = sizes(MIXTURES)
    if "experts" in parts:
        result["experts"] = list(experts(arguments.sample, arguments.most_gpus))
    if arguments.json:
        print(json.dumps(result))
        return
    for part, rows in result.items():
        for row in rows:
            cells = (
                f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()
            )
            print(part, *cells)


if __name__ == "__main__":
    main()
