"""Tables that extraction writes: the segments of the operator graph, and the partitions found in it."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema

OPERATOR = pl.Struct(
    {
        "name": pl.String,
        "kind": pl.String,
        "shape": pl.List(pl.Int64),
        "flops": pl.Int64,
        "bytes_read": pl.Int64,
        "bytes_written": pl.Int64,
        "kernels": pl.Int64,
        "copies": pl.Int64,
        "copied_bytes": pl.Int64,
        "precision": pl.String,
    }
)
COLLECTIVE = pl.Struct(
    {
        "kind": pl.String,
        "group": pl.String,
        "group_size": pl.Int64,
        "message_bytes": pl.Int64,
        "fused": pl.Int64,
        "sequences": pl.Int64,
        "nodes": pl.Int64,
        "per_node": pl.Int64,
        "between_share": pl.Float64,
    }
)
"""A collective; `sequences` is 1 unless each is a message of its own (`SequenceCollective`); `nodes` is 1 and
`per_node` is 0 unless its ranks lie on several (`PlacedCollective`); `between_share` is 1 unless a copy of a token
serves all experts of a node (`TokenExchange`)."""

SEGMENTS = TableSchema(
    name="segments",
    version=6,
    meaning="The operator graph of one block and of what stands before and after the blocks, cut at its collectives.",
    columns=(
        Column("batch", pl.String, "`microbatch` (sequential) or `nanobatch` (half of it)"),
        Column("scope", pl.String, "`block`, `dense-block` (of a mixture of experts), `embedding` or `head`"),
        Column("direction", pl.String, "`forward` or `backward`"),
        Column("position", pl.Int64, "place in program order within (batch, scope, direction)"),
        Column("name", pl.String, "what the segment computes"),
        Column("operators", pl.List(OPERATOR), "operators in program order, per GPU"),
        Column("collective", COLLECTIVE, "the collective that ends the segment", nullable=True),
        Column("independent_tail", pl.Int64, "number of last operators that the collective does not wait for"),
    ),
    key=("batch", "scope", "direction", "position"),
)

PARTITIONS = TableSchema(
    name="partitions",
    version=7,
    meaning="The kinds of partition of a block under two staggered nanobatches.",
    columns=(
        Column("partition", pl.String, "`<direction>-<segment>-<collective>`"),
        Column("direction", pl.String, "`forward`, `backward`, or `input-gradient` where the backward is split"),
        Column("operators", pl.List(OPERATOR), "computation of the one nanobatch, in program order, per GPU"),
        Column("collective", COLLECTIVE, "collective of the other nanobatch"),
        Column(
            "multiplicity",
            pl.Int64,
            "how often one pass of that direction has it in an inner block; 0 if only recomputation does, or where "
            "dense blocks meet those with experts",
        ),
    ),
    key=("partition",),
)
