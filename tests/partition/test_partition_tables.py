"""Tables of the graph and the partitions: what is written is what is read, and what is broken is refused."""

import argparse
import logging
import subprocess
import sys
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from helpers.builders import small_model, software
from helpers.partition_tables import write_graphs, write_partitions

from kareus.artifacts.configuration import to_yaml
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import TableSchema, read_provenance, read_table, write_table
from kareus.errors import ArtifactError
from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch, BlockGraph
from kareus.model.parallelism import Parallelism, Sharding
from kareus.model.training_options import TrainingOptions
from kareus.partition import stage
from kareus.partition.config import PartitionSlice
from kareus.partition.detect import detect_partitions
from kareus.partition.extract import extract
from kareus.partition.names import expected_partitions
from kareus.partition.options import with_training_options
from kareus.partition.read import read_graphs, read_partitions
from kareus.partition.tables import PARTITIONS, SEGMENTS
from kareus.software.kernels import of_software

PROVENANCE = Provenance(config_hash="0123456789abcdef")
MODEL = small_model(hidden_size=64, intermediate_size=128, num_layers=4, vocab_size=128, qk_norm=True)


@cache
def graphs() -> dict[Batch, BlockGraph]:
    parallelism = Parallelism(
        dp=1, pp=1, tp=2, cp=2, layers_per_stage=(4,), sharding=Sharding.NONE, sequence_parallel=False
    )
    return extract(MODEL, parallelism, 4, 32)


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    path = tmp_path / "segments.parquet"
    write_graphs(path, graphs(), PROVENANCE)
    return path


@pytest.fixture
def partitions(tmp_path: Path) -> Path:
    path = tmp_path / "partitions.parquet"
    write_partitions(path, detect_partitions(graphs()[Batch.NANOBATCH], recomputation=Recomputation.STAGE), PROVENANCE)
    return path


def spoil(path: Path, schema: TableSchema, change: pl.Expr | None = None, keep: pl.Expr | None = None) -> None:
    """Rewrite a table so that it is whole but means nothing."""
    frame = read_table(path, schema)
    frame = frame if change is None else frame.with_columns(change)
    write_table(path, frame if keep is None else frame.filter(keep), schema, PROVENANCE)


def test_graphs_come_back_as_they_were(segments: Path) -> None:
    assert read_graphs(segments) == graphs()
    assert read_provenance(segments, SEGMENTS).config_hash == PROVENANCE.config_hash


def test_partitions_come_back_as_they_were(partitions: Path) -> None:
    found = detect_partitions(graphs()[Batch.NANOBATCH], recomputation=Recomputation.STAGE)
    assert read_partitions(partitions) == tuple(found)
    multiplicities = read_table(partitions, PARTITIONS).select("partition", "multiplicity").rows()
    assert dict(multiplicities) == {partition.name: n for partition, n in found.items()}


def test_collectives_of_each_sequence_come_back_as_they_were(tmp_path: Path) -> None:
    parallelism = Parallelism(dp=1, pp=1, tp=2, cp=1, layers_per_stage=(4,), sharding=Sharding.NONE)
    shared = extract(MODEL, parallelism, 4, 32)
    write_graphs(tmp_path / "segments.parquet", shared, PROVENANCE)
    assert read_graphs(tmp_path / "segments.parquet") == shared
    found = detect_partitions(shared[Batch.NANOBATCH], recomputation=Recomputation.NONE)
    write_partitions(tmp_path / "partitions.parquet", found, PROVENANCE)
    assert read_partitions(tmp_path / "partitions.parquet") == tuple(found)
    assert {getattr(partition.collective, "sequences", 1) for partition in found} == {2}


def test_a_table_without_partitions_reads_as_none(tmp_path: Path) -> None:
    write_partitions(tmp_path / "none.parquet", {}, PROVENANCE)
    assert read_partitions(tmp_path / "none.parquet") == ()


