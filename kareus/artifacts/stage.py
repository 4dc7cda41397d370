"""The adapter between the command line and stage functions, which turn records and tables into tables.

A stage declares the slice of the configuration and the tables that it reads, the tables that it writes, and its
function. The adapter does what is the same for all of them: it parses arguments, checks where outputs go and where
inputs come from, reads, calls the function, and writes with the provenance that follows from the inputs.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import polars as pl

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.outputs import add_force, check_files, table
from kareus.artifacts.provenance import Provenance, check_config, check_subject, derived
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import TableSchema, read_provenance, read_table, write_table
from kareus.errors import ArtifactError, StageInputError

Config = TypeVar("Config")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTable(Generic[Config]):
    """A table that a stage reads, or a set of tables of one schema in folders that name them."""

    option: str
    """Name of the option, and of the parameter of the stage's function."""
    schema: TableSchema
    help: str
    read: Callable[[Path], Any] | None = None
    """Reads the file where the function takes something other than the table."""
    config_hash: Callable[[Config], str] | None = None
    """Hash that the configuration of the stage that writes the table must have; None where it is not checked."""
    check_folders: Callable[[Config, list[str]], None] | None = None
    """Checks the names of the folders of a set of tables, of which the option takes any number; None for one table."""

    @property
    def is_set(self) -> bool:
        """Whether the option takes any number of tables; the function gets them by the names of their folders."""
        return self.check_folders is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTable:
    """A table that a stage writes."""

    option: str
    """Name of the option, and of the table in what the stage's function returns."""
    schema: TableSchema
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStage(Generic[Config]):
    """Declaration of a stage that makes tables from tables."""

    config: type[Config]
    """Slice of the configuration that the stage reads."""
    inputs: tuple[InputTable[Config], ...] = ()
    outputs: tuple[OutputTable, ...]
    compute: Callable[..., Mapping[str, pl.DataFrame]]
    """Takes the configuration, and the inputs by keyword; returns a table for each output."""
    subject: Callable[[Config], str] | None = None
    """Gives the subject that all inputs must have, and the outputs get; None where the inputs alone tell it."""
    check: Callable[[Config, Provenance], None] | None = None
    """Checks the common provenance of the inputs against the configuration."""
    report: Callable[[Config, Mapping[str, pl.DataFrame]], None] | None = None
    """Logs what was written."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the inputs and the outputs."""
        parser.add_argument("--config", type=Path, required=True, help="configuration slice (YAML)")
        for source in self.inputs:
            if source.is_set:
                parser.add_argument(f"--{source.option}", type=Path, nargs="*", default=[], help=source.help)
            else:
                parser.add_argument(f"--{source.option}", type=Path, required=True, help=source.help)
        for output in self.outputs:
            parser.add_argument(f"--{output.option}", type=Path, required=True, help=output.help)
        add_force(parser)

    def run(self, arguments: argparse.Namespace) -> None:
        """Check, read, compute and write."""
        named = vars(arguments)
        check_files(arguments, [(named[output.option], table(output.schema)) for output in self.outputs])
        config = load_slice(arguments.config, self.config)
        with _located(named):
            provenance = self._provenance(config, named)
            inputs = {source.option: _read(source, config, named[source.option]) for source in self.inputs}
            tables = self.compute(config, **inputs)
        for output in self.outputs:
            write_table(named[output.option], tables[output.option], output.schema, provenance)
        if self.report is not None:
            self.report(config, tables)

    def _provenance(self, config: Config, named: Mapping[str, Any]) -> Provenance:
        """Return the provenance of the outputs, once all inputs belong to the configuration."""
        config_hash = content_hash(config)
        subject = "" if self.subject is None else self.subject(config)
        files = [(source, path) for source in self.inputs for path in _paths(named[source.option])]
        parents = {str(path): read_provenance(path, source.schema) for source, path in files}
        if self.subject is not None:
            check_subject(subject, parents)
        for source, path in files:
            if source.config_hash is not None:
                check_config(source.config_hash(config), str(path), parents[str(path)])
        provenance = derived(config_hash, parents) if parents else Provenance(config_hash=config_hash, subject=subject)
        if self.check is not None:
            self.check(config, provenance)
        return provenance


def _read(source: InputTable[Config], config: Config, given: Any) -> Any:
    """Return what the function takes for an input; for a set of tables a mapping from the names of their folders."""
    read = source.read or (lambda path: read_table(path, source.schema))
    if source.check_folders is None:
        return read(given)
    source.check_folders(config, [path.parent.name for path in given])
    return {path.parent.name: read(path) for path in given}


@contextmanager
def _located(named: Mapping[str, Any]) -> Iterator[None]:
    """Name the file in errors about an input, or the option where the error is about all files of a set."""
    try:
        yield
    except StageInputError as error:
        paths = _paths(named[error.option])
        at_fault = [path for path in paths if path.parent.name == error.member] if error.member else paths
        where = str(at_fault[0]) if error.member or isinstance(named[error.option], Path) else f"--{error.option}"
        raise ArtifactError(f"{where}: {error.problem}") from error


def _paths(given: Path | list[Path]) -> list[Path]:
    return given if isinstance(given, list) else [given]
