"""Reference rows and files that the tests of this room share."""

import csv
from collections.abc import Sequence
from pathlib import Path

from kareus.evidence.frontiers.reference import FrontierRow, ReductionRow, Scenario
from kareus.graph.records import Direction

F, B = Direction.FORWARD, Direction.BACKWARD

SMALL = Scenario(model="qwen3-1.7b", cp=1, tp=8, pp=2, num_microbatches=3, microbatch_size=8, seq_len=4096)
"""Of three microbatches, so that an iteration can be written out by hand."""
ODD = Scenario(model="qwen3-1.7b", cp=1, tp=8, pp=2, num_microbatches=3, microbatch_size=7, seq_len=4096)
"""The same with microbatches that cannot be halved."""
COARSE = ("gpu.search_frequencies.stride_mhz=170", "space.sm_stride=6", "space.sm_max=24")
"""Four clocks and allocations: planning by all stages takes three seconds instead of nine."""
QUICK = (*COARSE, "pipeline.deadlines=5")
"""The same with few plans, for what does not depend on how close they are to each other: one second."""

WORKLOAD = {
    "model": "qwen3-1.7b",
    "cp": "1",
    "tp": "8",
    "pp": "2",
    "num_microbatches": "3",
    "microbatch_size": "8",
    "seq_len": "4096",
}
FRONTIER = {
    "method": "sequential+perseus",
    **WORKLOAD,
    "point": "0",
    "iteration_time_s": "1.25",
    "total_energy_j": "812.5",
    "stage0_mhz": "F1410;F1380;B1350;F1320;B1290;B1260",
    "stage1_mhz": "F1410;B1410;F1200;B1170;F1410;B1410",
}
REDUCTION = {
    "table": "max_throughput",
    **WORKLOAD,
    "metric": "time_reduction_pct",
    "sequential+perseus": "-0.5",
    "nanobatching+perseus": "",
    "kareus": "12.25",
}


def write_csv(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def frontier_row(scenario: Scenario = SMALL, **changes: object) -> FrontierRow:
    values = {"method": "sequential+perseus", "point": 0, "time_s": 1.0, "energy_j": 100.0, "clocks": None}
    return FrontierRow(scenario=scenario, **(values | changes))


def reduction_row(metric: str, given: dict[str, float], table: str = "max_throughput") -> ReductionRow:
    return ReductionRow(scenario=SMALL, table=table, metric=metric, given_percent=given)


def one_f_one_b_clocks(scenario: Scenario, clock_of: Sequence[int] | int):
    """Clocks of a row of two stages and three microbatches, its instructions written out by hand."""
    assert (scenario.pp, scenario.num_microbatches) == (2, 3)
    orders = ((F, F, B, F, B, B), (F, B, F, B, F, B))
    clocks = iter([clock_of] * 12 if isinstance(clock_of, int) else clock_of)
    return tuple(tuple((direction, next(clocks)) for direction in order) for order in orders)


SHORT = "qwen3-1.7b,1,4,2,2,2,1024"
FRONTIERS = f"""\
method,model,cp,tp,pp,num_microbatches,microbatch_size,seq_len,point,iteration_time_s,total_energy_j,stage0_mhz,stage1_mhz
sequential+perseus,{SHORT},0,0.10,40.0,F1410;F1410;B1410;B1410,F1410;B1410;F1410;B1410
sequential+perseus,{SHORT},1,0.12,35.0,F1200;F1200;B1200;B1200,F1200;B1200;F1200;B1200
sequential+perseus,{SHORT},2,0.13,36.0,F1170;F1170;B1170;B1170,F1170;B1170;F1170;B1170
kareus,{SHORT},0,0.50,30.0,,
"""
REDUCTIONS = f"""\
table,model,cp,tp,pp,num_microbatches,microbatch_size,seq_len,metric,sequential+perseus,nanobatching+perseus,kareus
max_throughput,{SHORT},time_reduction_pct,0.0,,5.0
frontier,{SHORT},iso_time_energy_reduction_pct,,,12.0
ablation_nanobatching,{SHORT},energy_increase_pct,,,10.0
"""
"""Small files as text."""
