"""Pages made while the site is built, so that they cannot drift: of reference from the code, and of benchmarks."""

import argparse
import ast
import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.structure.files import File, Files

from kareus.artifacts.tables import TableSchema
from kareus.cli import EVERY
from kareus.cli.overview import EXIT_CODES
from kareus.export.catalogue import CAMPAIGN_CATALOGUE, CATALOGUE
from kareus.gpu_model import coefficients, gpu
from kareus.model import config as model
from kareus.pipeline import config as pipeline
from kareus.plans.schema import plan_schema
from kareus.profile import config as profile
from kareus.profile.tables import LOOKS, MEASUREMENTS
from kareus.schedule import config as schedule
from kareus.search import config as search
from kareus.testbed import config as testbed
from kareus.workload import config as workload
from kareus.workload.tables import WORKLOADS

CONFIGURATION = (workload, model, gpu, coefficients, testbed, profile, schedule, search, pipeline)
"""Modules that have the records of the configuration."""
BENCHMARKS = Path(__file__).parents[2] / "benchmarks/README.md"


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages (called by mkdocs)."""
    pages = {"commands": commands, "configuration": configuration, "tables": tables, "plan": plan}
    for name, page in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(page()) + "\n"))
    files.append(File.generated(config, "benchmarks.md", content=BENCHMARKS.read_text(encoding="utf-8")))
    return files


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
    """Every record of the configuration with the meaning of its fields."""
    yield (
        "# Configuration\n\nEach record is a Hydra group of the folder `config/` or a part of one; `Workload` holds "
        "them all. Override any of it: `kareus resolve parallelism=cp2tp4 gpu.power_limit_w=350`."
    )
    for module in CONFIGURATION:
        for record in _records(module):
            yield f"\n## {record.name}\n\n{ast.get_docstring(record)}\n"
            yield "| field | type | meaning |\n| --- | --- | --- |"
            for name, kind, meaning in _fields(record):
                yield f"| `{name}` | `{kind.replace(' |', ' or')}` | {meaning} |"


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


def _records(module: ModuleType) -> Iterator[ast.ClassDef]:
    for node in ast.parse(inspect.getsource(module)).body:
        is_record = isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list)
        if is_record and not node.name.endswith("Slice"):
            yield node


def _fields(record: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Name, type and meaning, which is the string after a field; a field without one explains itself."""
    for node, following in zip(record.body, [*record.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            constant = following.value if isinstance(following, ast.Expr) else None
            meaning = str(constant.value) if isinstance(constant, ast.Constant) else ""
            yield ast.unparse(node.target), ast.unparse(node.annotation), " ".join(meaning.split())
