"""Command `export`: check a plan and write it in the format of another tool."""

import argparse
import json
import logging
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kareus.artifacts.files import write_text
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.outputs import OutputKind, add_force, check_files
from kareus.export.constant_counts import constant_counts, overlapping
from kareus.export.layouts import FIRST, is_sealed, layout_text, starts_with
from kareus.export.listing import is_plan_csv, is_plan_markdown, plan_csv, plan_markdown
from kareus.export.megatron import (
    communicator_config,
    is_communicator_config,
    is_overlap_config,
    overlap_config,
    saves_alone,
)
from kareus.export.torchtitan import is_schedule_csv, is_schedule_notes, schedule_csv, schedule_notes
from kareus.export.trace import chrome_trace, is_chrome_trace
from kareus.export.zeus import frequency_schedule, is_frequency_schedule
from kareus.partition.read import read_graphs
from kareus.pipeline.compare import FRONTIER_BASELINE
from kareus.plans.check_stage import read_checked_plan, workload_folder
from kareus.plans.document import Plan
from kareus.plans.locate import plan_path
from kareus.workload.config import Workload

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPlan:
    """A plan to export, and all that an export may need of its workload."""

    plan: Plan
    path: Path
    """Path of the plan."""
    workload: Workload
    folder: WorkloadFolder
    """Results of the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """A format of another tool."""

    meaning: str
    """What it is, for the help."""
    kinds: Mapping[str, OutputKind]
    """Kinds of its files by suffix; the first one is the file that `--output` names."""
    texts: Callable[[ExportedPlan], list[str | None]]
    """Return the texts of the files, None for one that the plan does not need."""
    use: Callable[[Path, str], str] = lambda *_: ""
    """Return what to do with the first file, of its path and text; nothing where its kind says it."""


def _megatron(exported: ExportedPlan) -> list[str | None]:
    overlapping(exported.plan)  # a plan of what was measured in place overlaps nothing, and its folder has no graphs
    counts = constant_counts(exported.plan, exported.workload, read_graphs(exported.folder.segments))
    overlaps = overlap_config(exported.plan, exported.workload, counts)
    if overlaps is None and not saves_alone(counts):
        logger.warning(
            "no constant SM count saves anything where Megatron-LM runs this plan; what it obeys are clocks of whole "
            "instructions: kareus select %s %s --method %s",
            exported.plan.selector,
            exported.folder.path,
            FRONTIER_BASELINE,
        )
    return [communicator_config(exported.plan, counts), overlaps]


def _torchtitan(exported: ExportedPlan) -> list[str | None]:
    folded = exported.workload.parallelism.folded
    return [schedule_csv(exported.plan, folded=folded), schedule_notes(exported.plan, exported.workload)]


def _trace(exported: ExportedPlan) -> list[str | None]:
    return [json.dumps(chrome_trace(exported.plan, exported.workload.gpu), allow_nan=False) + "\n"]


def _layout(trainer: str, syntax: str, suffix: str) -> ExportFormat:
    """Return the format of a layout as the settings of a trainer."""

    def is_layout(path: Path) -> bool:
        return starts_with(path, FIRST.format(trainer))

    return ExportFormat(
        meaning=f"the layout alone, as settings of {trainer}, which kareus from reads as the same",
        kinds={suffix: OutputKind(f"a layout for {trainer}", is_layout, is_as_written=is_sealed)},
        texts=lambda exported: [layout_text(exported.plan, exported.workload, trainer, syntax)],
        use=_source if syntax == "shell" else lambda *_: "",
    )


def _source(path: Path, text: str) -> str:
    """Return what brings the arrays of a shell script into the script of a job."""
    names = " and ".join(f'"${{{name}[@]}}"' for name in re.findall(r"^(\w+)=\(", text, re.MULTILINE))
    source = f"in the script of your job: source {shlex.quote(str(path))}"
    return (
        f"{source}; then give {names} in place of the same arguments, and keep all others, such as those of data and "
        "optimizer"
    )


FORMATS = {
    "axolotl": _layout("axolotl", "yaml", ".axolotl.yaml"),
    "csv": ExportFormat(
        meaning="a row for each instruction: clock, start, time, energy, execution",
        kinds={".csv": OutputKind("a plan as CSV", is_plan_csv)},
        texts=lambda exported: [plan_csv(exported.plan)],
    ),
    "markdown": ExportFormat(
        meaning="what the plan costs, and a table of its stages, for people",
        kinds={".md": OutputKind("a plan in Markdown", is_plan_markdown)},
        texts=lambda exported: [plan_markdown(exported.plan)],
    ),
    "megatron-args": _layout("megatron-lm", "shell", ".megatron.sh"),
    "nanotron": _layout("nanotron", "yaml", ".nanotron.yaml"),
    "torchtitan-toml": _layout("torchtitan", "toml", ".torchtitan.toml"),
    "megatron": ExportFormat(
        meaning="SM counts for Megatron-LM's --nccl-communicator-config-path and --tp-comm-overlap-cfg (YAML), with "
        "what constant counts lose against the plan; for the layout: megatron-args",
        kinds={
            ".nccl.yaml": OutputKind("SM counts of communicators", is_communicator_config),
            ".tp-overlap.yaml": OutputKind("SM counts of tensor-parallel overlap", is_overlap_config),
        },
        texts=_megatron,
    ),
    "torchtitan": ExportFormat(
        meaning="order of the pipeline for torchtitan's pipeline_parallel_schedule_csv, and notes on the settings that "
        "belong to it; for the layout: torchtitan-toml",
        kinds={
            ".schedule.csv": OutputKind("a pipeline schedule", is_schedule_csv),
            ".schedule.txt": OutputKind("notes on a pipeline schedule", is_schedule_notes),
        },
        texts=_torchtitan,
    ),
    "trace": ExportFormat(
        meaning="a Chrome trace of one iteration for Perfetto",
        kinds={".trace.json": OutputKind("a Chrome trace", is_chrome_trace)},
        texts=_trace,
    ),
    "zeus": ExportFormat(
        meaning="frequency schedule of Zeus' pipeline frequency optimizer, for plans that need clocks alone",
        kinds={".zeus.py": OutputKind("a frequency schedule of Zeus", is_frequency_schedule)},
        texts=lambda exported: [frequency_schedule(exported.plan, exported.folder, exported.path)],
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the plan, the format and the output."""
    parser.add_argument("plan", type=Path, help="plan file, or the folder of a workload that has one plan")
    meanings = "; ".join(f"{name}: {format_.meaning}" for name, format_ in FORMATS.items())
    parser.add_argument("--format", choices=sorted(FORMATS), required=True, help=meanings)
    parser.add_argument("--folder", type=Path, help="results folder of the workload (default: the one the plan is in)")
    parser.add_argument(
        "--output",
        type=Path,
        help="file to write (default: beside the plan, with another suffix); a second file of the format is beside it",
    )
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Read, check, convert, write."""
    arguments.plan = plan_path(arguments.plan)
    chosen = FORMATS[arguments.format]
    outputs = _outputs(arguments.plan, arguments.output, list(chosen.kinds))
    check_files(arguments, list(zip(outputs, chosen.kinds.values(), strict=True)))
    plan, workload = read_checked_plan(arguments.plan, arguments.folder)
    folder = workload_folder(arguments.plan, arguments.folder)
    texts = chosen.texts(ExportedPlan(plan=plan, path=arguments.plan, workload=workload, folder=folder))
    for output, text in zip(outputs, texts, strict=True):
        if text is not None:
            write_text(output, text)
            logger.info("%s: written [%s]", output, plan.testbed.label)
    if use := chosen.use(outputs[0], texts[0] or ""):
        logger.info("%s", use)


def _outputs(plan: Path, output: Path | None, suffixes: list[str]) -> list[Path]:
    """Return the paths of the files of a format: beside the plan, or beside the first one, which `output` names."""
    if output is None:
        output = plan.with_name(plan.name.removesuffix(".json") + suffixes[0])
    stem = output.name.removesuffix(suffixes[0]) if output.name.endswith(suffixes[0]) else output.stem
    return [output, *(output.with_name(stem + suffix) for suffix in suffixes[1:])]
