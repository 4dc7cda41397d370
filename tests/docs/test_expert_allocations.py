"""The table of SM counts in docs/research/search.md is what its script makes of today's GPU model."""

from pathlib import Path

import pytest

import expert_allocations
from expert_allocations import LAYOUTS, Choice, behaviour, choices, replaced, table_rows
from kareus.graph.records import CollectiveKind
from kareus.workload.resolve import resolve_accepted

FILE = Path(__file__).parents[2].parent / "shared/reference/expert_sm_allocations.csv"
ROWS = """\
source,kind,op,method,num_sm,cga,splits
x/llama3.1/llama3.1_70b.yaml (H100 bf16),TP userbuffers,fc2_fprop,pipeline,16,2,4
x/llama3.1/llama3.1_405b.yaml (H100 bf16),TP userbuffers,qkv_dgrad,bulk,2,2,
x/llama3.1/llama3.1_70b.yaml (H100 fp8),TP userbuffers,qkv_dgrad,bulk,9,2,
"""


def test_the_table_in_the_docs_is_of_today():
    if not FILE.is_file():
        pytest.skip(f"{FILE}: the experts' choices are not part of the repository")
    given = choices(FILE)
    assert len(given) == 20
    page = expert_allocations.PAGE.read_text()
    assert replaced(page, list(table_rows(given))) == page, "run make refitted"


def test_rows_are_those_of_both_models_in_16_bits(tmp_path):
    (tmp_path / "file.csv").write_text(ROWS)
    first, second = choices(tmp_path / "file.csv")
    assert (first.model, first.num_sm, first.splits, first.collective) == ("70b", 16, 4, CollectiveKind.REDUCE_SCATTER)
    assert (second.model, second.splits, second.collective) == ("405b", 1, CollectiveKind.ALL_GATHER)


def test_parts_compute_and_send_what_the_whole_does():
    """Cut in parts, the last of which is exposed, it takes longer than whole beside whole, and not twice as long."""
    (workload,) = resolve_accepted(["gpu=h100-sxm5-80gb"]).values()
    whole = Choice(model="70b", operation="fc2_fprop", method="bulk", num_sm=16, splits=1)
    parts = Choice(model="70b", operation="fc2_fprop", method="pipeline", num_sm=16, splits=4)
    times_s = [float(behaviour(workload.gpu, one, LAYOUTS["70b"], 16).time_s) for one in (whole, parts)]
    assert times_s[0] < times_s[1] < 2 * times_s[0]


def test_a_table_is_replaced_between_its_neighbours():
    page = "\n".join(["before", "", *expert_allocations.HEADS, "| old |", "", "after"]) + "\n"
    assert replaced(page, ["| new |"]) == page.replace("| old |", "| new |")
