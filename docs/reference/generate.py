"""Pages made while the site is built, so that they cannot drift: of reference, of benchmarks, and the first one."""

import argparse
import ast
import dataclasses
import html
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from kareus.artifacts.records import to_plain
from kareus.artifacts.tables import TableSchema
from kareus.cli import EVERY
from kareus.cli.overview import EXIT_CODES
from kareus.emulate.resolve import resolve_fleets
from kareus.export.catalogue import CAMPAIGN_CATALOGUE, CATALOGUE
from kareus.plans.schema import plan_schema
from kareus.profile.tables import LOOKS, MEASUREMENTS
from kareus.sweep.config import resolve_sweep
from kareus.workload.compose import compose
from kareus.workload.tables import WORKLOADS

CONFIG_DIR = Path(__file__).parents[2] / "config"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks/README.md"
README = Path(__file__).parents[2] / "README.md"


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages (called by mkdocs)."""
    pages = {"commands": commands, "configuration": configuration, "tables": tables, "plan": plan}
    for name, page in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(page()) + "\n"))
    files.append(File.generated(config, "benchmarks.md", content=BENCHMARKS.read_text(encoding="utf-8")))
    files.append(File.generated(config, "index.md", content=first_page(README.read_text(encoding="utf-8"))))
    return files


def first_page(readme: str) -> str:
    """The README as the site's first page: links lead to pages; what the site does not have is only named."""
    named = re.sub(r"\[([^\]]+)\]\([A-Z]+\.md\)", r"`\1`", readme)
    return re.sub(r"\]\(docs/", "](", named).replace("[docs/", "[")


def commands() -> Iterator[str]:
    """Every command with its arguments, as its `--help` gives them."""
    yield "# Commands\n\n`kareus help` lists the commands, `kareus COMMAND --help` prints the same as this page."
    yield f"\n{EXIT_CODES}"
    for name, command in EVERY.items():
        parser = argparse.ArgumentParser(
            prog=f"kareus {name}",
            add_help=False,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, width=100),
        )
        importlib.import_module(command.module).add_arguments(parser)
        purpose = command.purpose
        yield f"\n## {name}\n\n{purpose[0].upper()}{purpose[1:]}.\n\n```text\n{parser.format_help().rstrip()}\n```"


def configuration() -> Iterator[str]:
    """Every key of the configuration with its default and its meaning."""
    yield (
        "# Configuration\n\nEvery key of a workload, by Hydra group. Options are the files of `config/GROUP/`; any key "
        "of them can be overridden, and commas sweep:\n\n```sh\nkareus resolve model=qwen3-1.7b microbatch_size=8,16 "
        "gpu.power_limit_w=350\n```\n\nUnits are in the names of keys (`_s`, `_mhz`, `_w`, `_gib`). Defaults are those "
        "of the default workload. Keys of the workflow itself are set by `snakemake --config KEY=VALUE`."
    )
    yield from _workflow_keys()
    for section in SECTIONS:
        yield from _section(section)


def _workflow_keys() -> Iterator[str]:
    """Keys of `config/workflow.yaml`: their comments are their meanings."""
    yield f"\n## Workflow\n\n`snakemake --config`, defaults in `config/workflow.yaml`.\n\n{HEADER}"
    comment: list[str] = []
    for line in (CONFIG_DIR / "workflow.yaml").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
        elif ":" in line:
            key, default = line.split(":", 1)
            yield f"| `{key}` | `{default.strip()}` | {html.escape(' '.join(comment), quote=False)} |"
        if not line.startswith("#"):
            comment = []


def default_workload(overrides: Sequence[str], config_dir: Path) -> Any:
    """Return a workload as it is composed, before what is null is filled in."""
    return compose(overrides, config_dir)[0].workload


def default_fleet(overrides: Sequence[str], config_dir: Path) -> Any:
    """Return the fleet that overrides give."""
    return resolve_fleets(overrides, config_dir)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Keys of one record of the configuration, and of the records in it."""

    title: str
    group: str
    """Key of the record, and of its Hydra group if it has one; empty for the workload's own keys."""
    overrides: tuple[str, ...] = ()
    """Overrides of the workload whose values are shown."""
    composed: Callable[[Sequence[str], Path], Any] = default_workload
    """Returns the record that the group belongs to, from overrides and the folder of the configuration."""


