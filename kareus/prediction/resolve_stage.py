"""Command `resolve`: expand overrides, write the workloads that can run, list those that cannot and what would help."""

import argparse
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kareus.artifacts.outputs import add_force, check_folder, check_outputs, table
from kareus.errors import RefusedWorkloadError
from kareus.workload.arguments import add_from, add_overrides, described
from kareus.workload.config import nothing_to_overlap
from kareus.workload.memory import WHO_SAYS_MORE, tightness
from kareus.workload.model_flops import engine_words, size_words
from kareus.workload.resolve import Resolved, check_any_accepted, resolve, with_proposal
from kareus.workload.words import SHARDING

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the overrides, the configuration and the output."""
    add_overrides(parser)
    add_from(parser)
    parser.add_argument("--output", type=Path, help="folder to write to (default: nothing is written)")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Resolve and print; write where there is a folder for it.

    Raises:
        RefusedWorkloadError: none can run; their table is written first, so that the reasons are kept.
    """
    if arguments.output is not None:
        check_folder(arguments.output, force=arguments.force)
        from kareus.workload.tables import WORKLOADS  # noqa: PLC0415 - polars is slow to import
        from kareus.workload.writing import write_resolved  # noqa: PLC0415 - as above

        check_outputs(arguments, [(arguments.output / "workloads.parquet", table(WORKLOADS))])
    given = described(arguments)
    for line in given.left_out:
        logger.info("%s", line)
    resolved = [with_proposal(entry, arguments.config_dir) for entry in resolve(given.overrides, arguments.config_dir)]
    resolved = [
        replace(entry, refusal=entry.refusal and entry.refusal.replace(WHO_SAYS_MORE, "")) for entry in resolved
    ]
    for line in proposals(resolved):
        logger.info("%s", line)
    if len(resolved) > 1 or resolved[0].refusal is None:  # else the error says it all
        for line in _lines(resolved):
            logger.info("%s", line)
    for line in _remedies(resolved):
        logger.info("%s", line)
    if arguments.output is not None:
        write_resolved(resolved, arguments.output)
    if len(resolved) > 1 and all(entry.refusal is not None for entry in resolved):
        raise RefusedWorkloadError(f"all {len(resolved)} combinations are refused; the reasons are in the list.")
    check_any_accepted(resolved, given.without_gpu)


def proposals(resolved: Sequence[Resolved]) -> Iterator[str]:
    """Yield a line for each workload whose layout was proposed."""
    for entry in resolved:
        if entry.proposed and all(text.startswith(f"{SHARDING}=") for text in entry.proposed):
            yield (
                f"{entry.name}: does not fit with states held whole; {' '.join(entry.proposed)}, as recipes of "
                f"{entry.composed.software.name} have it where nobody says ({SHARDING}=none)"
            )
        elif entry.proposed:
            yield (
                f"{entry.name}: no layout is named; proposed, of few GPUs for each replica: {' '.join(entry.proposed)} "
                "(kareus advise compares all)"
            )


def _remedies(resolved: Sequence[Resolved]) -> Iterator[str]:
    """Yield why the combination that is nearest to fitting does not fit, and what would help, if one does not."""
    short = [entry for entry in resolved if entry.memory is not None and entry.workload is None]
    if not short:
        return
    from kareus.prediction.remedies import misfit_lines, why_not  # noqa: PLC0415 - what fits need not wait for it

    nearest = min(short, key=lambda entry: entry.memory.total_gib if entry.memory else 0.0)
    yield from misfit_lines(nearest.name, why_not(nearest.composed))


def _lines(resolved: Sequence[Resolved]) -> list[str]:
    """One line for each combination, under a heading."""
    width = max(len("workload"), *(len(entry.name) for entry in resolved))
    lines = [f"{'workload':<{width}}  GPUs  layers   memory (GiB of each GPU)"]
    for entry in resolved:
        text = f"refused: {entry.refusal}"
        if entry.workload and entry.memory:
            split = "-".join(str(layers) for layers in entry.workload.parallelism.split)
            fit = f"{entry.memory.total_gib:.1f} of {entry.workload.gpu.memory_gib:.1f} on stage {entry.memory.stage}"
            text = f"{split:<7}  {fit}{tightness(entry.workload, entry.memory)}"
        lines.append(f"{entry.name:<{width}}  {entry.gpus:>4}  {text}")
    accepted = [(entry.name, entry.workload) for entry in resolved if entry.workload]
    published = [entry.composed for entry in resolved if entry.workload]  # without what software pads
    sizes = {
        (w.model.name, size_words(w.model, w.sequence_length)): engine_words(w.model, w.sequence_length)
        for w in published
    }
    for (name, size), reason in sizes.items():
        lines += [f"{name}: {size}", *([f"{name}: {reason}"] if reason else [])]
    reasons = ((name, nothing_to_overlap(workload)) for name, workload in accepted)
    return lines + [f"{name}: {reason}" for name, reason in reasons if reason]
