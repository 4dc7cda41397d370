"""Command `explain`: whether a run is as fast as predicted, by its log, and what to look at first if it is not."""

import argparse
import json

from kareus.artifacts.records import to_plain
from kareus.errors import ConfigError, printable
from kareus.explain.log import read_logs
from kareus.workload.arguments import add_config_dir, add_from, described, sorted_inputs
from kareus.workload.resolve import check_any_accepted, resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare logs, and the workload that they are of."""
    text = (
        "logs of one run of Megatron-LM, Megatron-Bridge, NeMo, torchtitan, nanotron or Hugging Face's Trainer; and "
        "overrides of its workload, such as gpu=h200 num_microbatches=16"
    )
    parser.add_argument("inputs", nargs="+", metavar="LOG|KEY=VALUE", help=text)
    add_config_dir(parser)
    add_from(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(arguments: argparse.Namespace) -> None:
    """Read the logs, predict their workload, and print both and what may be missing."""
    logs, arguments.overrides = sorted_inputs(arguments.inputs)
    if not logs:
        raise ConfigError(f"{' '.join(arguments.inputs)}: no log; give the file that your trainer writes.")
    logged = read_logs(logs)
    workloads = described(arguments)
    resolved = resolve(workloads.overrides, arguments.config_dir)
    check_any_accepted(resolved, workloads.without_gpu)
    if len(resolved) > 1:
        raise ConfigError(f"{len(resolved)} workloads: a log is of one; give one value of each key.")
    workload = resolved[0].workload
    assert workload is not None  # checked above
    from kareus.explain.explanation import explain, explanation_lines  # noqa: PLC0415 - bad overrides need not wait for it

    explained = explain(resolved[0].name, workload, logged)
    if arguments.json:
        print(json.dumps({"left_out": list(workloads.left_out), **to_plain(explained)}, allow_nan=False))  # noqa: T201
        return
    lines = [*workloads.left_out, *explanation_lines(" ".join(map(str, logs)), workload, explained)]
    print("\n".join(map(printable, lines)))  # noqa: T201 - the answer of the command
