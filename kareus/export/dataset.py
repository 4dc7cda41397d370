"""All tables of a results folder at once, for analyses in polars."""

from pathlib import Path

import polars as pl

from kareus.artifacts.tables import TableSchema, read_provenance
from kareus.errors import ArtifactError
from kareus.export.catalogue import CAMPAIGN_CATALOGUE, CATALOGUE, Entry
from kareus.workload.tables import WORKLOADS


def open_results(folder: str | Path = "results") -> dict[str, pl.LazyFrame]:
    """Open every table below `folder`, each over all workloads.

    Files are checked when opened (bytes, schema and version, as every stage does) and read when collected.

    Args:
        folder: results folder of one or more runs of the workflow.

    Returns:
        LazyFrames by the name of their table, such as `iteration`. The columns of the table's schema follow
        `workload` (its folder), `testbed` (such as `simulated testbed, A100-SXM4-40GB`; null if nothing was measured)
        and what the path holds, such as `partition`. A table that no workload has is empty. Tables of campaigns, such
        as `comparison`, are over all campaigns, named in their first column.

    Raises:
        ArtifactError: there is no such folder, or one of its tables is corrupt or of another version.

    Example:
        >>> import kareus
        >>> import polars as pl
        >>> tables = kareus.open_results("results")
        >>> fastest = tables["iteration"].group_by("workload", "method").agg(pl.col("time_s").min())
        >>> fastest.collect().columns
        ['workload', 'method', 'time_s']
    """
    root = Path(folder)
    workloads = root / "workloads.parquet"
    if not workloads.is_file():
        raise ArtifactError(f"{root}: no results here (no workloads.parquet); run snakemake, or name its folder.")
    read_provenance(workloads, WORKLOADS)
    tables = {WORKLOADS.name: pl.scan_parquet(workloads, glob=False)}
    tables |= {entry.schema.name: _over_campaigns(root, entry.schema, entry.pattern) for entry in CAMPAIGN_CATALOGUE}
    return tables | {entry.schema.name: _over_workloads(root, entry) for entry in CATALOGUE}


def _over_campaigns(root: Path, schema: TableSchema, pattern: str) -> pl.LazyFrame:
    frames = []
    for path in sorted((root / "campaigns").glob(f"*/{pattern}")):
        read_provenance(path, schema)
        name = path.relative_to(root / "campaigns").parts[0]
        frames.append(pl.scan_parquet(path, glob=False).select(pl.lit(name).alias("campaign"), pl.all()))
    return pl.concat(frames) if frames else pl.LazyFrame(schema={"campaign": pl.String} | dict(schema.polars))


def _over_workloads(root: Path, entry: Entry) -> pl.LazyFrame:
    frames = [_scan(root, path, entry) for path in sorted(root.glob(f"*/{entry.glob}"))]
    return pl.concat(frames) if frames else _empty(entry)


def _scan(root: Path, path: Path, entry: Entry) -> pl.LazyFrame:
    testbed = read_provenance(path, entry.schema).testbed
    workload, _, below = path.relative_to(root).as_posix().partition("/")
    labels = {"workload": workload, "testbed": testbed.label if testbed else None} | entry.columns_of(below)
    columns = [pl.lit(value, pl.String).alias(name) for name, value in labels.items()]
    return pl.scan_parquet(path, glob=False).select(*columns, pl.all().exclude(labels))


def _empty(entry: Entry) -> pl.LazyFrame:
    labels = dict.fromkeys(("workload", "testbed", *entry.columns_of(entry.pattern)), pl.String)
    return pl.LazyFrame(schema=pl.Schema(labels | dict(entry.schema.polars)))
