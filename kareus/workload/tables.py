"""Table that resolving writes: every combination of a sweep, what it needs, and why it was refused."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema

MEMORY_PARTS = (
    Column("weights_gib", pl.Float64, "bf16 weights", nullable=True),
    Column("gradients_gib", pl.Float64, "fp32 gradients", nullable=True),
    Column("optimizer_gib", pl.Float64, "fp32 master weights and Adam moments", nullable=True),
    Column("in_flight_gib", pl.Float64, "activations that wait for their backward", nullable=True),
    Column("transfers_gib", pl.Float64, "buffers of point-to-point communication", nullable=True),
    Column("communicators_gib", pl.Float64, "buffers of NCCL's communicators, all that a plan may use", nullable=True),
    Column("blocks_gib", pl.Float64, "working set of a backward through the blocks", nullable=True),
    Column("head_gib", pl.Float64, "working set of the LM head, released before that of the blocks", nullable=True),
    Column("workspace_gib", pl.Float64, "workspaces of the software, of no tensor", nullable=True),
    Column("reserve_gib", pl.Float64, "calibrated reserve", nullable=True),
    Column("total_gib", pl.Float64, "peak: the sum, with the larger of blocks_gib and head_gib", nullable=True),
)
"""Memory of one GPU of the stage that holds the most; empty where a combination was refused before."""

WORKLOADS = TableSchema(
    name="workloads",
    version=3,
    meaning="Combinations of a sweep: accepted workloads and refused ones.",
    columns=(
        Column("workload", pl.String, "readable name; its folder under `results/`"),
        Column("accepted", pl.Boolean, "whether it can run"),
        Column("refusal", pl.String, "why it cannot", nullable=True),
        Column("overrides", pl.List(pl.String), "overrides that give it"),
        Column("gpus", pl.Int64, "GPUs of the whole job"),
        Column("layers_per_stage", pl.List(pl.Int64), "blocks on each stage; empty if refused", nullable=True),
        Column("memory_stage", pl.Int64, "stage whose GPUs hold the most", nullable=True),
        *MEMORY_PARTS,
        Column(
            "memory_gib", pl.Float64, "memory of one GPU that an application can use; empty if refused", nullable=True
        ),
    ),
    key=("workload",),
)
