"""What people bring, by the table `tests/cases/index.csv`: each row has a command and what is expected of it.

Read here are the rows of the kind `hf`, which resolve a published `config.json`. Rows of the kinds `layout` (trainings
that ran), `key` (settings), `issue` (reports) and `scale` are not read here.
"""

import csv
import re
import shlex
from pathlib import Path

import pytest
from helpers.builders import CONFIG

from kareus.errors import ConfigError
from kareus.model.parameters import total_parameters
from kareus.workload.resolve import Resolved, resolve

CASES = Path(__file__).parents[1] / "cases"
KIND = "hf"
PARTS = {
    "mistralai--Mixtral-8x22B-v0.1": "experts (num_local_experts=8)",
    "Qwen--Qwen3-30B-A3B": "experts (num_experts=128)",
    "deepseek-ai--DeepSeek-V3": "experts (n_routed_experts=256), latent attention (kv_lora_rank=512)",
    "openai--gpt-oss-20b": "experts (num_local_experts=32)",
    "default--granitemoe": "experts (num_local_experts=8)",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": "experts (num_local_experts=16)",
    "nvidia--Nemotron-H-56B-Base-8K": "blocks without attention (hybrid_override_pattern)",
    "default--qwen3_next": "experts (num_experts=512), linear attention (linear_num_value_heads=32)",
}
"""Models that are not dense, and what is said of them."""


def rows() -> list[dict[str, str]]:
    with (CASES / "index.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["case"].startswith(f"{KIND}/")]


def resolved(row: dict[str, str]) -> Resolved:
    program, command, *overrides = shlex.split(row["command"])
    assert (program, command) == ("kareus", "resolve")
    (one,) = resolve([text.replace("model=cases/", f"model={CASES}/") for text in overrides], CONFIG)
    return one


DENSE = [row for row in rows() if row["case"].removeprefix(f"{KIND}/") not in PARTS]


@pytest.mark.parametrize("row", DENSE, ids=lambda row: row["case"])
def test_a_published_dense_model_is_accepted(row: dict[str, str]) -> None:
    one, expected = resolved(row), row["expected"]
    assert "accepted" in expected or expected.startswith("supported")
    if expected == "accepted as architecture":  # of 405 billion parameters, in a layout that does not hold them
        assert "out of memory" in (one.refusal or "")
    elif expected == "refused or accepted without dropout":  # at 4,096 tokens, of which it learns 1,024 positions
        assert "must be at most model.max_positions (1024)" in (one.refusal or "")
    else:
        assert one.workload is not None, one.refusal
    if parameters := re.fullmatch(r"accepted, (\d+) parameters", expected):
        assert total_parameters(one.composed.model) == int(parameters[1])


@pytest.mark.parametrize("name", PARTS)
def test_a_model_that_is_not_dense_is_refused_by_its_parts(name: str) -> None:
    (row,) = (row for row in rows() if row["case"] == f"{KIND}/{name}")
    with pytest.raises(ConfigError) as raised:
        resolved(row)
    assert f": {PARTS[name]} not supported; the nearest to plan without a job: " in str(raised.value)
    assert "\n" not in str(raised.value)