SECTIONS = (
    Section(title="Workload", group=""),
    Section(title="Model", group="model"),
    Section(title="Parallelism", group="parallelism"),
    Section(title="Pipeline", group="pipeline"),
    Section(title="Iteration", group="iteration"),
    Section(title="Training", group="training"),
    Section(title="GPU", group="gpu"),
    Section(title="Search space", group="space"),
    Section(title="Search", group="search"),
    Section(title="Search of the paper, and its baselines", group="search", overrides=("search=paper",)),
    Section(title="Testbed", group="testbed", overrides=("testbed=cuda",)),
    Section(title="Protocol", group="protocol"),
    Section(title="Fleet", group="emulation", composed=default_fleet),
    Section(title="Sweep of the profiler", group="sweep", composed=resolve_sweep),
)
HEADER = "| key | default | meaning |\n| --- | --- | --- |"


def _section(section: Section) -> Iterator[str]:
    composed, group = section.composed(section.overrides, CONFIG_DIR), section.group
    record, prefix = (getattr(composed, group), f"{group}.") if group else (composed, "")
    yield f"\n## {section.title}\n\n{inspect.getdoc(type(record))}\n"
    options = sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml")) if group else []
    if options:
        yield f"Options: {', '.join(f'`{group}={option}`' for option in options)}.\n"
    if section.overrides:
        yield f"Values of `{' '.join(section.overrides)}`:\n"
    yield HEADER
    yield from _rows(record, prefix)


def _rows(record: Any, prefix: str) -> Iterator[str]:
    """Yield a row for each key of a record and of the records in it, which of a workload are sections of their own."""
    meanings = meanings_of(type(record))
    for name in (one.name for one in dataclasses.fields(record)):
        value = getattr(record, name)
        if not dataclasses.is_dataclass(value):
            yield f"| `{prefix}{name}` | `{json.dumps(to_plain(value))}` | {html.escape(meanings[name], quote=False)} |"
        elif prefix:
            yield from _rows(value, f"{prefix}{name}.")


def meanings_of(record: type) -> dict[str, str]:
    """Return the meaning of each field of a record: the string after it."""
    (node,) = ast.parse(inspect.getsource(record)).body
    assert isinstance(node, ast.ClassDef)
    inherited = [meanings_of(base) for base in record.__bases__ if dataclasses.is_dataclass(base)]
    return {name: text for known in inherited for name, text in known.items()} | dict(_fields(node))


def tables() -> Iterator[str]:
    """Every table with its columns."""
    yield (
        "# Tables\n\nParquet, below `results/`. Units are in the names of columns. A file's metadata (key `kareus`) "
        "hold its provenance: where it was measured, with which seed and configuration. "
        '`kareus.open_results("results")` opens all of them over all workloads.'
    )
    yield from _table(WORKLOADS, "workloads.parquet")
    for entry in CAMPAIGN_CATALOGUE:
        yield from _table(entry.schema, f"campaigns/<campaign>/{entry.pattern}")
    for entry in CATALOGUE:
        yield from _table(entry.schema, f"<workload>/{entry.pattern}".replace("{", "<").replace("}", ">"))
    yield from _table(MEASUREMENTS, "measurements/<gpu>_<testbed>/<subject>_<hash>/")
    yield from _table(LOOKS, "measurements/<gpu>_<testbed>/<subject>_<hash>/looks/")


def plan() -> Iterator[str]:
    """The schema of plan files."""
    yield f"# Plan file\n\nJSON, after this JSON Schema.\n\n```json\n{json.dumps(plan_schema(), indent=2)}\n```"


def _table(schema: TableSchema, place: str) -> Iterator[str]:
    yield f"\n## {schema.name}\n\n{schema.meaning}\n\n`results/{place}`, version {schema.version}, one row for each "
    yield f"({', '.join(f'`{name}`' for name in schema.key)}).\n\n| column | type | meaning |\n| --- | --- | --- |"
    for column in schema.columns:
        may_be_empty = "; may be empty" if column.nullable else ""
        yield f"| `{column.name}` | `{column.dtype}` | {column.meaning}{may_be_empty} |"


def _fields(record: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield name and meaning of each field, which is the string after it."""
    for node, following in pairwise([*record.body, None]):
        if isinstance(node, ast.AnnAssign):
            constant = following.value if isinstance(following, ast.Expr) else None
            meaning = str(constant.value) if isinstance(constant, ast.Constant) else ""
            yield ast.unparse(node.target), " ".join(meaning.split())