@pytest.mark.parametrize(
    ("change", "keep", "complaint"),
    [
        (pl.col("batch").str.to_uppercase(), None, "found MICROBATCH, NANOBATCH"),
        (None, pl.col("batch") == "nanobatch", "expected microbatch"),
        (None, pl.col("scope") != "head", "no segments of head forward, head backward"),
        (None, pl.col("position") != 0, "position 1 follows 0 rows"),
        (pl.col("direction").str.to_uppercase(), None, "'FORWARD' is not known"),
    ],
)
def test_segments_that_are_no_graph_are_refused_by_one_line(
    segments: Path, change: pl.Expr | None, keep: pl.Expr | None, complaint: str
) -> None:
    spoil(segments, SEGMENTS, change, keep)
    with pytest.raises(ArtifactError, match=complaint) as refusal:
        read_graphs(segments)
    assert str(refusal.value).startswith(f"{segments}: ")
    assert "\n" not in str(refusal.value)


def test_tables_keep_the_number_format_of_products(tmp_path: Path) -> None:
    parallelism = Parallelism(
        dp=1, pp=1, tp=2, cp=1, layers_per_stage=(4,), sharding=Sharding.NONE, sequence_parallel=True
    )
    own = extract(MODEL, parallelism, 4, 32)
    graphs = {
        batch: of_software(graph, software("megatron-core"), Precision.MXFP8, MODEL, parallelism, 4)
        for batch, graph in own.items()
    }
    assert graphs != own
    path = tmp_path / "segments.parquet"
    write_graphs(path, graphs, PROVENANCE)
    assert read_graphs(path) == graphs


def test_partitions_of_an_unknown_direction_are_refused(partitions: Path) -> None:
    spoil(partitions, PARTITIONS, pl.lit("up").alias("direction"))
    with pytest.raises(ArtifactError, match="direction: 'up' is not known"):
        read_partitions(partitions)


def test_tables_do_not_pass_for_one_another(segments: Path, partitions: Path) -> None:
    with pytest.raises(ArtifactError, match="holds the table 'partitions'"):
        read_graphs(partitions)
    with pytest.raises(ArtifactError, match="holds the table 'segments'"):
        read_partitions(segments)


def test_stages_that_read_partitions_do_not_import_torch() -> None:
    code = "import sys, kareus.partition.read, kareus.partition.names; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_writes_both_tables_and_logs_partitions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, segments, partitions = (tmp_path / name for name in ("slice.yaml", "s.parquet", "p.parquet"))
    parallelism = Parallelism(
        dp=1, pp=1, tp=2, cp=1, layers_per_stage=(4,), sharding=Sharding.NONE, sequence_parallel=False
    )
    workload = PartitionSlice(
        model=MODEL,
        parallelism=parallelism,
        microbatch_size=4,
        sequence_length=32,
        recomputation=Recomputation.STAGE,
        split_backward=False,
        software=software(),
        precision=Precision.BF16,
        linked_gpus=8,
    )
    config.write_text(to_yaml(workload))
    caplog.set_level(logging.INFO)
    parser = argparse.ArgumentParser()
    stage.add_arguments(parser)
    stage.run(
        parser.parse_args(["--config", str(config), "--segments", str(segments), "--partitions", str(partitions)])
    )
    assert {p.name for p in read_partitions(partitions)} == set(expected_partitions(workload))
    assert read_graphs(segments) == extract(MODEL, parallelism, 4, 32)
    assert read_provenance(partitions, PARTITIONS).config_hash == content_hash(workload)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert lines[1].startswith(
        "forward-mlp-allreduce: norm gate_up activation down beside allreduce of 0.0 MB over tp of 2"
    )


def test_a_graph_of_frozen_weights_comes_back_as_it_was(tmp_path: Path) -> None:
    """With adapters the embedding has no backward; everything else has its row."""
    path, parallelism = (
        tmp_path / "segments.parquet",
        Parallelism(dp=1, pp=1, tp=2, cp=2, layers_per_stage=(4,), sharding=Sharding.NONE, sequence_parallel=False),
    )
    options, by = TrainingOptions(lora_rank=4, loss_chunks=2), software("megatron-core")
    own = {
        batch: with_training_options(graph, options, MODEL, parallelism, by, 32) for batch, graph in graphs().items()
    }
    write_graphs(path, own, PROVENANCE)
    assert read_graphs(path) == own
