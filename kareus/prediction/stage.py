"""Command `predict`: print what iterations of workloads take by the GPU model alone, without search or measurement."""

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kareus.artifacts.records import to_plain
from kareus.errors import printable
from kareus.prediction.resolve_stage import proposals
from kareus.workload.arguments import add_from, add_overrides, described
from kareus.workload.config import Workload
from kareus.workload.memory import may_run, tightness
from kareus.workload.model_flops import size_words, sizes
from kareus.workload.resolve import Resolved, check_any_accepted, checked_but_for_memory, resolve

if TYPE_CHECKING:
    from kareus.prediction.workload_prediction import Prediction

SEQUENTIAL = "sequential"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the workloads and how they run."""
    add_overrides(parser)
    add_from(parser)
    parser.add_argument("--method", default=SEQUENTIAL, help="sequential (default) or nanobatching")
    parser.add_argument("--frequency", type=int, metavar="MHZ", help="clock of all GPUs in MHz (default: the maximum)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of text")


def run(arguments: argparse.Namespace) -> None:
    """Predict and print every workload; one that cannot run is printed with its reason.

    Where memory alone refuses one, by no more than the estimate was off of trainings that ran, that is a verdict beside
    what it would take.
    """
    workloads = described(arguments)
    left_out: dict[str, list[str]] = {}
    if arguments.json and workloads.left_out:
        left_out["left_out"] = list(workloads.left_out)
    elif workloads.left_out:
        print("\n".join(map(printable, workloads.left_out)))  # noqa: T201 - a part of the answer
    resolved = resolve(workloads.overrides, arguments.config_dir)
    predicted = {entry.name: _predictable(entry) for entry in resolved}
    if not any(predicted.values()):
        check_any_accepted(resolved, workloads.without_gpu)
    from kareus.prediction.errors import error_words  # noqa: PLC0415 - bad overrides need not wait for it
    from kareus.prediction.workload_prediction import predict  # noqa: PLC0415 - as above

    for number, entry in enumerate(resolved):
        workload, refused = predicted[entry.name], {"refused": entry.refusal} if entry.refusal else {}
        if workload is None:
            said = {"workload": entry.name, **left_out, **refused}
            lines = [json.dumps(said) if arguments.json else f"{entry.name}: refused: {entry.refusal}"]
        else:
            answer = predict(workload, arguments.method, arguments.frequency)
            if arguments.json:
                model = sizes(entry.composed.model, workload.sequence_length)
                unusual = left_out | refused | ({"proposed": list(entry.proposed)} if entry.proposed else {})
                memory = {**to_plain(answer.memory), "total_gib": answer.memory.total_gib}
                plain = {**model, "error": error_words(workload), **to_plain(answer), "memory": memory}
                lines = [json.dumps({"workload": entry.name, **unusual, **plain}, allow_nan=False)]
            else:
                before = [*([""] if number else []), *proposals([entry])]
                lines = [*before, *prediction_lines(entry, workload, answer)]
        print("\n".join(map(printable, lines)))  # noqa: T201 - the answer of the command


def _predictable(entry: Resolved) -> Workload | None:
    """Return the workload that is predicted: one that is accepted, or is refused for memory that may be enough."""
    if entry.workload is not None or entry.memory is None or not may_run(entry.composed, entry.memory):
        return entry.workload
    return checked_but_for_memory(entry.composed)


def prediction_lines(entry: Resolved, workload: Workload, costs: "Prediction") -> Iterator[str]:
    """Yield a prediction for people, in lines of at most 100 columns but for the first.

    Parameters are those of the model as it is published, without what its software pads.
    """
    from kareus.prediction.errors import error_words  # noqa: PLC0415 - as above
    from kareus.prediction.training_lines import training_lines  # noqa: PLC0415 - as above

    memory, collectives = costs.memory, costs.collectives
    yield (
        f"{entry.name}: {costs.method} at {costs.frequency_mhz} MHz, {workload.software.name} in {workload.precision} "
        f"[GPU model of {workload.gpu.name}]"
    )
    yield f"error: {error_words(workload)}"
    yield (
        f"iteration    {costs.time_s:.3f} s, {costs.energy_j / 1e3:.2f} kJ on {workload.parallelism.gpus} GPUs; "
        f"{costs.tokens_per_s:,.0f} tokens/s, {1e3 * costs.joules_per_token:.1f} mJ/token, MFU {100 * costs.mfu:.1f} %"
    )
    yield (
        f"memory       {memory.total_gib:.1f} of {workload.gpu.memory_gib:.1f} GiB on stage {memory.stage}"
        f"{tightness(workload, memory)}"
    )
    yield f"model        {size_words(entry.composed.model, workload.sequence_length)}"
    yield from training_lines(workload)
    if collectives.alone_s:
        yield (
            f"collectives  {collectives.alone_s:.3f} s alone, {collectives.hidden_s:.3f} s of it beside computation, "
            f"{collectives.exposed_s:.3f} s exposed"
        )
    yield ""
    yield "stage  layers  forward s  backward s  update s  waiting s  energy kJ"
    for stage in costs.stages:
        yield (
            f"{stage.stage:>5}  {stage.layers:>6}  {stage.forward_s:>9.3f}  {stage.backward_s:>10.3f}  "
            f"{stage.update_s:>8.3f}  {stage.bubble_s:>9.3f}  {stage.energy_j / 1e3:>9.2f}"
        )
    yield ""
    width = max(len("component"), *(len(component.name) for component in costs.components))
    yield f"{'component':<{width}}  time s  energy kJ"
    for component in costs.components:
        yield f"{component.name:<{width}}  {component.time_s:>6.3f}  {component.energy_j / 1e3:>9.2f}"
